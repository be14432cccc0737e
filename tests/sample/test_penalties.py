from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from octavo.contracts.sampling_params import SamplingParams
from octavo.kernels.ops import Backend
from octavo.sample.penalties import Penalties, TokenCounts
from tests.sample.lab import NUM_ROWS, VOCAB, edit, new, random_logits

tokens = st.lists(st.integers(0, 200), max_size=150)


@given(prompt=tokens, pieces=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4))
def test_counts_are_those_of_the_output(prompt: list[int], pieces: list) -> None:
    """However many tokens come at once, and whatever drafts are asked about in between."""
    counts = TokenCounts(np.array(prompt, np.int32), len(prompt))
    output: list[int] = []
    for more, drafts in pieces:
        output += more
        counts.advance(np.array([*prompt, *output], np.int32))
        for extra in (drafts, []):
            ids, values = counts.read(np.array(extra, np.int32))
            assert (ids.dtype, values.dtype) == (np.int32, np.int32)
            expected = dict.fromkeys(prompt, 0) | Counter(output + extra)
            assert len(set(ids.tolist())) == len(ids)
            assert dict(zip(ids.tolist(), values.tolist())) == expected


def test_there_is_room_for_any_number_of_tokens() -> None:
    counts = TokenCounts(np.array([7], np.int32), 1)
    for end in range(1, 301, 13):
        context = np.arange(7, 7 + end, dtype=np.int32)
        counts.advance(context)
        ids, values = counts.read(context[:0])
        assert ids.tolist() == context.tolist()
        assert values.tolist() == [0] + [1] * (end - 1)


def test_the_prompt_may_be_left_out() -> None:
    counts = TokenCounts(np.array([], np.int32), 3)
    counts.advance(np.array([9, 9, 9, 5, 5], np.int32))
    ids, values = counts.read(np.array([], np.int32))
    assert (ids.tolist(), values.tolist()) == ([5], [2])


@settings(max_examples=40, deadline=None)
@given(
    penalty=st.floats(0.0625, 16, width=32),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=20),
)
def test_repetition_is_that_of_transformers(
    backend: Backend, penalty: float, prompt: list[int], output: list[int]
) -> None:
    logits = random_logits(1, 1)
    request = new(SamplingParams(repetition_penalty=penalty), prompt=prompt, output=output)
    after = edit(Penalties(NUM_ROWS), backend, {3: request}, logits)
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    theirs = processor(torch.tensor([request.token_ids]), torch.from_numpy(logits.copy()))
    np.testing.assert_array_equal(after, theirs.numpy())


penalty = st.floats(-2, 2, width=32)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.tuples(penalty, penalty), min_size=1, max_size=4),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=40),
)
def test_frequency_and_presence(backend: Backend, values: list, output: list[int]) -> None:
    """Only of the output: OpenAI's formula, logit - count * frequency - (count > 0) * presence."""
    logits = random_logits(2, len(values))
    requests = {
        row: new(
            SamplingParams(frequency_penalty=frequency, presence_penalty=presence),
            prompt=[4, 4, 7],
            output=output[row:],
        )
        for row, (frequency, presence) in enumerate(values)
    }
    after = edit(Penalties(NUM_ROWS), backend, requests, logits)
    for row, (frequency, presence) in enumerate(values):
        counts = np.bincount(output[row:], minlength=VOCAB).astype(np.float32)
        expected = logits[row] - np.float32(frequency) * counts
        expected -= np.float32(presence) * (counts > 0)
        np.testing.assert_array_equal(after[row], expected.astype(np.float32))


def test_neutral_penalties_have_nothing_to_do(backend: Backend) -> None:
    logits = random_logits(3, 1)
    stage = Penalties(NUM_ROWS)
    np.testing.assert_array_equal(edit(stage, backend, {0: new(SamplingParams())}, logits), logits)
    rich = new(SamplingParams(presence_penalty=1.0), output=[5])
    assert (edit(stage, backend, {0: rich}, logits) != logits).sum() == 1
    stage.remove_request(0)
    np.testing.assert_array_equal(edit(stage, backend, {0: new(SamplingParams())}, logits), logits)
