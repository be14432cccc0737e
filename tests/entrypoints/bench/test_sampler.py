"""The sampler benchmark on a small vocabulary, and its peer as a program that answers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from octavo.contracts.tensor import DType
from octavo.entrypoints.bench.sampler import KINDS, LOGITS, SamplerOptions, run
from octavo.errors import ConfigError
from octavo.kernels.registry import create_backend

OPTIONS = SamplerOptions(num_rows=3, vocab_size=700, num_tokens=8, rounds=2, num_threads=1)


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_a_row_per_kind_and_a_column_per_back_end() -> None:
    backends = {
        "octavo": create_backend("cpu", DType.F32, 1),
        "torch_twin": create_backend("reference", DType.F32, 1),
    }
    report = run(backends, OPTIONS)
    rows = report.results["one step"]
    assert [(r["logits"], r["kind"]) for r in rows] == [(s, k) for s in LOGITS for k in KINDS]
    assert all(r["octavo_ms"] > 0 and r["torch_twin_ms"] > 0 for r in rows)
    assert all("vllm_ms" not in r for r in rows)


def test_a_peer_gets_the_same_logits(tmp_path: Path) -> None:
    peer = program(
        tmp_path / "python",
        "import json, sys, numpy as np\n"
        "folder = sys.argv[2]\n"
        "task = json.load(open(folder + '/task.json'))\n"
        "size = {n: np.load(f'{folder}/{n}.npy').size for n in task['logits']}\n"
        "print(json.dumps({'peer': task['num_rows'],\n"
        "    'milliseconds': {n: dict.fromkeys(task['kinds'], size[n]) for n in size}}))\n",
    )
    report = run({"octavo": create_backend("cpu", DType.F32, 1)}, OPTIONS, peer)
    assert {r["vllm_ms"] for r in report.results["one step"]} == {3 * 700}
    assert report.config["peer"] == 3
    json.loads(report.to_json())


def test_too_many_logits_are_refused() -> None:
    with pytest.raises(ConfigError, match="ask for fewer"):
        SamplerOptions(num_rows=10**6, vocab_size=10**6)


@pytest.mark.parametrize("text", ["import nothing_of_this_name", None])
def test_a_peer_that_does_not_run_is_an_error(tmp_path: Path, text: str | None) -> None:
    peer = program(tmp_path / "python", text) if text else Path(os.devnull)
    with pytest.raises(ConfigError, match="peer-python"):
        run({}, OPTIONS, peer)
