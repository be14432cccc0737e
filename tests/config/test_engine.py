"""EngineConfig: one flat namespace in, checked sections out."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.engine import (
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    MAX_SEED,
    EngineConfig,
    section_fields,
)
from octavo.config.sections import ModelConfig
from octavo.errors import ConfigError

OPTIONS = [f.name for section in fields(EngineConfig) for f in section_fields(section.name)]


def test_defaults_are_valid_and_say_what_they_are() -> None:
    config = EngineConfig.from_flat()
    assert config == EngineConfig()
    assert config.checked() is config
    assert config.scheduler.max_num_seqs == 128
    assert config.scheduler.max_step_tokens == 256
    assert config.cache.enable_prefix_caching


def test_token_budget_of_a_step_grows_with_what_runs_unless_it_is_given() -> None:
    scheduler = EngineConfig.from_flat(max_num_seqs=4).scheduler
    assert [scheduler.token_budget(n) for n in (0, 4)] == [128, 132]
    assert scheduler.max_step_tokens == 132
    scheduler = EngineConfig.from_flat(max_num_seqs=4, max_num_batched_tokens=64).scheduler
    assert {scheduler.token_budget(n) for n in (0, 4)} == {scheduler.max_step_tokens} == {64}


def test_names_are_unique_over_the_sections_and_documented() -> None:
    assert len(OPTIONS) == len(set(OPTIONS))
    for section in fields(EngineConfig):
        for f in section_fields(section.name):
            assert f.metadata["help"], f.name


def test_options_find_their_section() -> None:
    config = EngineConfig.from_flat(
        model="x", dtype="bfloat16", max_num_seqs=3, num_threads=2, gpu_memory_utilization=1
    )
    assert (config.model.model, config.model.dtype) == ("x", "bfloat16")
    assert config.scheduler.max_num_seqs == 3
    assert config.device.num_threads == 2
    assert config.cache.gpu_memory_utilization == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("max_num_seq", "did you mean max_num_seqs?"),
        ("gpu_memory_utilisation", "did you mean gpu_memory_utilization?"),
        ("zzz", "unknown engine option 'zzz'"),
    ],
)
def test_unknown_options(wrong: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flat(**{wrong: 1})
    assert says in str(caught.value)
    assert ("did you mean" in str(caught.value)) == ("did you mean" in says)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_num_seqs", 1),
        ("max_num_seqs", MAX_NUM_SEQS),
        ("max_num_batched_tokens", None),
        ("max_num_batched_tokens", 1),
        ("max_num_batched_tokens", MAX_NUM_BATCHED_TOKENS),
        ("long_prefill_token_threshold", 0),
        ("pipeline_depth", 8),
        ("scheduling_policy", "priority"),
        ("max_model_len", None),
        ("max_model_len", 1),
        ("gpu_memory_utilization", 0.01),
        ("gpu_memory_utilization", 1),
        ("kv_cache_memory_bytes", 1),
        ("num_gpu_blocks_override", 2),
        ("num_threads", 1),
        ("engine_iteration_timeout", 0),
        ("seed", 0),
        ("seed", MAX_SEED),
        ("enable_prefix_caching", False),
        ("load_format", "dummy"),
        ("device", "reference"),
        ("generation_config", "octavo"),
        ("override_generation_config", {}),
        ("override_generation_config", {"temperature": 0, "top_k": 5, "max_new_tokens": 9}),
    ],
)
def test_accepted(option: str, value: Any) -> None:
    config = EngineConfig.from_flat(**{option: value})
    found = [getattr(getattr(config, s.name), option, "absent") for s in fields(config)]
    assert [v for v in found if v != "absent"] == [value]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("model", None, "model=None must be str"),
        ("model", 5, "model=5 must be str"),
        ("tokenizer", 5, "must be str or None"),
        ("dtype", "float16", "must be one of 'auto', 'float32', 'bfloat16'"),
        ("dtype", None, "must be one of"),
        ("dtype", ["float32"], "must be one of"),
        ("load_format", "pickle", "must be one of"),
        ("device", "cuda", "must be one of"),
        ("scheduling_policy", "lifo", "'fcfs', 'priority'"),
        ("generation_config", "vllm", "must be one of"),
        ("override_generation_config", '{"top_k": 5}', "must be dict or None"),
        ("override_generation_config", {"top_q": 1}, "holds 'top_q'; it can hold temperature,"),
        ("override_generation_config", {"eos_token_id": 1}, "holds 'eos_token_id'"),
        ("override_generation_config", {"temperature": 3}, "_config: temperature=3.0 must be in"),
        ("override_generation_config", {"top_k": 0.5}, "top_k=0.5 must be an integer"),
        ("override_generation_config", {"top_p": "1"}, "top_p='1' must be a number"),
        ("override_generation_config", {"max_new_tokens": 0}, "max_tokens=0 must be in"),
        ("seed", -1, "seed=-1 must be in"),
        ("seed", 2**63, "must be in"),
        ("seed", None, "must be int"),
        ("max_model_len", 0, "max_model_len=0 must be in 1…"),
        ("max_model_len", -1, "must be in 1…"),
        ("max_model_len", 1.5, "max_model_len=1.5 must be int or None"),
        ("max_model_len", "64", "max_model_len='64' must be int or None"),
        ("max_model_len", True, "must be int or None"),
        ("max_num_seqs", 0, f"max_num_seqs=0 must be in 1…{MAX_NUM_SEQS}"),
        ("max_num_seqs", MAX_NUM_SEQS + 1, "must be in"),
        pytest.param("max_num_seqs", 10**5000, "max_num_seqs=<a number of", id="huge"),
        ("max_num_seqs", None, "must be int"),
        ("max_num_batched_tokens", 0, "must be in"),
        ("max_num_batched_tokens", MAX_NUM_BATCHED_TOKENS + 1, "must be in"),
        ("long_prefill_token_threshold", -1, "must be in"),
        ("pipeline_depth", 0, "must be in 1…8"),
        ("pipeline_depth", 9, "must be in 1…8"),
        ("gpu_memory_utilization", 0, "must be in (0, 1]"),
        ("gpu_memory_utilization", 1.01, "must be in (0, 1]"),
        ("gpu_memory_utilization", -0.5, "must be in (0, 1]"),
        ("gpu_memory_utilization", math.nan, "gpu_memory_utilization=nan must be in (0, 1]"),
        ("gpu_memory_utilization", "0.5", "must be float or None"),
        ("kv_cache_memory_bytes", 0, "must be in"),
        ("kv_cache_memory_bytes", 2**60, "must be in"),
        ("num_gpu_blocks_override", 1, "must be in 2…"),
        ("num_threads", 0, "must be in 1…1024"),
        ("num_threads", 1025, "must be in 1…1024"),
        ("engine_iteration_timeout", -1, "must be in 0.0…86400.0"),
        ("enable_prefix_caching", 1, "enable_prefix_caching=1 must be bool"),
        ("enable_prefix_caching", "no", "must be bool"),
        ("chat_template", b"x", "must be str or None"),
        ("max_num_seqs", np.zeros(3), "must be int"),
    ],
)
def test_refused(option: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flat(**{option: value})
    assert option in str(caught.value)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_sections_are_frozen_and_keyword_only() -> None:
    config = EngineConfig()
    with pytest.raises(FrozenInstanceError):
        config.model.seed = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        ModelConfig("x")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("asked", "given", "length"), [(None, 8192, 8192), (64, 8192, 64), (64, 64, 64)]
)
def test_resolve_fills_in_the_length(asked: int | None, given: int, length: int) -> None:
    config = EngineConfig.from_flat(max_model_len=asked, max_num_seqs=3)
    resolved = config.resolve(model_max_len=given)
    assert resolved.model.max_model_len == length
    assert replace(resolved, model=config.model) == config
    assert resolved.resolve(model_max_len=given) == resolved


def test_resolve_refuses_more_than_the_model_has() -> None:
    config = EngineConfig.from_flat(max_model_len=65)
    with pytest.raises(ConfigError, match="max_model_len=65 is more than the model's 64 positions"):
        config.resolve(model_max_len=64)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers()),
)


@given(st.dictionaries(st.sampled_from(OPTIONS), ANYTHING, max_size=4))
def test_any_values_either_work_or_are_a_config_error(options: dict[str, Any]) -> None:
    try:
        config = EngineConfig.from_flat(**options)
    except ConfigError as error:
        assert any(name in str(error) for name in options)
        return
    assert config.checked() is config
