"""Costly masks take turns, and a share of the time."""

from __future__ import annotations

from octavo.structured.turns import COSTLY_SECONDS, MAX_SHARE, TimeShare, Turns

COSTLY = 2 * COSTLY_SECONDS


def test_a_share_of_the_time() -> None:
    share, spent, now = TimeShare(), 0.0, 100.0
    start = now
    while now < start + 10:
        if share.is_free(now):
            now += 0.01
            spent += 0.01
            share.spend(0.01, now)
        now += 0.001
    assert 0.9 * MAX_SHARE < spent / (now - start) < MAX_SHARE + 0.01


def test_what_is_cheap_always_goes() -> None:
    turns = Turns(TimeShare())
    turns.note_step({"a": 1, "b": 1})
    turns.note_cost("a", COSTLY_SECONDS / 2, 0.0)
    assert not turns
    assert turns.may_go("a", 0.0)


def test_one_at_a_time_in_turn_and_not_all_the_time() -> None:
    turns, now = Turns(TimeShare()), 0.0
    turns.note_step({"a": 1, "plain": 1})
    for name in "abc":
        turns.note_cost(name, COSTLY, now)
    went = []
    for _ in range(1000):
        now += 0.001
        going = [name for name in "cba" if turns.may_go(name, now)]
        assert len(going) <= 1
        assert turns.may_go("plain", now)
        turns.note_step(dict.fromkeys(["plain", *going], 1))
        for name in going:
            turns.note_cost(name, COSTLY, now)
            went.append(name)
    went = went[-9:]
    assert len(went) * COSTLY < MAX_SHARE
    assert went == went[:3] * 3
    assert sorted(went[:3]) == ["a", "b", "c"]


def test_nobody_rests_alone() -> None:
    turns = Turns(TimeShare())
    for name in "ab":
        turns.note_cost(name, COSTLY, 0.0)
    turns.note_step({"a": 1, "plain": 1})
    assert not turns.may_go("b", 0.0)
    turns.note_step({"a": 1})
    assert turns.may_go("a", 0.0)
    assert turns.may_go("b", 0.0)


def test_time_spent_alone_is_not_made_up_for() -> None:
    turns, now = Turns(TimeShare()), 0.0
    for _ in range(100):
        turns.note_step({"a": 1})
        now += 0.02
        turns.note_cost("a", 0.01, now)
    turns.note_step({"a": 1, "plain": 1})
    assert turns.may_go("a", now)
    turns.note_cost("a", 0.01, now)
    assert not turns.may_go("a", now)
    assert turns.may_go("a", now + 0.01 / MAX_SHARE)


def test_who_becomes_cheap_or_leaves_has_no_turn() -> None:
    turns = Turns(TimeShare())
    turns.note_step({"plain": 1})
    for name in "abc":
        turns.note_cost(name, COSTLY, 0.0)
    turns.note_cost("a", 0.0, 0.0)
    turns.remove("b")
    turns.remove("b")
    assert "a" not in turns
    assert turns.may_go("b", 1e9)
    assert turns.may_go("c", 1e9)
    assert not turns.may_go("c", 0.0)
