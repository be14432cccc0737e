from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.openai.shares import exceeds_share


def greedy(limit: int, order: list[int]) -> dict[int, int]:
    """What keys hold that take one each in this order, where they may."""
    held = dict.fromkeys(order, 0)
    for key in order:
        if not exceeds_share(held[key], sum(held.values()), limit):
            held[key] += 1
    return held


@pytest.mark.parametrize(("num_keys", "most"), [(1, 8), (2, 6), (3, 4), (7, 2)])
def test_keys_that_take_turns(num_keys: int, most: int) -> None:
    held = greedy(16, list(range(num_keys)) * 16)
    assert max(held.values()) == most
    assert sum(held.values()) <= 16


@given(st.integers(1, 64), st.lists(st.integers(0, 5), max_size=200))
def test_whoever_has_nothing_finds_a_place_where_there_is_one(limit: int, order: list[int]) -> None:
    held = greedy(limit, order)
    total = sum(held.values())
    assert total <= limit
    assert all(2 * own <= limit + 1 for own in held.values())
    assert exceeds_share(0, total, limit) is (total == limit)


def test_an_amount_has_to_fit_too() -> None:
    assert not exceeds_share(100, 300, 1000, 600)
    assert exceeds_share(100, 300, 1000, 601)
