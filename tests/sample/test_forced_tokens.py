"""Tokens that are not for the model to choose: recorded answers, and the end of reasoning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.messages import Thinking
from octavo.contracts.sampling_params import SamplingParams
from octavo.kernels.ops import Backend
from octavo.sample.forced_tokens import ForcedTokens, ThinkingBudget
from tests.sample.lab import (
    NUM_ROWS,
    VOCAB,
    NumpyBackend,
    batch_of,
    edit,
    make_sampler,
    new,
    random_logits,
    run,
)
from tests.sample.test_custom import only

START, END = [1, 2], [3, 4, 5]


def forced(
    params: dict[str, Any], prompt: list[int], output: list[int], **more: Any
) -> list[int | None]:
    """The token forced in each logits row of a request with such a context."""
    drafts = more.pop("drafts", [])
    request = new(
        SamplingParams(seed=0, **params),
        prompt=prompt,
        output=output,
        thinking=Thinking(START, END),
    )
    logits = random_logits(0, 1 + len(drafts))
    found = edit(ForcedTokens(NUM_ROWS), NumpyBackend(), {2: request}, logits, {2: drafts})
    tokens: list[int | None] = []
    for before, after in zip(logits, found):
        allowed = np.flatnonzero(after > -np.inf)
        tokens.append(int(allowed[0]) if len(allowed) == 1 else None)
        assert tokens[-1] is not None or (before == after).all()
    return tokens


@pytest.mark.parametrize(
    ("budget", "prompt", "output", "token"),
    [
        (2, [9], [9, 9, 9, 9], None),  # no reasoning
        (2, [9], [1, 2], None),
        (2, [9], [1, 2, 8], None),
        (2, [9], [1, 2, 8, 8], 3),
        (2, [9], [1, 2, 8, 8, 3], 4),
        (2, [9], [1, 2, 8, 8, 3, 4], 5),
        (2, [9], [1, 2, 8, 8, 3, 4, 5], None),
        (2, [9], [1, 2, 8, 3, 4, 5, 8, 8], None),  # ended by itself
        (2, [9], [1, 2, 8, 3], 4),  # the model has begun to end it
        (2, [9], [1, 2, 3, 3, 4], 5),
        (2, [9], [1, 2, 8, 3, 4, 5, 1, 2, 8, 8], 3),  # every time anew
        (0, [9], [1, 2], 3),
        (0, [9, 1, 2], [], 3),  # the template has begun it
        (1, [9, 1, 2, 8, 8, 8], [8], 3),  # what the prompt holds does not count
        (1, [9, 1, 2, 8, 8, 8], [], None),
        (1, [1, 2, 8, 3, 4, 5], [8, 8], None),  # a turn that is over
    ],
)
def test_thinking_budget(
    budget: int, prompt: list[int], output: list[int], token: int | None
) -> None:
    assert forced({"thinking_token_budget": budget}, prompt, output) == [token]


def test_thinking_behind_drafts() -> None:
    tokens = forced({"thinking_token_budget": 2}, [9], [1, 2, 8], drafts=[8, 3, 4, 5])
    assert tokens == [None, 3, 4, 5, None]


def test_drafts_are_only_asked_about() -> None:
    """Whether they end the reasoning or not, what follows in earnest is not read as theirs."""
    context = np.array([9, 1, 2, 8, 8], dtype=np.int32)
    drafts = np.array(END, dtype=np.int32)
    budget = ThinkingBudget(Thinking(START, END), 2, 1)
    assert budget.forced(context[:4], drafts) is None
    assert budget.forced(context, drafts[:0]) == END[0]


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(0, 5))
def test_no_reasoning_is_longer_than_its_budget(wishes: list[int], budget: int) -> None:
    """Whatever the model wants to say; and read token by token or at once is the same."""
    state = ThinkingBudget(Thinking(START, END), budget, 0)
    output: list[int] = []
    for wish in wishes:
        context = np.array(output, dtype=np.int32)
        token = state.forced(context, context[:0])
        assert token == ThinkingBudget(Thinking(START, END), budget, 0).forced(context, context[:0])
        output.append(wish if token is None else token)
    thought = None
    for i in range(len(output) + 1):
        if thought is None and output[:i][-2:] == START:
            thought = i
        elif thought is not None and output[thought:i][-3:] == END:
            thought = None
        if thought is not None:
            assert i - thought <= budget + len(END)


def test_a_trace_is_followed() -> None:
    params = {"trace_decode_token_ids": [7, 8, 9]}
    assert forced(params, [1], []) == [7]
    assert forced(params, [1], [7, 8]) == [9]
    assert forced(params, [1], [7, 8, 9]) == [None]
    assert forced(params, [1], [7], drafts=[8, 8, 8]) == [8, 9, None, None]
    assert forced({**params, "thinking_token_budget": 0}, [1, 2], []) == [7]


def test_over_all_else(backend: Backend) -> None:
    """Neither masks nor penalties keep it away; log probabilities are the model's own."""
    values = {"allowed_token_ids": [5], "logit_bias": {7: -100}, "repetition_penalty": 3.0}
    requests = {
        0: new(SamplingParams(seed=1, logprobs=0, trace_decode_token_ids=[7], **values)),
        1: new(SamplingParams(temperature=0, seed=1, trace_decode_token_ids=[40])),
        2: new(SamplingParams(seed=1, logprobs=0)),
    }
    logits = random_logits(1, 3)
    sampled = run(backend, requests, logits)
    assert sampled.token_ids[:2] == [7, 40]
    assert not sampled.failed
    x = logits[0].astype(np.float64)
    assert sampled.logprobs[0].logprobs[0, 0] == pytest.approx(
        x[7] - np.log(np.exp(x - x.max()).sum()) - x.max(), abs=1e-5
    )
    assert VOCAB > 40


@pytest.mark.parametrize(("allowed", "token"), [([3, 7], 3), ([7], 7)])
def test_what_a_grammar_forbids_is_not_forced(allowed: list[int], token: int) -> None:
    params = SamplingParams(temperature=0, seed=0, thinking_token_budget=1)
    requests = {
        0: new(params, prompt=[9], output=[1, 2, 8], thinking=Thinking(START, END)),
    }
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, [7, 30]] = 5.0, 9.0
    sampler = make_sampler(NumpyBackend(), requests)
    batch = replace(batch_of(requests), grammar=only(*allowed))
    assert sampler.sample(logits, batch).token_ids == [token]
