"""What every file of the repository keeps to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.policy.tree import ROOT, repository_files

MAX_LINES = 600
# Longer files, each with the reason why it is one piece.
LONG_FILES: dict[str, str] = {}

CODE = {".py", ".cpp", ".h", ".txt", ".toml", ".md", ".yml", ".json", ".jinja", ""}

# Spelled so that this file keeps the rules too.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:root|work|home|Users|tmp/w)/\w")
HOSTS = re.compile(r"pypi\.org|pythonhosted\.|npmjs\.|download\.pytorch\.")
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X]|HA[C]K)\b")


def text_files() -> list[tuple[str, str]]:
    return [
        (str(p.relative_to(ROOT)), p.read_text(encoding="utf-8"))
        for p in repository_files()
        if p.suffix in CODE and p.name != "LICENSE"
    ]


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (MACHINE_PATHS, "a path of one machine"),
        (HOSTS, "a package registry's host; use the ordinary client and its configuration"),
        (UNFINISHED, "unfinished work"),
    ],
    ids=["paths", "hosts", "unfinished"],
)
def test_files_do_not_name(pattern: re.Pattern[str], what: str) -> None:
    wrong = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert not wrong, f"{what}:\n" + "\n".join(wrong)


def test_patterns_match_what_they_are_for() -> None:
    assert MACHINE_PATHS.search("open('{}root/x')".format("/"))
    assert not MACHINE_PATHS.search("docs/work/x and a/home/b")
    assert HOSTS.search("https://pypi{}org/simple".format("."))
    assert UNFINISHED.search("# {}DO later".format("TO"))


def test_files_are_short_enough_to_hold() -> None:
    code = [
        (name, text) for name, text in text_files() if Path(name).suffix in {".py", ".cpp", ".h"}
    ]
    long = {name: text.count("\n") for name, text in code if text.count("\n") > MAX_LINES}
    unlisted = {name: lines for name, lines in long.items() if name not in LONG_FILES}
    assert not unlisted, (
        f"over {MAX_LINES} lines, split them or list them with a reason: {unlisted}"
    )
    assert not set(LONG_FILES) - set(long), "listed as long, but not long any more"


def test_text_is_clean() -> None:
    wrong = [
        name
        for name, text in text_files()
        if text
        and (not text.endswith("\n") or "\r" in text or re.search(r"[ \t]+$", text, re.MULTILINE))
    ]
    assert not wrong, f"no final newline, carriage returns, or spaces at a line's end: {wrong}"


def test_no_binaries_and_no_large_files() -> None:
    large = {str(p.relative_to(ROOT)): p.stat().st_size for p in repository_files()}
    assert not {name: size for name, size in large.items() if size > 500_000}
    assert not [n for n in large if Path(n).suffix in {".so", ".o", ".a", ".gguf", ".safetensors"}]


def test_license_and_types_are_there() -> None:
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "Version 2.0" in licence
    assert (ROOT / "octavo" / "py.typed").exists()


def test_commands_are_documented() -> None:
    """Every public target of the Makefile stands in CONTRIBUTING.md."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {"demo", "test", "check", "clean"} <= set(targets)
    assert not [t for t in targets if f"make {t}" not in contributing]
