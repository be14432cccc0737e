from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.budget import MAX_PROMPT_LOGPROBS, TokenBudget


@pytest.mark.parametrize(
    ("remaining", "threshold", "wanted", "behind", "given_out"),
    [
        (100, 0, 30, 0, 30),
        (100, 0, 300, 0, 100),
        (100, 0, 300, 10, 90),  # one token stays for each of those behind
        (100, 7, 300, 10, 7),
        (100, 7, 1, 200, 1),
        (100, 0, 300, 100, 1),
        (5, 0, 300, 50, 1),  # but the first one goes on
        (0, 0, 1, 0, 0),
        (0, 0, 9, 0, 0),
    ],
)
def test_chunks(remaining: int, threshold: int, wanted: int, behind: int, given_out: int) -> None:
    assert TokenBudget(remaining, threshold).chunk(wanted, behind) == given_out


def test_log_probabilities_of_prompts_are_given_out_too() -> None:
    """For all requests of a step together; one token each goes on in any case."""
    few, many = MAX_PROMPT_LOGPROBS // 100, MAX_PROMPT_LOGPROBS // 8
    budget = TokenBudget(1000, 0)
    assert budget.chunk(400, 0, few) == 100
    assert budget.chunk(400, 0, few) == 1
    assert budget.chunk(400) == 400  # nobody else pays
    budget = TokenBudget(1000, 0)
    assert budget.chunk(5, 0, many) == 5
    assert budget.chunk(5, 0, many) == 3
    assert budget.chunk(5, 0, many) == 1
    budget = TokenBudget(1000, 0)
    assert budget.chunk(400, 0, 2 * MAX_PROMPT_LOGPROBS) == 1
    assert budget.chunk(400, 0, few) == 100  # which costs the others nothing
    assert TokenBudget(1000, 7).chunk(400, 0, 1) == 7
    assert TokenBudget(0, 0).chunk(400, 0, 1) == 0


def test_drafts_take_only_what_nobody_else_needs() -> None:
    budget = TokenBudget(10, 0)
    assert budget.num_drafts(1, 0) == 9
    assert budget.num_drafts(1, 6) == 3
    assert budget.num_drafts(1, 20) == 0


@given(
    st.integers(1, 50),
    st.integers(0, 20),
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
)
def test_all_get_a_token_where_there_is_one_for_each(
    num_tokens: int, threshold: int, wanted: list[int]
) -> None:
    budget = TokenBudget(num_tokens, threshold)
    chunks = []
    for i, count in enumerate(wanted):
        chunk = budget.chunk(count, len(wanted) - i - 1)
        budget.remaining -= chunk
        chunks.append(chunk)
    assert sum(chunks) <= num_tokens
    assert sum(c > 0 for c in chunks) == min(num_tokens, len(wanted))
    assert all(c <= w and (not threshold or c <= threshold) for c, w in zip(chunks, wanted))


def test_what_is_withheld_is_not_given_out() -> None:
    budget = TokenBudget(100, 0)
    budget.remaining -= 30
    budget.withhold_all_but(16)
    assert (budget.remaining, budget.withheld) == (16, 54)
    assert budget.chunk(40) == 16
    budget.withhold_all_but(20)
    assert (budget.remaining, budget.withheld, budget.num_given) == (16, 54, 30)
