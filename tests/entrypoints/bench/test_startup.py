"""The startup benchmark on a tiny model: what a child measures, and what it says when it fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.config.engine import EngineConfig
from octavo.entrypoints.bench.startup import StartupOptions, run
from octavo.errors import ConfigError, OctavoError
from tests.tiny_model import write_tiny_llama

pytest.importorskip("octavo._cpu")


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    write_tiny_llama(tmp_path)
    return EngineConfig.from_flat(
        model=str(tmp_path), load_format="dummy", kv_cache_memory_bytes=1 << 20, num_threads=1
    )


def test_a_row_per_format(config: EngineConfig) -> None:
    report = run(config, StartupOptions(formats=("bfloat16",), repeats=1))
    (row,) = report.results["startup"]
    assert row["format"] == "bfloat16"
    assert min(v for k, v in row.items() if k.endswith("_s")) > 0
    assert row["serve_ready_s"] < row["serve_first_token_s"]
    assert row["weights_mb"] < row["peak_mb"]


def test_what_cannot_start(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="format='int3' must be one of"):
        run(config, StartupOptions(formats=("int3",)))
    broken = replace(config, model=replace(config.model, model=config.model.model + "/nothing"))
    with pytest.raises(OctavoError, match=r"did not start: .*nothing"):
        run(broken, StartupOptions(formats=("auto",), repeats=1))
