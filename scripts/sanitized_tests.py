"""Run pytest on the native module of build/sanitize, in place of the installed one.

    python scripts/sanitized_tests.py [pytest's arguments]

Its libraries must be loaded first: `make sanitize` preloads them.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_sanitized() -> None:
    """Make build/sanitize's module the one that `from octavo import _cpu` finds."""
    (path,) = (ROOT / "build" / "sanitize").glob("_cpu.*.so")
    spec = importlib.util.spec_from_file_location("octavo._cpu", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    load_sanitized()
    sys.exit(pytest.main(sys.argv[1:]))
