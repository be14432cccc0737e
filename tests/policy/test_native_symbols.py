"""Objects that are compiled for one instruction set define nothing but their entry point.

A weak symbol (an instantiated `std::` template, an inline function that was not inlined) compiled
for AVX-512 may be the one that the linker keeps for the whole library, and baseline code would
then fail on smaller machines. Nothing else would notice.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.policy.tree import ROOT

UNITS = sorted((ROOT / "csrc" / "isa").glob("*.cpp"))
KERNEL_HEADERS = sorted(
    path for folder in ("kernels", "simd") for path in (ROOT / "csrc" / folder).glob("*.h")
)
BITS = (8, 16, 32, 64)


def is_built_here() -> bool:
    """Whether `make` built the native module in this tree (its stamp), or this is CI."""
    return "CI" in os.environ or (ROOT / ".venv" / ".stamps" / "octavo").exists()


def built_objects() -> list[Path]:
    """The newest object of each unit among the build folders."""
    newest: dict[str, Path] = {}
    for path in (ROOT / "build").glob("*/CMakeFiles/octavo_isa_*.dir/csrc/isa/*.o"):
        known = newest.get(path.name)
        if known is None or path.stat().st_mtime > known.stat().st_mtime:
            newest[path.name] = path
    return sorted(newest.values())


def test_isa_objects_define_their_entry_point_only() -> None:
    objects = built_objects()
    if not objects or shutil.which("nm") is None:
        if is_built_here():
            pytest.fail("the native module must be built in place, and nm installed")
        pytest.skip("no objects of a native build, or no nm")
    for path in objects:
        lines = subprocess.run(
            ["nm", "--defined-only", "--extern-only", str(path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        symbols = [tuple(line.split()[-2:]) for line in lines]
        unit = path.name.removesuffix(".cpp.o")
        assert [kind for kind, _ in symbols] == ["T"], f"{unit}: {symbols}"
        assert f"overlay_{unit}" in symbols[0][1]


@pytest.mark.parametrize("path", [*UNITS, *KERNEL_HEADERS], ids=lambda path: path.name)
def test_isa_sources_use_no_library(path: Path) -> None:
    """Only fixed-width types, intrinsics and our own headers."""
    text = path.read_text(encoding="utf-8")
    allowed = {"cstddef", "cstdint", "immintrin.h", "arm_neon.h"}
    assert set(re.findall(r"#include <(.+?)>", text)) <= allowed
    used = set(re.findall(r"std::(\w+)", text))
    assert used <= {"size_t", "uintptr_t"} | {f"{u}int{n}_t" for u in ("", "u") for n in BITS}
    if path.suffix == ".h" and path.name != "common.h":
        assert "namespace {" in text
