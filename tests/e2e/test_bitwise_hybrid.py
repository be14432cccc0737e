"""Models whose layers see all tokens or a window hold the same promise: groups of both kinds, with
soft caps (Gemma 2) and norms over heads and two ropes (Gemma 3)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from octavo.contracts.kv_spec import SlidingWindowSpec
from tests.e2e.lab import TINY_VOCAB, write_tiny
from tests.e2e.test_bitwise import (
    DTYPES,
    PLAIN,
    Reference,
    Setup,
    check,
    check_alone,
    check_batches,
    reference_of,
    tiny_probes,
)

FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 9,
    "sliding_window": 37,
}
MODELS: dict[str, dict[str, Any]] = {
    "gemma2": GEMMA
    | {
        "architectures": ["Gemma2ForCausalLM"],
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 8.0,
    },
    "gemma3": GEMMA
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
        "num_key_value_heads": 1,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_local_base_freq": 100.0,
    },
}
OPTIONS: dict[str, dict[str, Any]] = {
    "prefix-cache": {},
    "all": {
        "max_num_batched_tokens": 97,
        "long_prefill_token_threshold": 7,
        "num_threads": 2,
        "pipeline_depth": 3,
        "max_num_seqs": 9,
    },
}
SMALL_POOL = 90
"""Blocks that hold the longest probe, and a few other requests beside it."""


@pytest.fixture(scope="module", params=MODELS)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(
        path=write_tiny(tmp_path_factory.mktemp(request.param), **MODELS[request.param]),
        vocab_size=TINY_VOCAB,
        max_model_len=320,
        probes=tiny_probes(),
        lengths=[1, 5, 15, 16, 17, 40, 64, 100],
        max_tokens=16,
        small_pool=SMALL_POOL,
        num_steps_to_full=10,
    )


@pytest.fixture(scope="module", params=DTYPES)
def reference(request: pytest.FixtureRequest, hybrid: Setup) -> tuple[str, Reference]:
    with closing(hybrid.lab(request.param, **PLAIN)) as lab:
        specs = [group.spec for group in lab.engine.info.kv_cache_config.groups]
        assert {isinstance(spec, SlidingWindowSpec) for spec in specs} == {True, False}
        reference = reference_of(hybrid, lab)
    assert len({a.tokens for answers in reference.values() for a in answers}) == 7
    return request.param, reference


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_hybrid(hybrid: Setup, reference: tuple[str, Reference], options: dict[str, Any]) -> None:
    dtype, expected = reference
    with closing(hybrid.lab(dtype, **{"num_threads": 1} | options)) as lab:
        one_thread = lab.engine.config.device.num_threads == 1
        check_alone(hybrid if one_thread else hybrid.first_alone, expected, lab)
        check_batches(hybrid, expected, lab)


def test_preempted(hybrid: Setup, reference: tuple[str, Reference]) -> None:
    """Among more requests than the pool holds."""
    dtype, expected = reference
    options = {"num_threads": 3, "num_gpu_blocks_override": hybrid.small_pool}
    with closing(hybrid.lab(dtype, **options)) as lab:
        check_batches(hybrid, expected, lab)
        assert lab.engine.stats().num_preemptions > 0


def test_shared_prefixes(hybrid: Setup, reference: tuple[str, Reference]) -> None:
    """A prefix of another prompt comes from the cache in all groups, as far as all of them still
    have what a window needs there, and says the same as a cold one."""
    dtype, _ = reference
    long = next(p for p in hybrid.probes if p.name == "long")
    asks = [
        replace(long, name=f"first-{n}", prompt=[*long.prompt[:n], 7, 8, 9])
        for n in (15, 40, 100, 133, 272)
    ]
    with closing(hybrid.lab(dtype, **PLAIN)) as lab:
        cold = reference_of(replace(hybrid, probes=asks), lab)
    with closing(hybrid.lab(dtype, num_threads=1, max_num_batched_tokens=64)) as lab:
        lab.run([long])
        for n, ask in zip((15, 40, 100, 133, 272), asks):
            outputs = lab.run([ask])
            check(outputs, cold, "behind a longer prompt")
            assert outputs[ask.name].num_cached_tokens == n // 16 * 16
