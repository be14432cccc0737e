"""The user's code in the sampler: what it sees, what it may do, and what its failures cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.sampling_params import SamplingParams
from octavo.errors import RequestError
from octavo.sample.custom import BatchProcessor, RequestProcessors, batch_update, check_callables
from octavo.sample.stage import MaskedRows
from tests.sample.lab import (
    NUM_ROWS,
    VOCAB,
    NumpyBackend,
    batch_of,
    edit,
    make_sampler,
    new,
    put,
    random_logits,
    run,
)
from tests.sample.processors import Failing, Rows, Sharpen, Shift


def greedy(**values: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, seed=0, **values)


# -------------------------------------------------------------------- of one request


def test_both_signatures_in_order() -> None:
    seen: list[Any] = []

    def two(output: list[int], logits: np.ndarray) -> None:
        seen.append((list(output), logits.shape, logits.dtype.name))
        logits[3] = 50.0

    def three(prompt: list[int], output: list[int], logits: np.ndarray) -> np.ndarray:
        seen.append((list(prompt), list(output)))
        assert logits[3] == 50.0
        changed = logits.copy()
        changed[4] = 60.0
        return changed

    logits = random_logits(0, 2)
    requests = {
        1: new(greedy(), output=[5]),
        4: new(greedy(logits_processors=[two, three]), prompt=[7, 8], output=[9, 9]),
    }
    found = edit(RequestProcessors(NUM_ROWS), NumpyBackend(), requests, logits)
    assert seen == [([9, 9], (VOCAB,), "float32"), ([7, 8], [9, 9])]
    expected = logits.copy()
    expected[1, [3, 4]] = 50.0, 60.0
    np.testing.assert_array_equal(found, expected)


def test_outputs_grow_and_drafts_are_seen() -> None:
    seen: list[list[int]] = []
    kept: list[list[int]] = []

    def keep(output: list[int], logits: np.ndarray) -> None:
        seen.append(list(output))
        kept.append(output)

    stage = RequestProcessors(NUM_ROWS)
    first = new(greedy(logits_processors=[keep]), output=[5])
    put([stage], {2: first})
    later = new(first.sampling_params, output=[5, 7])
    for request, drafts in ((first, {2: [6, 6]}), (later, {}), (later, {2: [1]})):
        batch = batch_of({2: request}, drafts)
        edited = stage.rows_to_edit(batch)
        assert edited is not None
        stage.apply(None, random_logits(0, len(batch.rows)), batch, edited)  # type: ignore[arg-type]
    assert seen == [[5], [5, 6], [5, 6, 6], [5, 7], [5, 7], [5, 7, 1]]
    assert all(output is kept[0] for output in kept)


@pytest.mark.parametrize(
    "returned", [np.zeros(3), np.zeros((1, VOCAB)), "x"], ids=["short", "2-d", "text"]
)
def test_a_failure_is_its_requests_alone(returned: Any) -> None:
    def fails(output: list[int], logits: np.ndarray) -> Any:
        logits[:] = 0
        return returned

    requests = {
        0: new(greedy(logprobs=1)),
        1: new(greedy(logits_processors=[fails], logprobs=1)),
        2: new(SamplingParams(seed=3, logits_processors=[lambda o, x: None])),
    }
    logits = random_logits(1, 3)
    sampled = run(NumpyBackend(), requests, logits)
    alone = [run(NumpyBackend(), {r: requests[r]}, logits[[r]]).token_ids[0] for r in (0, 2)]
    assert sampled.token_ids[::2] == alone
    assert list(sampled.failed) == [1]
    assert sampled.failed[1].startswith("its logits processor failed: ValueError")
    assert list(sampled.logprobs) == [0]


def test_callables_of_another_kind_are_refused() -> None:
    check_callables([lambda a, b: a, lambda a, b, c: a, lambda *a: a])
    for wrong in (lambda a: a, lambda a, b, c, d: a, lambda *, a: a, max):
        with pytest.raises(RequestError, match=r"must take \(output_ids, logits\)") as caught:
            check_callables([wrong])
        assert caught.value.param == "logits_processors"


# -------------------------------------------------------------------- of the engine


@given(st.lists(st.lists(st.integers(0, 5), max_size=6, unique=True), max_size=8))
def test_updates_lead_from_batch_to_batch(batches: list[list[int]]) -> None:
    """Followed as vLLM's processors follow them, whatever comes, goes and changes place."""
    contexts = [_context(i) for i in range(6)]
    rows = Rows(vocab_size=VOCAB, max_num_seqs=6)
    old: Sequence[Any] = []
    for batch in batches:
        current = [contexts[i] for i in batch]
        rows.update_state(batch_update(old, current))
        assert [rows.rows[i][1] for i in range(len(batch))] == [[i] for i in batch]
        old = current


def _context(i: int) -> Any:
    from octavo.sample.custom import _Context

    return _Context(new(greedy(), prompt=[i]))


def stage_of(kind: type[Rows]) -> BatchProcessor:
    return BatchProcessor(kind, num_rows=NUM_ROWS, vocab_size=VOCAB)


