"""The masking stages alone: what they mean, and when they have nothing to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor

from octavo.contracts.sampling_params import SamplingParams
from octavo.kernels.ops import Backend
from octavo.sample.logit_ops import AllowedTokens, BadWords, LogitBias, MinTokens
from tests.sample.lab import NUM_ROWS, VOCAB, NumpyBackend, edit, new, random_logits

PLAIN = SamplingParams(temperature=0.0)


def masked_ids(before: np.ndarray, after: np.ndarray) -> list[list[int]]:
    """Which ids became -inf in each row; all others must be as they were."""
    gone = np.isneginf(after) & ~np.isneginf(before)
    np.testing.assert_array_equal(after[~gone], before[~gone])
    return [np.flatnonzero(row).tolist() for row in gone]


def test_allowed_tokens(backend: Backend) -> None:
    requests = {
        4: new(SamplingParams(allowed_token_ids=[47, 0, 31, 32, 0])),
        1: new(PLAIN),
        0: new(SamplingParams(allowed_token_ids=[7])),
    }
    logits = random_logits(1, 3)
    after = edit(AllowedTokens(NUM_ROWS, VOCAB), backend, requests, logits)
    kept = [[i for i in range(VOCAB) if i not in ids] for ids in masked_ids(logits, after)]
    assert kept == [[0, 31, 32, 47], list(range(VOCAB)), [7]]


def test_biases(backend: Backend) -> None:
    requests = {
        2: new(SamplingParams(logit_bias={5: 1.5, "0": -100, 47: 1e9})),
        3: new(SamplingParams(logit_bias={})),
        1: new(SamplingParams(logit_bias={5: -0.25})),
    }
    logits = random_logits(2, 3)
    expected = logits.copy()
    expected[0, 5] += np.float32(1.5)
    expected[0, 0] -= np.float32(100)
    expected[0, 47] += np.float32(100)
    expected[2, 5] -= np.float32(0.25)
    after = edit(LogitBias(NUM_ROWS), backend, requests, logits)
    np.testing.assert_array_equal(after, expected)


def test_min_tokens(backend: Backend) -> None:
    params = SamplingParams(min_tokens=2)
    requests = {
        row: new(params, output=[9] * num_output, stop_ids=stop_ids)
        for row, (num_output, stop_ids) in enumerate([(1, [3, 2, 3]), (2, [3]), (0, [-1, 48])])
    }
    logits = random_logits(3, 3)
    after = edit(MinTokens(NUM_ROWS, VOCAB), backend, requests, logits)
    assert masked_ids(logits, after) == [[2, 3], [], []]


@pytest.mark.parametrize(
    ("words", "output", "masked"),
    [
        ([[7], [3]], [], [3, 7]),
        ([[4, 5]], [], []),
        ([[4, 5]], [4], [5]),
        ([[4, 5]], [4, 4], [5]),
        ([[4, 5]], [4, 5], []),
        ([[4, 4, 4, 6]], [4, 4], []),
        ([[4, 4, 4, 6]], [4, 4, 4], [6]),
        ([[9, 4, 5], [4, 6], [4, 7, 8]], [9, 4], [5, 6]),
        ([[1, 5]], [], []),  # the prompt ends with 1, and does not count
        ([[2, 1, 5], [1, 1, 6]], [1], []),
        ([[1, 5]], [1], [5]),
    ],
)
def test_bad_words(
    backend: Backend, words: list[list[int]], output: list[int], masked: list[int]
) -> None:
    requests = {2: new(PLAIN, output=output, bad_words_token_ids=words), 5: new(PLAIN)}
    logits = random_logits(4, 2)
    after = edit(BadWords(NUM_ROWS), backend, requests, logits)
    assert masked_ids(logits, after) == [masked, []]


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=6),
    output=st.lists(st.integers(0, 4), min_size=1, max_size=9),
)
def test_bad_words_are_those_of_transformers(words: list[list[int]], output: list[int]) -> None:
    """Its processor looks at the prompt too; here that has none of these ids."""
    logits = random_logits(5, 1)
    request = new(PLAIN, prompt=[40, 41], output=output, bad_words_token_ids=words)
    after = edit(BadWords(NUM_ROWS), NumpyBackend(), {0: request}, logits)
    processor = NoBadWordsLogitsProcessor(words, eos_token_id=torch.tensor([47]))
    theirs = processor(torch.tensor([request.token_ids]), torch.from_numpy(logits.copy()))
    np.testing.assert_array_equal(after, theirs.numpy())
