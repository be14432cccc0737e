"""The map in docs/architecture.md names what is there, and only that."""

from __future__ import annotations

import re

from tests.policy.tree import PACKAGE, ROOT, module_map, repository_files


def test_map_and_tree_agree() -> None:
    packages = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    modules = {p.stem for p in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    there, named = packages | modules, set(module_map())
    assert there == named, (
        f"not in the map: {sorted(there - named)}; in the map only: {sorted(named - there)}"
    )


def test_every_folder_of_code_is_a_package() -> None:
    folders = {p.parent for p in PACKAGE.rglob("*.py")}
    assert not [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()]


def test_tests_mirror_the_tree() -> None:
    """tests/x is for octavo/x, beside the few folders that are about the whole."""
    whole = {"policy", "security", "e2e", "examples", "native", "benchmarks"}
    there = {p.name for p in PACKAGE.iterdir() if p.is_dir()}
    folders = {
        p.relative_to(ROOT).parts[1]
        for p in repository_files()
        if p.suffix == ".py"
        and p.relative_to(ROOT).parts[0] == "tests"
        and p.parent.name != "tests"
    }
    assert folders <= there | whole, f"tests for nothing: {sorted(folders - there - whole)}"


def test_docs_name_files_that_exist() -> None:
    """Links between pages, and paths like `octavo/core/scheduler.py` in the docs."""
    wrong = []
    pages = [p for p in repository_files() if p.suffix == ".md"]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        paths = re.findall(r"`((?:octavo|csrc|tests|docs|examples|benchmarks)/[\w./]+)`", text)
        targets = [page.parent / link for link in links] + [ROOT / path for path in paths]
        wrong += [f"{page.relative_to(ROOT)} → {t}" for t in targets if not t.exists()]
    assert not wrong, "\n".join(wrong)


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"^\| \[([\w-]+\.md)\]", index, re.MULTILINE))