def test_only_rows_of_requests_it_applies_to() -> None:
    logits = random_logits(2, 3)
    requests = {
        5: new(greedy(extra_args={"shift": 30}), output=[4]),
        0: new(greedy()),
        3: new(greedy(extra_args={"shift": -1.5})),
    }
    found = edit(stage_of(Shift), NumpyBackend(), requests, logits)
    expected = logits.copy()
    expected[0, 4 + 3] += 30
    expected[2, 3] -= 1.5
    np.testing.assert_array_equal(found, expected)


def test_with_drafts_every_row_has_its_context() -> None:
    logits = random_logits(2, 4)
    requests = {
        1: new(greedy(extra_args={"shift": 8}), output=[4]),
        2: new(greedy(extra_args={"shift": 9})),
    }
    found = edit(stage_of(Shift), NumpyBackend(), requests, logits, {1: [10, 20]})
    expected = logits.copy()
    for row, token_id, shift in ((0, 7, 8), (1, 17, 8), (2, 37, 8), (3, 3, 9)):
        expected[row, token_id] += shift
    np.testing.assert_array_equal(found, expected)


def test_between_biases_and_penalties() -> None:
    """A penalty divides what the processor added; a bias is there when it comes."""
    params = {"repetition_penalty": 2.0, "logit_bias": {3: 4.0}, "logprobs": 1}
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    requests = {0: new(greedy(extra_args={"shift": 6.0}, **params), prompt=[1, 3, 1])}
    sampled = run(
        NumpyBackend(),
        requests,
        logits,
        logits_processors=[Shift],
        logprobs_mode="processed_logits",
    )
    assert sampled.token_ids == [3]
    assert sampled.logprobs[0].logprobs[0, 0] == (4.0 + 6.0) / 2


def test_one_that_keeps_the_argmax_comes_after_the_temperature() -> None:
    """Doubling logits / T is a temperature of T / 2, and leaves greedy requests alone."""
    logits = random_logits(3, 3)
    requests = {
        0: new(SamplingParams(temperature=1.5, top_p=0.9, seed=5, extra_args={"sharpen": 1})),
        1: new(greedy(extra_args={"sharpen": 1})),
        2: new(SamplingParams(temperature=1.5, top_p=0.9, seed=5)),
    }
    Rows.made.clear()
    sampler = make_sampler(NumpyBackend(), requests, logits_processors=[Sharpen])
    for step in range(20):
        logits = random_logits(step, 3)
        expected = run(
            NumpyBackend(),
            {
                0: new(SamplingParams(temperature=0.75, top_p=0.9, seed=5)),
                1: requests[1],
                2: requests[2],
            },
            logits,
        )
        sampled = sampler.sample(logits.copy(), batch_of(requests))
        assert sampled.token_ids == expected.token_ids
    assert len(Rows.made[-1].rows) == 1


def test_one_that_keeps_the_argmax_bears_any_temperature() -> None:
    """A logit divided by the least float32 would be infinite."""
    requests = {0: new(SamplingParams(temperature=1e-38, seed=5, extra_args={"sharpen": 1}))}
    sampler = make_sampler(NumpyBackend(), requests, logits_processors=[Sharpen])
    logits = random_logits(0, 1)
    sampled = sampler.sample(logits.copy(), batch_of(requests))
    assert list(sampled.token_ids) == [logits[0].argmax()]
    assert not sampled.failed


def test_a_failure_ends_its_requests_and_it_starts_anew() -> None:
    requests = {
        0: new(greedy(extra_args={"fail": True})),
        1: new(greedy(extra_args={"shift": 1.0})),
    }
    Rows.made.clear()
    sampler = make_sampler(NumpyBackend(), requests, logits_processors=[Failing])
    sampled = sampler.sample(random_logits(4, 2), batch_of(requests))
    why = "the logits processor tests.sample.processors:Failing failed: KeyError: 'no such row'"
    assert sampled.failed == {0: why, 1: why}
    sampler.remove_request(0)
    rest = {1: requests[1]}
    assert not sampler.sample(random_logits(4, 1), batch_of(rest)).failed
    assert len(Rows.made) == 2
    assert len(Rows.made[1].rows) == 1


def only(*token_ids: int) -> MaskedRows:
    """A grammar that allows these in logits row 0."""
    bits = np.zeros(64, dtype=bool)
    bits[list(token_ids)] = True
    return MaskedRows(
        rows=np.array([0], np.int32),
        bitmask=np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)[None],
    )


def test_a_grammar_has_the_last_word() -> None:
    """Whatever processors make likely: a request's, the engine's, before and after temperature."""

    def wants_nine(output: list[int], logits: np.ndarray) -> None:
        logits[9] = 100.0

    class Nine(Sharpen):
        def apply(self, logits: np.ndarray) -> np.ndarray | None:
            logits[:, 9] = 1000.0
            return None

    for params, kinds in (
        (greedy(logits_processors=[wants_nine]), []),
        (SamplingParams(seed=1, logits_processors=[wants_nine]), []),
        (greedy(extra_args={"shift": 100.0}), [Shift]),
        (SamplingParams(seed=1, extra_args={"sharpen": 1}), [Nine]),
    ):
        requests = {0: new(params)}
        sampler = make_sampler(NumpyBackend(), requests, logits_processors=kinds)
        batch = replace(batch_of(requests), grammar=only(5))
        assert sampler.sample(random_logits(0, 1), batch).token_ids == [5]
