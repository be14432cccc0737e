"""Connections that ask for nothing make room."""

from __future__ import annotations

import resource

import pytest

from octavo.entrypoints.openai.idle_connections import IdleConnections, most_connections


class Line:
    def __init__(self, name: str, dropped: list[str]) -> None:
        self.name, self.dropped = name, dropped

    def drop(self) -> None:
        self.dropped.append(self.name)


def test_the_longest_idle_goes_first() -> None:
    connections, dropped = IdleConnections(), list[str]()
    connections.most = 3
    a, b, c, d, e, f = (Line(name, dropped) for name in "abcdef")
    for line in (a, b, c):
        connections.opened(line)
    connections.busy(a)
    connections.opened(d)
    assert dropped == ["b"]
    connections.closed(b)
    connections.idle(a)
    connections.opened(e)
    assert dropped == ["b", "c"]
    connections.closed(c)
    for line in (a, d):
        connections.busy(line)
    connections.closed(e)
    connections.opened(f)
    assert dropped == ["b", "c"]


def test_where_all_are_busy_the_new_one_goes() -> None:
    connections, dropped = IdleConnections(), list[str]()
    connections.most = 1
    a, b = Line("a", dropped), Line("b", dropped)
    connections.opened(a)
    connections.busy(a)
    connections.opened(b)
    assert dropped == ["b"]


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "most"),
    [
        (1024, 4096, 4096, 4096 - 256),
        (1024, 1_000_000, 1 << 16, (1 << 16) - 256),
        (100_000, 1_000_000, None, 100_000 - 256),
        (256, 256, None, 128),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, (1 << 16) - 256),
        (1024, resource.RLIM_INFINITY, 1 << 16, (1 << 16) - 256),
    ],
)
def test_limit_of_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, most: int
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert most_connections() == most
    assert given == ([] if raised is None else [(raised, hard)])
