"""Every example runs, and shows what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = {
    "01_generate.py": (" Paris", "(length)"),
    "02_chat.py": ("Paris", "Rome"),
    "03_stepwise_engine.py": ("3 running", "first ends (abort)", "0 running, 0 KV blocks"),
    "04_prefix_cache.py": ("   0 of 533", " 512 of 533", "   0 cached with another"),
    "05_parallel_sampling.py": ("0: ", "3: ", "mean logprob"),
    "06_beam_search.py": ("greedy", "beam", "(length)"),
    "07_logits_processors.py": ("plain: ", "no repeats: ", "boosted: '!!!"),
    "08_structured_outputs.py": ("An animal as JSON: ' → '{", "(stop)", "legs: "),
}


def test_all_are_known() -> None:
    assert {p.name for p in (ROOT / "examples").glob("[0-9]*.py")} == set(SHOWN)


@pytest.mark.model
@pytest.mark.parametrize("name", SHOWN)
def test_example(name: str, smollm2_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for part in SHOWN[name]:
        assert part in done.stdout
