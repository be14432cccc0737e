from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.ledger import Ledger
from octavo.entrypoints.openai.shares import StreamPlaces, exceeds_share


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


@pytest.mark.parametrize("num_front_ends", [1, 2])
def test_places_are_of_all_front_ends(num_front_ends: int, tmp_path: Path) -> None:
    """Keys take turns at front ends that take turns."""
    path = tmp_path / "ledger" if num_front_ends > 1 else None
    places = [
        StreamPlaces(6, Ledger(path, front_end=i, num_front_ends=num_front_ends))
        for i in range(num_front_ends)
    ]
    first, last = places[0], places[-1]
    for here in (first, last):
        here.take("alice")
    first.take("bob")
    last.take("alice")
    with pytest.raises(APIError, match="3 resumable streams of this API key run") as caught:
        first.take("alice")
    assert (caught.value.status, caught.value.code) == (503, "too_many_streams")
    last.take("carol")
    last.take("dave")
    with pytest.raises(APIError, match="6 resumable streams run or are read, of at most 6"):
        first.take("erin")
    first.take_again("alice")  # what is kept may be read
    for _ in range(2):
        first.give_back("alice")
    first.take("erin")


def test_without_keys_there_are_no_shares() -> None:
    places = StreamPlaces(3, Ledger())
    for _ in range(3):
        places.take(None)
    with pytest.raises(APIError, match="3 resumable streams run or are read, of at most 3"):
        places.take(None)


def test_the_places_of_a_front_end_that_ended_are_free(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / "l", front_end=i, num_front_ends=2) for i in range(2)]
    one, two = (StreamPlaces(2, ledger) for ledger in ledgers)
    one.take("alice")
    two.take("bob")
    with pytest.raises(APIError):
        one.take("carol")
    Ledger(tmp_path / "l", front_end=1, num_front_ends=2)  # it has been started anew
    one.take("carol")
