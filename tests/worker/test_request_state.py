from __future__ import annotations

import pytest

from octavo.contracts.step import CachedRequestData, NewRequestData
from octavo.errors import RequestError
from octavo.worker.request_state import RequestState


def make_state(max_num_seqs: int = 2, max_model_len: int = 40) -> RequestState:
    return RequestState(
        max_num_seqs=max_num_seqs, max_model_len=max_model_len, vocab_size=100, block_sizes=[16, 16]
    )


def new(name: str, tokens: list[int], blocks=([1], [2]), computed: int = 0) -> NewRequestData:
    return NewRequestData(
        request_id=name,
        token_ids=tokens,
        num_prompt_tokens=1,
        block_ids=blocks,
        num_computed_tokens=computed,
    )


def test_a_request_comes_whole_then_by_diffs() -> None:
    state = make_state()
    row = state.add_request(new("a", [5, 6, 7], computed=2))
    assert state.num_tokens[row] == 0, "staged"
    state.apply_staged_writes()
    assert state.token_ids[row, :4].tolist() == [5, 6, 7, 0]
    assert (state.num_tokens[row], state.num_prompt_tokens[row]) == (3, 1)
    assert state.num_computed_tokens[row] == 2
    state.update_requests(
        CachedRequestData(
            request_ids=["gone", "a"],
            num_computed_tokens=[7, 3],
            new_block_ids={"gone": ([4], [4]), "a": ([8], [9])},
        )
    )
    state.apply_staged_writes()
    assert state.num_computed_tokens[row] == 3
    tables = [t.blocks[row].tolist() for t in state.block_tables]
    assert tables == [[1, 8, 0], [2, 9, 0]]


def test_rows_are_reused() -> None:
    state = make_state(max_num_seqs=1)
    row = state.add_request(new("a", [1, 2], blocks=([1, 2], [3, 4])))
    state.apply_staged_writes()
    with pytest.raises(ValueError, match="all 1 rows"):
        state.add_request(new("b", [3]))
    assert state.remove_request("a") == row
    assert state.remove_request("a") is None
    assert state.add_request(new("b", [9], blocks=([5], []))) == row
    state.apply_staged_writes()
    assert state.num_tokens[row] == 1
    tables = [t.blocks[row].tolist() for t in state.block_tables]
    assert tables == [[5, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (new("a", [1] * 41), RequestError, "41 tokens; a request has 1…40"),
        (new("a", [100]), RequestError, "token id 100 is not in the vocabulary"),
        (new("a", [1], blocks=([1],)), ValueError, r"\[1\] blocks in KV groups that take \[3, 3\]"),
        (new("a", [1], blocks=([1] * 4, [])), ValueError, r"\[4, 0\] blocks in KV groups"),
    ],
)
def test_a_refused_request_leaves_no_trace(request_, error, message) -> None:
    state = make_state(max_num_seqs=1)
    with pytest.raises(error, match=message):
        state.add_request(request_)
    state.apply_staged_writes()
    assert not state.rows
    assert state.add_request(new("b", [1])) == 0


def test_nbytes_counts_the_arrays() -> None:
    state = make_state(max_num_seqs=3, max_model_len=50)
    arrays = [state.token_ids, state.num_tokens, state.num_prompt_tokens, state.num_computed_tokens]
    tables = [t.blocks for t in state.block_tables]
    counted = RequestState.nbytes(max_num_seqs=3, max_model_len=50, block_sizes=[16, 16])
    assert counted == sum(a.nbytes for a in [*arrays, *tables])
