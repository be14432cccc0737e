"""`octavo bench paging` on a tiny model: what paging promises, as counts. How much faster
continuous batching is than static batching is a measurement, and none of a test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.lab import write_tiny


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_paging_pays(tmp_path: Path, dtype: str) -> None:
    model = write_tiny(tmp_path, max_position_embeddings=1536)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "octavo", "bench", "paging", "--json"),
            *("--model", str(model), "--dtype", dtype, "--num-threads", "1"),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    found = report["results"]
    assert 0 < found["kv_waste_blocks_per_request_mean"] < 1
    assert found["kv_waste_blocks_per_request_max"] <= 1
    assert found["saturated_steps"] > 10
    assert found["blocks_in_use_when_saturated"] >= 0.95
    assert found["prefix_tokens_in_full_blocks"] == 992
    assert found["prefix_tokens_computed"] == 992
    assert found["prefix_tokens_asked_for"] == 8 * 992
    assert found["continuous_tokens_per_second"] > 0
    assert report["machine"]
