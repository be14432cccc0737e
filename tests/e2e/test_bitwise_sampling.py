"""Ways to choose a token never meet: each sampling field, and many together, give a request the
same answer alone and in a batch, in chunks, with steps in flight, preempted, and on any number of
threads; to the bit, log probabilities of the prompt included."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.contracts.messages import Logprob, RequestOutput
from octavo.contracts.sampling_params import SamplingParams
from tests.e2e.lab import TINY_VOCAB, Answer, Ask, Lab, answers_of


def lower_what_came(prompt: list[int], output: list[int], logits: np.ndarray) -> None:
    """A processor of a request."""
    logits[output[-3:]] -= 4.0
    logits[len(prompt)] += 1.0


ENGINE = {
    "logits_processors": ["tests.sample.processors:Shift", "tests.sample.processors:Sharpen"],
    "max_model_len": 128,
    "reasoning_start_str": "F",
    "reasoning_end_str": "GHI",
}
FIELDS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.8},
    "bias": {"logit_bias": {"65": 2.5, "66": -100, "10": 1.25}},
    "allowed": {"allowed_token_ids": list(range(60, 250, 3))},
    "bad-words": {"bad_words": ["A", "zz", "\x01\x02\x03", "\n"]},
    "processor": {"extra_args": {"shift": 3.5, "sharpen": True}},
    "callable": {"logits_processors": [lower_what_came]},
    "trace": {"trace_decode_token_ids": [70, 71, 200]},
    "thinking": {"thinking_token_budget": 4},
    "stuck": {"repetition_detection": {"max_pattern_size": 2, "min_count": 3}},
    "regex": {"stop_regex": "[a-f].?[A-Z]"},
    "listed": {"logprob_token_ids": [1, 70]},
    "prompt-listed": {"prompt_logprob_token_ids": [9], "prompt_logprob_start": 1},
    "prompt": {"prompt_logprobs": 2},
    "prompt-all": {"prompt_logprobs": -1},
}
BASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "drawn": {"temperature": 0.9, "top_p": 0.95, "seed": 7, "logprobs": 1},
    "filtered": {"temperature": 1.3, "top_k": 30, "min_p": 0.01, "seed": -5},
}
MAX_TOKENS = 24
Reference = Mapping[str, tuple[list[Answer], list[dict[int, Logprob] | None] | None]]


def asks() -> list[Ask]:
    """Every field with greedy and with drawn tokens, pairs of fields, all of them, and n = 3."""
    names = [n for n in FIELDS if n != "prompt-all"]
    chosen: dict[str, dict[str, Any]] = {"plain": {}}
    chosen |= {name: FIELDS[name] for name in FIELDS}
    chosen |= {f"{a}+{b}": FIELDS[a] | FIELDS[b] for a, b in zip(names, [*names[2:], *names[:2]])}
    everything = {key: value for name in names for key, value in FIELDS[name].items()}
    chosen |= {"all": everything, "all-stops": everything | {"min_tokens": 9}}
    chosen |= {"three": everything | {"n": 3}}
    rng = np.random.default_rng(4)
    lengths = (1, 16, 23, 33, 40)
    result = []
    for i, (name, values) in enumerate(chosen.items()):
        base = list(BASES)[i % len(BASES)] if "n" not in values else "drawn"
        prompt = rng.integers(0, TINY_VOCAB - 1, lengths[i % len(lengths)]).tolist()
        if "prompt_logprob_start" in values:
            values = values | {"prompt_logprob_start": len(prompt) // 2}
        params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, **BASES[base], **values)
        result.append(Ask(name=f"{name}-{base}", prompt=prompt, params=params))
    return arriving(result)


def arriving(batch: list[Ask]) -> list[Ask]:
    """One after another."""
    return [replace(ask, step=i // 3) for i, ask in enumerate(batch)]


def what_came(output: RequestOutput) -> tuple[list[Answer], list[dict[int, Logprob] | None] | None]:
    return answers_of(output), output.prompt_logprobs


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def reference(request: pytest.FixtureRequest, tiny_path: Path) -> tuple[str, Reference]:
    """Each alone, one after the other, nothing cached, on one thread."""
    options = {"num_threads": 1, "enable_prefix_caching": False, **ENGINE}
    with closing(Lab(tiny_path, dtype=request.param, **options)) as lab:
        found = {ask.name: what_came(lab.run([ask])[ask.name]) for ask in asks()}
    for ask in asks():
        answers, prompt = found[ask.name]
        assert len(answers) == ask.params.n
        assert (prompt is None) == (ask.params.prompt_logprobs is None)
        if prompt is not None:
            assert prompt[0] is None
            first = max(1, ask.params.prompt_logprob_start)
            assert [next(iter(p)) for p in prompt if p] == ask.prompt[first:]
            assert len(prompt) == len(ask.prompt)
    return request.param, found


OPTIONS: dict[str, dict[str, Any]] = {
    "batch": {},
    "budget-16": {"max_num_batched_tokens": 16},
    "depth-3-threads-2": {"pipeline_depth": 3, "num_threads": 2},
    "threshold-7-depth-2": {"long_prefill_token_threshold": 7, "pipeline_depth": 2},
    "small-pool": {"num_gpu_blocks_override": 10},
    "small-pool-depth-2": {
        "num_gpu_blocks_override": 10,
        "pipeline_depth": 2,
        "max_num_batched_tokens": 33,
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_together(
    tiny_path: Path, reference: tuple[str, Reference], options: dict[str, Any]
) -> None:
    dtype, expected = reference
    options = {"num_threads": 1, **ENGINE} | options
    with closing(Lab(tiny_path, dtype=dtype, **options)) as lab:
        # With an empty prefix cache, then with a hot one and others at the end, who are preempted.
        for batch in (asks(), arriving(asks()[::-1])):
            for name, output in lab.run(batch).items():
                answers, prompt = what_came(output)
                differences = [a.difference(e) for a, e in zip(answers, expected[name][0])]
                assert not any(differences), f"{name}: {differences}"
                assert answers == expected[name][0]
                assert prompt == expected[name][1], name
                if prompt is not None:
                    assert output.num_cached_tokens == 0
        if "num_gpu_blocks_override" in options:
            for kind in ("prompt", "repetition", "frequency", "bad-words", "processor", "thinking"):
                assert any(kind in name for name in lab.preempted.counts), kind
