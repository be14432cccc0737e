"""The gathered batch against one built with loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.step import NewRequestData, SchedulerOutput
from octavo.errors import KernelError
from octavo.worker.request_state import RequestState
from octavo.worker.step_batch import StepBatchBuilder

MAX_LEN = 48


@st.composite
def batches(draw: st.DrawFn):
    """(known tokens, computed, scheduled, drafts or None, samples) per request."""
    requests = []
    for _ in range(draw(st.integers(1, 5))):
        known = draw(st.lists(st.integers(0, 99), min_size=1, max_size=30))
        computed = draw(st.integers(0, len(known) - 1))
        scheduled = draw(st.integers(1, len(known) - computed))
        samples = computed + scheduled == len(known)
        draft = draw(st.lists(st.integers(0, 99), max_size=4)) if samples else []
        requests.append((known, computed, scheduled + len(draft), draft, samples))
    return requests


@given(batches())
def test_equals_the_naive_batch(requests) -> None:
    state = RequestState(
        max_num_seqs=6, max_model_len=MAX_LEN, vocab_size=100, block_sizes=[16, 16]
    )
    step = SchedulerOutput(step_id=0)
    tokens, positions, starts, lens, logit_rows = [], [], [0], [], []
    of_state, offsets, sampled_positions, slots = [], [], [], ([], [])
    state.add_request(NewRequestData(
        request_id="idle", token_ids=[1], num_prompt_tokens=1, block_ids=([1], [1]),
        num_computed_tokens=0,
    ))  # fmt: skip
    for i, (known, computed, count, draft, samples) in enumerate(requests):
        name, blocks = f"r{i}", ([10 + i, 20 + i, 30 + i], [40 + i, 50 + i, 60 + i])
        row = state.add_request(NewRequestData(
            request_id=name, token_ids=known, num_prompt_tokens=1, block_ids=blocks,
            num_computed_tokens=computed,
        ))  # fmt: skip
        step.num_scheduled_tokens[name] = count
        if draft:
            step.scheduled_drafts[name] = draft
        where = range(computed, computed + count)
        tokens += (known + draft)[computed : computed + count]
        positions += where
        for group in range(2):
            slots[group].extend(blocks[group][p // 16] * 16 + p % 16 for p in where)
        starts.append(len(tokens))
        lens.append(computed + count)
        if samples:
            step.samples.append(name)
            for back in reversed(range(1 + len(draft))):
                logit_rows.append(len(tokens) - 1 - back)
                of_state.append(row)
                offsets.append(len(draft) - back)
                sampled_positions.append(positions[-1 - back] + 1)
    state.apply_staged_writes()
    builder = StepBatchBuilder(state, max_tokens=256, max_requests=6)
    batch = builder.build(step, list(step.num_scheduled_tokens))
    inputs = batch.inputs
    assert batch.rows.tolist() == [state.rows[name] for name in step.num_scheduled_tokens]
    assert inputs.token_ids.tolist() == tokens
    assert inputs.positions.tolist() == positions
    assert inputs.query_start.tolist() == starts
    assert inputs.seq_lens.tolist() == lens
    assert [s.tolist() for s in inputs.slot_mapping] == list(slots)
    assert inputs.logit_rows.tolist() == logit_rows
    assert batch.num_logits == [1 + len(draft) if samples else 0 for *_, draft, samples in requests]
    assert batch.logit_rows_of_state.tolist() == of_state
    assert batch.logit_offsets.tolist() == offsets
    assert batch.logit_positions.tolist() == sampled_positions
    for i, (known, _, _, draft, _) in enumerate(requests):  # before a token come the drafts too
        row = state.rows[f"r{i}"]
        assert state.token_ids[row, : len(known) + len(draft)].tolist() == known + draft
        assert state.num_tokens[row] == len(known)


def test_a_token_that_is_not_known_cannot_be_scheduled() -> None:
    state = RequestState(max_num_seqs=1, max_model_len=8, vocab_size=9, block_sizes=[16])
    state.add_request(NewRequestData(
        request_id="r", token_ids=[1], num_prompt_tokens=1, block_ids=([1],), num_computed_tokens=0,
    ))  # fmt: skip
    state.apply_staged_writes()
    step = SchedulerOutput(step_id=0, num_scheduled_tokens={"r": 2})
    builder = StepBatchBuilder(state, max_tokens=8, max_requests=1)
    with pytest.raises(KernelError, match="scheduled but not known"):
        builder.build(step, ["r"])


def test_an_unknown_request_is_an_error() -> None:
    state = RequestState(max_num_seqs=1, max_model_len=8, vocab_size=9, block_sizes=[16])
    builder = StepBatchBuilder(state, max_tokens=8, max_requests=1)
    with pytest.raises(KeyError, match="nobody"):
        builder.build(SchedulerOutput(step_id=0, num_scheduled_tokens={"nobody": 1}), ["nobody"])


def test_dtypes() -> None:
    state = RequestState(max_num_seqs=1, max_model_len=8, vocab_size=9, block_sizes=[16])
    state.add_request(NewRequestData(
        request_id="r", token_ids=[1], num_prompt_tokens=1, block_ids=([1],), num_computed_tokens=0,
    ))  # fmt: skip
    state.apply_staged_writes()
    step = SchedulerOutput(step_id=0, num_scheduled_tokens={"r": 1})
    inputs = StepBatchBuilder(state, max_tokens=8, max_requests=1).build(step, ["r"]).inputs
    arrays = [inputs.token_ids, inputs.positions, inputs.query_start, inputs.seq_lens]
    arrays += [inputs.logit_rows, *inputs.block_tables, *inputs.slot_mapping]
    assert {a.dtype for a in arrays} == {np.dtype(np.int32)}
    assert len(inputs.logit_rows) == 0


def test_what_was_sampled_is_the_last_known_token() -> None:
    state = RequestState(max_num_seqs=3, max_model_len=4, vocab_size=9, block_sizes=[16])
    for name, known in (("idle", [1]), ("long", [1, 2, 3, 4]), ("prompt", [5, 6, 7]), ("r", [8])):
        if name == "prompt":
            state.remove_request("idle")
        state.add_request(NewRequestData(
            request_id=name, token_ids=known, num_prompt_tokens=1, block_ids=([1],),
            num_computed_tokens=0,
        ))  # fmt: skip
        state.apply_staged_writes()
    builder = StepBatchBuilder(state, max_tokens=8, max_requests=3)
    counts = {"r": 1, "prompt": 2, "long": 4}
    step = SchedulerOutput(step_id=0, num_scheduled_tokens=counts, samples=["r", "long"])
    builder.build(step, list(counts))
    builder.write_sampled([2, 3])
    r, prompt, long = (state.rows[name] for name in counts)
    assert state.token_ids[[r, prompt, long]].tolist() == [
        [8, 2, 0, 0, 0], [5, 6, 7, 0, 0], [1, 2, 3, 4, 3],  # at the very end there is a place
    ]  # fmt: skip
    assert state.num_tokens[[r, prompt, long]].tolist() == [2, 3, 5]
    with pytest.raises(KernelError, match="one token per logits row"):
        builder.write_sampled([1])
