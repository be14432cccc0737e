"""Log probabilities of prompts, through a head of random weights, by blocks."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.tensor import HostTensor
from octavo.kernels.ops import Backend, Ops
from octavo.sample.logprobs import HEAD_LIMITS, PromptChunk, PromptLogprobs
from tests.sample.lab import NUM_ROWS, VOCAB, device_logits, new

DIM = 24
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((VOCAB, DIM)).astype(np.float32)
HIDDEN = RNG.standard_normal((90, DIM)).astype(np.float32)
"""The hidden states of a step of 90 tokens."""


@pytest.fixture
def prompts(backend: Backend) -> PromptLogprobs:
    norm = backend.pack_vector(HostTensor.of(np.ones(DIM, dtype=np.float32)))
    weight = backend.pack_linear([HostTensor.of(WEIGHT)])

    def head(ops: Ops) -> None:
        x = ops.select_rows(ops.input("hidden_states", DIM))
        ops.output("logits", ops.logits(ops.rms_norm(x, norm, eps=0.0), weight))

    graph = backend.capture(head, HEAD_LIMITS)
    return PromptLogprobs(backend, graph, num_rows=NUM_ROWS, vocab_size=VOCAB)


def expected_logprobs(token_row: int) -> np.ndarray:
    x = HIDDEN[token_row].astype(np.float64)
    logits = WEIGHT.astype(np.float64) @ (x / np.sqrt((x**2).mean()))
    return logits - np.log(np.exp(logits).sum())


def chunk(index: int, start: int, count: int) -> PromptChunk:
    return PromptChunk(
        index=index,
        token_rows=np.arange(start, start + count),
        next_ids=((np.arange(start, start + count) * 7) % VOCAB).astype(np.int32),
    )


def test_chunks_of_several_requests(backend: Backend, prompts: PromptLogprobs) -> None:
    """Requests share blocks, each gets the rows and alternatives that it asked for, and they are
    to the bit what it gets alone."""
    ks = {0: 2, 3: None, 5: -1, 6: 2}
    for row, k in ks.items():
        prompts.add_request(row, new(SamplingParams(prompt_logprobs=k)))
    rows = np.array([5, 3, 0, 6])
    asking = prompts.find(rows)
    assert asking is not None
    assert asking.tolist() == [0, 2, 3]
    chunks = [chunk(0, 2, 5), chunk(2, 10, 41), chunk(3, 60, 29)]
    hidden = device_logits(backend, HIDDEN)
    gathered = prompts.gather(hidden, rows, chunks)
    assert gathered.keys() == {0, 2, 3}
    for one, k in zip(chunks, (VOCAB, 2, 2)):
        found = gathered[one.index]
        assert found.token_ids.shape == found.logprobs.shape == (len(one.token_rows), 1 + k)
        assert found.token_ids[:, 0].tolist() == one.next_ids.tolist()
        for i, token_row in enumerate(one.token_rows.tolist()):
            expected = expected_logprobs(token_row)
            best = np.argsort(-expected, kind="stable")[:k]
            assert found.token_ids[i, 1:].tolist() == best.tolist()
            ids = found.token_ids[i]
            np.testing.assert_allclose(found.logprobs[i], expected[ids], rtol=1e-4, atol=1e-5)
            assert found.ranks[i] == 1 + (expected > expected[ids[0]]).sum()
        for part in (slice(0, 3), slice(3, None)):
            some = PromptChunk(
                index=one.index, token_rows=one.token_rows[part], next_ids=one.next_ids[part]
            )
            again = prompts.gather(hidden, rows, [some])[one.index]
            np.testing.assert_array_equal(again.token_ids, found.token_ids[part])
            np.testing.assert_array_equal(again.logprobs, found.logprobs[part])
            np.testing.assert_array_equal(again.ranks, found.ranks[part])


def test_requests_leave(prompts: PromptLogprobs) -> None:
    rows = np.array([0, 1])
    assert prompts.find(rows) is None
    prompts.add_request(1, new(SamplingParams(prompt_logprobs=0)))
    found = prompts.find(rows)
    assert found is not None
    assert found.tolist() == [1]
    prompts.remove_request(1)
    assert prompts.find(rows) is None


def test_more_alternatives_than_tokens_are_all(backend: Backend, prompts: PromptLogprobs) -> None:
    prompts.add_request(0, new(SamplingParams(prompt_logprobs=1000)))
    gathered = prompts.gather(device_logits(backend, HIDDEN), np.array([0]), [chunk(0, 0, 2)])
    assert gathered[0].token_ids.shape == (2, 1 + VOCAB)
