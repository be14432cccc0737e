"""Scheduling never changes the answer: ids and log probabilities to the bit, in every condition.

Each probe is answered once the plain way (alone, cold, one thread, one step at a time, the whole
prompt at once). Engines that differ in one option, or in all, then answer it alone, with a cold and
a hot prefix cache, and among 1, 6 and 31 other requests that come and go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.contracts.messages import RequestOutput
from octavo.contracts.sampling_params import SamplingParams
from tests.e2e.lab import TINY_VOCAB, Answer, Ask, Lab, answers_of, make_company, write_tiny

DTYPES = ("float32", "bfloat16")
PLAIN: dict[str, Any] = {
    "num_threads": 1,
    "pipeline_depth": 1,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 64,
    "enable_prefix_caching": False,
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A model and what is asked of it.

    Attributes:
        probes: the requests whose answers are compared.
        lengths: of the other requests' prompts.
        max_tokens: of the other requests.
        small_pool: a number of blocks that holds any probe.
        num_steps_to_full: tokens that a request which outgrows it makes before it takes a block.
        never_preempted: names of probes that a window lets go of all but a few blocks.
    """

    path: Path
    vocab_size: int
    max_model_len: int
    probes: Sequence[Ask]
    lengths: Sequence[int]
    max_tokens: int
    small_pool: int
    num_steps_to_full: int
    never_preempted: frozenset[str] = frozenset()

    def lab(self, dtype: str, **options: Any) -> Lab:
        return Lab(self.path, dtype=dtype, max_model_len=self.max_model_len, **options)

    @property
    def first_alone(self) -> Setup:
        """With the first probe alone: steps of several threads are slow on a busy machine."""
        return replace(self, probes=self.probes[:1])

    def company(self, count: int) -> list[Ask]:
        return make_company(
            count,
            self.vocab_size,
            lengths=self.lengths,
            max_tokens=self.max_tokens,
            num_steps=self.max_tokens,
        )


Reference = Mapping[str, list[Answer]]


def reference_of(setup: Setup, lab: Lab) -> Reference:
    """The plain answers. One of n is as alone."""
    first: dict[str, list[Answer]] = {}
    for probe in setup.probes:
        lab.forget()
        first[probe.name] = answers_of(lab.run([probe])[probe.name])
        if probe.params.n > 1:
            lab.forget()
            one = replace(probe, params=msgspec.structs.replace(probe.params, n=1))
            assert answers_of(lab.run([one])[probe.name]) == first[probe.name][:1]
    return first


def check(found: Mapping[str, RequestOutput], reference: Reference, condition: str) -> None:
    for name, expected in reference.items():
        if name not in found:
            continue
        answers = answers_of(found[name])
        differences = [a.difference(e) for a, e in zip(answers, expected)]
        assert not any(differences), f"{name}, {condition}: {differences}"
        assert answers == expected


def check_alone(setup: Setup, reference: Reference, lab: Lab) -> None:
    """Each probe with an empty and with a hot prefix cache, and beside one other request."""
    caches = lab.engine.config.cache.enable_prefix_caching
    for probe in setup.probes:
        lab.forget()
        for heat in ("cold", "hot"):
            outputs = lab.run([probe])
            check(outputs, reference, f"alone, {heat}")
            full_blocks = (len(outputs[probe.name].prompt_token_ids) - 1) // 16 * 16
            expected = full_blocks if caches and heat == "hot" else 0
            assert outputs[probe.name].num_cached_tokens == expected
        check(lab.run([probe, *setup.company(1)]), reference, "among 2")


def check_batches(setup: Setup, reference: Reference, lab: Lab) -> None:
    """All probes among others, with an empty and with a hot prefix cache."""
    lab.forget()
    check(lab.run(arriving(setup, 7)), reference, "among 7")
    lab.forget()
    check(lab.run(arriving(setup, 32)), reference, "among 32")
    check(lab.run(arriving(setup, 32)), reference, "among 32, hot")


def arriving(setup: Setup, size: int) -> list[Ask]:
    """The probes, one after another, within other requests."""
    probes = [replace(p, step=3 * i + 1) for i, p in enumerate(setup.probes)]
    return [*probes, *setup.company(size - len(probes))]


