"""constraints.txt locks everything that an installation takes."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.policy.tree import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def locked() -> dict[str, list[Requirement]]:
    """Package → its lines."""
    lines: dict[str, list[Requirement]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            lines.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return lines


def locked_version(name: str) -> Version | None:
    """The version that holds for this interpreter."""
    valid = [r for r in locked().get(name, ()) if r.marker is None or r.marker.evaluate()]
    assert len(valid) <= 1, f"{name} is locked twice"
    return Version(str(valid[0].specifier).removeprefix("==")) if valid else None


def declared() -> dict[str, list[Requirement]]:
    """Extra (or "runtime", "build") → requirements, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = {
        "runtime": project["project"]["dependencies"],
        "build": project["build-system"]["requires"],
    }
    groups |= project["project"]["optional-dependencies"]
    return {group: [Requirement(line) for line in lines] for group, lines in groups.items()}


def reachable() -> set[str]:
    """All packages that are needed here, as far as what is installed tells."""
    todo = [(r, "") for requirements in declared().values() for r in requirements]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            try:
                todo += [(Requirement(r), wanted) for r in distribution(name).requires or ()]
            except PackageNotFoundError:
                continue
    return {name for name, _ in seen}


def test_lines_are_exact_and_sorted() -> None:
    lines = [r for requirements in locked().values() for r in requirements]
    assert all(re.fullmatch(r"==[\w.]+", str(r.specifier)) for r in lines)
    assert all(r.name == canonicalize_name(r.name) for r in lines)
    assert list(locked()) == sorted(locked())


@pytest.mark.parametrize("group", declared())
def test_every_declared_dependency_is_locked(group: str) -> None:
    for requirement in declared()[group]:
        lines = locked().get(canonicalize_name(requirement.name))
        assert lines, f"{requirement.name} of {group} is missing"
        for line in lines:
            fits = requirement.specifier.contains(str(line.specifier).removeprefix("=="))
            assert fits, f"{line} does not satisfy {requirement}"


def test_every_indirect_dependency_is_locked() -> None:
    # torch's CUDA packages come with torch's own exact pins.
    missing = {n for n in reachable() if locked_version(n) is None}
    missing = {n for n in missing if not n.startswith(("nvidia-", "cuda-"))}
    assert not missing


def test_nothing_is_locked_in_vain() -> None:
    """Every line that holds here is needed by something, or is the installer itself."""
    installed = {n for n in locked() if locked_version(n) and _installed(n)}
    assert installed - reachable() <= {"pip", "setuptools"}  # a new environment has them


def test_the_environment_agrees() -> None:
    wrong = {
        name: f"{found}, not {wanted}"
        for name in locked()
        if (wanted := locked_version(name))
        and (found := _installed(name))
        and Version(found.public) != wanted
    }
    assert not wrong, f"{wrong}: make clean, then again"


def _installed(name: str) -> Version | None:
    try:
        return Version(version(name))
    except PackageNotFoundError:
        return None
