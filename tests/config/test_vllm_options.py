"""vLLM's options: taken where they ask for nothing, else refused with the way to go."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig, section_fields
from octavo.config.vllm_options import (
    VLLM_ENGINE_OPTIONS,
    VLLM_SERVER_OPTIONS,
    VllmOption,
    check_vllm_options,
    without_vllm_options,
)
from octavo.entrypoints.openai.config import ServerConfig
from octavo.errors import ConfigError

ALL = VLLM_ENGINE_OPTIONS | VLLM_SERVER_OPTIONS
PAGE = (Path(__file__).parents[2] / "docs" / "from-vllm.md").read_text(encoding="utf-8")


def test_the_usual_script_runs() -> None:
    usual: dict[str, Any] = {
        "tensor_parallel_size": 1,
        "trust_remote_code": True,
        "enforce_eager": True,
        "enable_chunked_prefill": True,
        "swap_space": 0,
        "disable_log_stats": True,
        "limit_mm_per_prompt": {},
        "speculative_config": None,
    }
    ours = {"model": "x", "max_num_seqs": 3, "gpu_memory_utilization": 0.5}
    assert EngineConfig.from_flat(**usual, **ours) == EngineConfig.from_flat(**ours)
    assert without_vllm_options({**usual, **ours, "unknown": 1}) == {**ours, "unknown": 1}


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("tensor_parallel_size", 2, "tensor_parallel_size=2 is not supported: a model runs in one"),
        ("tensor_parallel_size", True, "=True is not supported"),
        ("tensor_parallel_size", "1", "='1' is not supported"),
        ("enable_chunked_prefill", False, "max_num_batched_tokens"),
        ("speculative_config", {"method": "ngram"}, "speculative decoding is not supported yet"),
        ("pooler_config", {"pooling_type": "MEAN"}, "pooling_type"),
        ("block_size", 32, "a KV block has 16 tokens"),
        ("hf_overrides", {"a": 1}, "config.json"),
    ],
)
def test_what_asks_for_something_is_refused(option: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flat(**{option: value})
    assert says in str(caught.value)
    assert str(caught.value).endswith("; leave it out")


@pytest.mark.parametrize("name", ALL)
def test_each(name: str) -> None:
    option = ALL[name]
    for value in option.neutral:
        check_vllm_options({name: value})
    with pytest.raises(ConfigError, match=name):
        check_vllm_options({name: "something else"})


def test_kinds() -> None:
    kinds = [VllmOption(n, "") for n in ((1,), (False, True), (0.5,), ("a",), ({},), ())]
    assert [option.kind for option in kinds] == [int, bool, float, str, str, str]


def test_they_are_no_options_of_ours() -> None:
    ours = {f.name for section in fields(EngineConfig) for f in section_fields(section.name)}
    ours |= {f.name for f in fields(ServerConfig)}
    assert not ours & ALL.keys()


def test_the_page_has_them() -> None:
    """Each with the values that are taken and the reason for the rest."""
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in PAGE.splitlines()]
    rows = {c[0].strip("`"): c[1:] for c in cells if len(c) == 3 and c[0].startswith("`")}
    assert rows.keys() == ALL.keys()
    for name, option in ALL.items():
        values, instead = rows[name]
        assert instead == option.instead
        taken = re.findall(r"`([^`]*)`", values)
        assert taken == [repr(v).replace("'", '"') for v in option.neutral if type(v) is not float]