def check_preemptions(setup: Setup, reference: Reference, lab: Lab) -> None:
    """Each probe comes last into a pool that those before it outgrow soon: it loses its blocks."""
    pool = lab.engine.stats().num_blocks
    scheduler = lab.engine.config.scheduler
    rng = np.random.default_rng(2)
    for probe in setup.probes:
        lab.forget()
        num_growers = (pool - _num_blocks(probe)) // 2
        length = 32 - setup.num_steps_to_full
        params = SamplingParams(
            temperature=0.0, max_tokens=setup.num_steps_to_full + 8, ignore_eos=True
        )
        growers = [
            Ask(
                name=f"other-{i}",
                prompt=rng.integers(10, setup.vocab_size, length).tolist(),
                params=params,
            )
            for i in range(num_growers)
        ]
        step = 1 + num_growers * length // scheduler.max_num_batched_tokens  # all are decoding
        check(lab.run([*growers, replace(probe, step=step)]), reference, "preempted")
    assert lab.engine.stats().num_preemptions > 0
    kept = {p.name for p in setup.probes} - {n.partition("_")[2] or n for n in lab.preempted.counts}
    assert kept <= setup.never_preempted


def _num_blocks(ask: Ask) -> int:
    """Of its prompt, and of the copies that its forks take."""
    return -(-len(ask.prompt) // 16) + ask.params.n - 1


# -------------------------------------------------------------------- tiny models

TINY_OPTIONS: dict[str, dict[str, Any]] = {
    "prefix-cache": {},
    "budget-16": {"max_num_batched_tokens": 16},
    "budget-97": {"max_num_batched_tokens": 97},
    "threshold-7": {"long_prefill_token_threshold": 7},
    "threads-2": {"num_threads": 2},
    "threads-3": {"num_threads": 3},
    "depth-2": {"pipeline_depth": 2},
    "depth-3": {"pipeline_depth": 3, "enable_prefix_caching": False},
    "all": {
        "max_num_batched_tokens": 97,
        "long_prefill_token_threshold": 7,
        "num_threads": 2,
        "pipeline_depth": 3,
        "max_num_seqs": 9,
    },
}
SMALL_OPTIONS: dict[str, dict[str, Any]] = {
    "small-pool": {},
    "small-pool-depth-2": {"pipeline_depth": 2},
    "small-pool-no-cache": {"enable_prefix_caching": False, "max_num_batched_tokens": 97},
    "small-pool-all": {
        "pipeline_depth": 3,
        "max_num_batched_tokens": 97,
        "long_prefill_token_threshold": 40,
        "num_threads": 2,
    },
}
TINY_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 37,
        "num_key_value_heads": 1,
    },
}


def tiny_probes() -> list[Ask]:
    rng = np.random.default_rng(1)

    def probe(name: str, length: int, max_tokens: int, **values: Any) -> Ask:
        prompt = rng.integers(10, TINY_VOCAB - 1, length).tolist()
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **values)
        return Ask(name=name, prompt=prompt, params=params)

    return [
        probe("greedy", 41, 18, temperature=0.0, logprobs=-1),
        probe("one-token", 1, 20, temperature=0.0, logprobs=3),
        probe("long", 275, 14, temperature=0.9, seed=5, min_p=0.01, logprobs=3),
        probe("filtered", 33, 18, temperature=0.8, seed=42, top_p=0.9, top_k=20, logprobs=0),
        probe("three", 48, 14, temperature=1.0, seed=7, n=3, logprobs=3),
    ]


def tiny_run() -> dict[str, Any]:
    """What is asked of a tiny model, and its sizes: the fields of `Setup` beside its files."""
    return {
        "vocab_size": TINY_VOCAB,
        "max_model_len": 320,
        "probes": tiny_probes(),
        "lengths": [1, 5, 15, 16, 17, 40, 64, 100],
        "max_tokens": 10,
        "small_pool": 25,
        "num_steps_to_full": 10,
    }


