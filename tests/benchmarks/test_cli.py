"""A whole session on a tiny model, with Octavo itself as the only contestant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.side_by_side import cli
from benchmarks.side_by_side.contestants import CONTESTANTS, PAIRS
from benchmarks.side_by_side.workloads import Workload
from octavo.kernels.cpu_ceilings import Ceilings
from tests.tiny_model import write_tiny_llama

SMALL = Workload(name="small", num_prompts=2, input_len=3, output_len=5)
CEILINGS = Ceilings(bandwidth=1e9, peak={"f32": 1e9, "bf16": 1e9, "int8": 1e9})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return write_tiny_llama(folder)


def test_a_session(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "WORKLOADS", {"small": SMALL})
    monkeypatch.setattr(cli, "measure_ceilings", lambda num_threads: CEILINGS)
    output = tmp_path / "results.json"
    common = ["--model", str(model), "--cache", str(tmp_path / "cache"), "--num-threads", "1"]
    chosen = ["--contestants", "Octavo bf16", "Octavo int8", "--workloads", "small"]
    assert cli.main([*common, *chosen, "--rounds", "2", "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert "| small |" in out
    data = json.loads(output.read_text())
    assert data["failed"] == {}
    assert [r["contestant"] for r in data["runs"]] == [
        *("Octavo bf16", "Octavo int8"),
        *("Octavo int8", "Octavo bf16"),
    ]
    assert set(data["versions"]) == {"Octavo bf16", "Octavo int8"}
    # 5 steps of 2 requests: products with every weight of the layers, and with the head.
    row = data["summary"][0]
    assert 0 < row["roofline_fraction"]["Octavo bf16"] < 1


def test_costs_are_counted_once_per_format(model: Path) -> None:
    weights = {"bf16 folder": model, "bf16 gguf": model, "file": model}
    chosen = {n: CONTESTANTS[n] for n in ("Octavo bf16", "vLLM bf16", "Octavo int8")}
    costs = cli.count_costs(chosen, {"small": SMALL}, weights)
    assert costs["Octavo bf16"] is costs["vLLM bf16"]
    bf16, int8 = costs["Octavo bf16"]["small"], costs["Octavo int8"]["small"]
    assert len(bf16) == len(int8) == 5
    assert [c.total_flops for c in bf16] == [c.total_flops for c in int8]
    assert set(bf16[0].flops) == {"bf16"}
    assert "int8" in int8[0].flops


@pytest.mark.parametrize(
    "wrong", [["--rounds", "0"], ["--workloads", "nap"], ["--contestants", "x"]]
)
def test_a_wrong_command_line(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(wrong)
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_pairs_are_of_contestants() -> None:
    assert {name for pair in PAIRS for name in pair} == set(CONTESTANTS)
