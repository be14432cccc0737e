"""The repository as the policy tests see it: its files, the module map, who imports what."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "octavo"
NATIVE = "_cpu"  # the extension module; no source file of that name lies in the package


@dataclass(frozen=True)
class Import:
    """`module` imports `target` (both dotted); `line` is where."""

    module: str
    target: str
    line: int


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return tuple(p for name in sorted(listed.split("\0")) if name and (p := ROOT / name).is_file())


@cache
def module_map() -> dict[str, int]:
    """Package → layer, from the table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layers: dict[str, int] = {}
    for layer, packages in re.findall(r"^\| (\d+) \| ((?:`\w+` ?)+) \|", text, re.MULTILINE):
        for package in re.findall(r"`(\w+)`", packages):
            assert package not in layers, f"{package} stands twice in the map"
            layers[package] = int(layer)
    return layers


def module_name(path: Path) -> str:
    """octavo/core/scheduler.py → octavo.core.scheduler"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """octavo.core.scheduler → core; "" for the root package and octavo.__main__."""
    parts = module.split(".")
    return "" if len(parts) == 1 or parts[1] == "__main__" else parts[1]


@cache
def sources() -> dict[str, ast.Module]:
    """Module name → syntax tree, for every module of the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {module_name(p): ast.parse(p.read_text(encoding="utf-8"), str(p)) for p in paths}


def imports_of(module: str, tree: ast.Module) -> Iterator[Import]:
    """All imports of a module: at the top, lazy, for type checking only, and by a module's name in
    a string (registries hand those to `import_module`)."""
    known = sources().keys()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} relative import; use octavo.…"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names_a_module = full in known or full == f"octavo.{NATIVE}"
                yield Import(module, full if names_a_module else str(node.module), node.lineno)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "." in node.value
            and node.value in known
        ):
            yield Import(module, node.value, node.lineno)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield Import(module, str(node.args[0].value), node.lineno)


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(i for module, tree in sources().items() for i in imports_of(module, tree))