@pytest.fixture(scope="module", params=TINY_MODELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp(request.param)
    return Setup(
        path=write_tiny(folder, **TINY_MODELS[request.param]),
        **tiny_run(),
        never_preempted=frozenset({"long"} if request.param == "mistral" else ()),
    )


@pytest.fixture(scope="module", params=DTYPES)
def tiny_reference(request: pytest.FixtureRequest, tiny: Setup) -> tuple[str, Reference]:
    with closing(tiny.lab(request.param, **PLAIN)) as lab:
        reference = reference_of(tiny, lab)
    texts = {a.tokens for answers in reference.values() for a in answers}
    assert len(texts) == 7
    return request.param, reference


@pytest.mark.parametrize("options", TINY_OPTIONS.values(), ids=TINY_OPTIONS)
def test_tiny(tiny: Setup, tiny_reference: tuple[str, Reference], options: dict[str, Any]) -> None:
    dtype, reference = tiny_reference
    with closing(tiny.lab(dtype, **{"num_threads": 1} | options)) as lab:
        one_thread = lab.engine.config.device.num_threads == 1
        check_alone(tiny if one_thread else tiny.first_alone, reference, lab)
        check_batches(tiny, reference, lab)


@pytest.mark.parametrize("options", SMALL_OPTIONS.values(), ids=SMALL_OPTIONS)
def test_tiny_preempted(
    tiny: Setup, tiny_reference: tuple[str, Reference], options: dict[str, Any]
) -> None:
    dtype, reference = tiny_reference
    options = {"num_threads": 1, "num_gpu_blocks_override": tiny.small_pool} | options
    with closing(tiny.lab(dtype, **options)) as lab:
        check_preemptions(tiny, reference, lab)


# -------------------------------------------------------------------- the default model

SMOLLM2_OPTIONS: dict[int, dict[str, Any]] = {
    7: {
        "max_num_batched_tokens": 16,
        "long_prefill_token_threshold": 7,
        "num_threads": 2,
        "pipeline_depth": 2,
    },
    32: {"max_num_batched_tokens": 97, "num_threads": 3},
}
"""How many requests there are at once → options."""


def smollm2_probes() -> list[Ask]:
    rng = np.random.default_rng(3)

    def probe(name: str, length: int, max_tokens: int, **values: Any) -> Ask:
        prompt = rng.integers(100, 49152, length).tolist()
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=5, **values)
        return Ask(name=name, prompt=prompt, params=params)

    return [
        probe("greedy", 33, 8, temperature=0.0),
        probe("filtered", 17, 8, temperature=0.8, seed=42, top_p=0.9, top_k=20),
        probe("three", 32, 6, temperature=1.0, seed=7, n=3),
    ]


def smollm2_setup(path: Path) -> Setup:
    return Setup(
        path=path,
        vocab_size=49152,
        max_model_len=128,
        probes=smollm2_probes(),
        lengths=[1, 5, 15, 16, 17, 25],
        max_tokens=6,
        small_pool=24,
        num_steps_to_full=3,
    )


@pytest.mark.model
@pytest.mark.parametrize("dtype", [*DTYPES, "auto"])  # auto: Q4_1 and Q8_0, as they are stored
def test_smollm2(smollm2_path: Path, dtype: str) -> None:
    setup = smollm2_setup(smollm2_path)
    plain = PLAIN | {"enable_prefix_caching": True, "num_gpu_blocks_override": setup.small_pool}
    with closing(setup.lab(dtype, **plain)) as lab:
        reference = reference_of(setup, lab)
        check_alone(setup, reference, lab)
        check_preemptions(setup, reference, lab)
    for size, options in SMOLLM2_OPTIONS.items():
        with closing(setup.lab(dtype, **options)) as lab:
            check(lab.run(arriving(setup, size)), reference, f"among {size}")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [*DTYPES, "auto"])
def test_smollm2_in_every_batch(smollm2_path: Path, dtype: str, quantization: str) -> None:
    """Every number of threads with every number of requests, in chunks of several sizes."""
    setup = smollm2_setup(smollm2_path)
    weights = {} if quantization == "none" else {"quantization": quantization}
    with closing(setup.lab(dtype, **PLAIN | weights)) as lab:
        reference = reference_of(setup, lab)
    for options in (*SMOLLM2_OPTIONS.values(), {}):
        for num_threads in (1, 2, 3):
            with closing(
                setup.lab(dtype, **options | weights | {"num_threads": num_threads})
            ) as lab:
                check_alone(setup, reference, lab)
                check_batches(setup, reference, lab)
