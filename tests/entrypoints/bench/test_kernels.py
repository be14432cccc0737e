"""`octavo bench kernels` and `step` on a tiny model with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.entrypoints.bench import kernels
from octavo.entrypoints.bench.costs import StepShape, total
from octavo.entrypoints.bench.kernels import FORMATS, KernelOptions, run_kernels, run_steps
from octavo.entrypoints.bench.step_lab import step_lab
from octavo.errors import ConfigError
from octavo.kernels.cpu_ceilings import Ceilings, measure_ceilings
from tests.entrypoints.cli.command import Command
from tests.tiny_model import write_tiny_llama

CEILINGS = Ceilings(bandwidth=1e9, peak={"f32": 1e9, "bf16": 2e9, "int8": 4e9})
OPTIONS = KernelOptions(
    formats=("float32", "bfloat16", "int8", "int4"),
    batch_sizes=(2,),
    context_len=20,
    prefill_len=24,
    repeats=2,
)

# write_tiny_llama: width 32, hidden 48, 4 heads of 8 over 2, 2 layers, 257 tokens, tied.
LAYER_WEIGHTS = 64 * 32 + 32 * 32 + 96 * 32 + 32 * 48
HEAD_WEIGHTS = 257 * 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(autouse=True)
def known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "measure_ceilings", lambda num_threads: CEILINGS)


def config_of(model: Path) -> EngineConfig:
    return EngineConfig.from_flat(model=str(model), load_format="dummy", num_threads=1)


def test_a_whole_model_by_hand(model: Path) -> None:
    shape = StepShape(query_lens=(5, 1), seq_lens=(5, 33), num_logit_rows=2)
    with step_lab(config_of(model), [shape]) as lab:
        cost = total(lab.counted, shape)
    pairs = 1 + 2 + 3 + 4 + 5 + 33
    products = 2 * (2 * 6 * LAYER_WEIGHTS + 4 * pairs * 4 * 8) + 2 * 2 * HEAD_WEIGHTS
    assert cost.flops == {"f32": products}
    # Packed in panels of 32 columns: 257 tokens take 288 rows, of which 6 are gathered, too.
    table = 288 * 32 * 4
    kv_per_token = 2 * 2 * 8 * 4
    weights = 2 * LAYER_WEIGHTS * 4 + table + 6 * table // 257
    assert cost.bytes == weights + 2 * kv_per_token * (6 + 5 + 33)


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_quantized_weights_are_multiplied_as_integers(model: Path, format: str) -> None:
    shape = StepShape.decode(2, 20)
    config = EngineConfig.from_flat(
        model=str(model), load_format="dummy", num_threads=1, quantization=format
    )
    with step_lab(config, [shape]) as lab:
        flops = total(lab.counted, shape).flops
    assert flops == {
        "f32": 2 * 4 * 2 * 20 * 4 * 8,  # attention, in two layers
        "int8": 2 * 2 * (2 * LAYER_WEIGHTS + HEAD_WEIGHTS),
    }


def test_steps(model: Path) -> None:
    report = run_steps(config_of(model), OPTIONS)
    rows = report.results["steps"]
    assert [(r["format"], r["step"]) for r in rows] == [
        (f, s) for f in OPTIONS.formats for s in ("decode n=2", "prefill 24")
    ]
    for row in rows:
        seconds = row["ms"] / 1e3
        if peak := {"float32": 1e9, "bfloat16": 2e9}.get(row["format"]):
            shortest = max(row["mb"] * 1e6 / 1e9, row["gop"] * 1e9 / peak)
            assert row["fraction"] == pytest.approx(shortest / seconds)
        assert row["gb_per_s"] == pytest.approx(row["mb"] / row["ms"])
    by_name = {(r["format"], r["step"]): r for r in rows}
    assert by_name["float32", "prefill 24"]["bound"] == "compute"
    assert by_name["float32", "decode n=2"]["bound"] == "memory"
    assert by_name["float32", "decode n=2"]["mb"] > 1.9 * by_name["bfloat16", "decode n=2"]["mb"]
    assert len(report.results["ceilings"]) == 16
    assert report.results["ceilings"][0] == {
        "format": "float32",
        "step": "decode n=2",
        "when": "before",
        "read_gb_per_s": 1.0,
        "f32_gop_per_s": 1.0,
        "bf16_gop_per_s": 2.0,
        "int8_gop_per_s": 4.0,
    }


def test_ops_add_up_to_the_step(model: Path) -> None:
    steps = run_steps(config_of(model), OPTIONS).results["steps"]
    found = run_kernels(config_of(model), OPTIONS).results
    ops = found["ops"]
    of = [(row["format"], row["step"]) for row in found["program overhead"]]
    assert of == [(step["format"], step["step"]) for step in steps]
    for step in steps:
        own = [o for o in ops if (o["format"], o["step"]) == (step["format"], step["step"])]
        assert sum(o["gop"] for o in own) == pytest.approx(step["gop"])
        assert sum(o["mb"] for o in own if o["fraction"]) == pytest.approx(step["mb"])
        counts = {(o["op"], o["of"]): o["count"] for o in own}
        assert counts["rms_norm", "32"] == 5
        assert counts["linear_add", "32×32"] == counts["linear_add", "32×48"] == 2
        assert counts["attention", "4/2 heads of 8"] == counts["qkv_rope_store", "64×32"] == 2
        assert own[-1]["op"] == "wait"


def test_formats_and_lengths_are_checked(model: Path) -> None:
    with pytest.raises(ConfigError, match="format='int3' must be one of auto, float32"):
        run_steps(config_of(model), KernelOptions(formats=("int3",)))
    with pytest.raises(ConfigError, match="600 tokens of context is more than the model's 512"):
        run_steps(config_of(model), KernelOptions(context_len=600, prefill_len=0))


def test_only_the_cpu_is_timed(model: Path) -> None:
    config = EngineConfig.from_flat(model=str(model), load_format="dummy", device="reference")
    with (
        pytest.raises(ConfigError, match="only the CPU's ops"),
        step_lab(config, [StepShape.decode(1, 1)]),
    ):
        pass


def test_every_format_chooses_options_that_exist(model: Path) -> None:
    for options in FORMATS.values():
        config = EngineConfig.from_flat(model=str(model), **options).model
        assert {name: str(getattr(config, name)) for name in options} == options


def test_the_commands(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    octavo = Command(capsys, monkeypatch)
    common = ["--model", str(model), "--load-format", "dummy", "--batch-size", "1"]
    common += ["--prefill-len", "0", "--repeats", "1", "--format", "float32", "--json"]
    for name, table in (("kernels", "ops"), ("step", "steps")):
        status, out, _ = octavo("bench", name, *common)
        assert status == 0
        report: dict[str, Any] = json.loads(out)
        assert report["benchmark"] == name
        assert {row["step"] for row in report["results"][table]} == {"decode n=1"}


def test_ceilings_are_measured() -> None:
    found = measure_ceilings(1, seconds=0.1)
    assert found.bandwidth > 1e8
    assert set(found.peak) == {"f32", "bf16", "int8"}
    assert all(peak > 1e8 for peak in found.peak.values())
    assert Ceilings(**found.to_json()) == found


def test_mean_ceilings() -> None:
    other = Ceilings(bandwidth=3e9, peak={"f32": 2e9, "bf16": 2e9, "int8": 0.0})
    mean = Ceilings.mean(CEILINGS, other)
    assert mean == Ceilings(bandwidth=2e9, peak={"f32": 1.5e9, "bf16": 2e9, "int8": 2e9})
