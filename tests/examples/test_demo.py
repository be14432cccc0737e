"""`make demo` shows what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.model
def test_demo() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DEMO)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "memory plan",
        "is Paris",
        " cached]",
        "tokens/s",
        "KV cache: at most",
        "same tokens",
    ):
        assert part in done.stdout
