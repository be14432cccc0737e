"""Who goes first: the order of requests, who is preempted, and how far a request that does not fit
may be overtaken.

One order serves all: waiting requests are admitted from its front, running ones are scheduled from
its front, and the victim of a preemption is the last running one. So the first running request can
always take what it needs, and whatever the load, someone gets on. A preempted request returns to
its place in the order: before all that came later.

Service classes come before the policy. A step serves one class after the other, its running
requests and then its waiting ones; a waiting request for which there is no place, or no blocks,
takes those of running requests of a lower class, if that is enough. Beside running requests of a
higher class, a lower one gets at most MAX_TOKENS_BESIDE tokens of a step.

Overtaking. A waiting request whose blocks are not free lets requests behind it pass, so that a
long prompt does not hold up short ones. After MAX_OVERTAKES of them nobody passes any more: the
blocks that running requests give back collect until it fits, as it must, since a request that
cannot fit into the empty pool is refused when it comes. So a request waits for at most
MAX_OVERTAKES admissions behind it and for the running requests to end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping
from operator import attrgetter

from octavo.contracts.messages import ServiceClass
from octavo.core.request import Request

OrderKey = Callable[[Request], tuple[float, ...]]

_class_of = attrgetter("service_class")

MAX_OVERTAKES = 32
"""Admissions behind a request that does not fit, before it holds up all others."""

MAX_PASSED_OVER = 8
"""Requests that may be found not to fit in one step: each costs a look-up of its prefix."""

MAX_TOKENS_BESIDE = 16
"""Tokens of a lower class in a step while requests of a higher one run: a few rows cost a step
little, because its weights are read once for all, and they keep the lower class from starving."""


def _fcfs(request: Request) -> tuple[float, ...]:
    return (request.service_class, request.arrival_index)


def _priority(request: Request) -> tuple[float, ...]:
    wire = request.engine_request
    return (request.service_class, wire.priority, wire.arrival_time, request.arrival_index)


ORDERS: Mapping[str, OrderKey] = {"fcfs": _fcfs, "priority": _priority}
"""Policy → key; the request with the least key goes first."""


class RequestQueue:
    """Requests in the order of a policy.

    Attributes:
        requests: in order; not to be changed from outside.
    """

    def __init__(self, order: OrderKey) -> None:
        self._order = order
        self.requests: list[Request] = []

    def add(self, request: Request) -> None:
        """Put a request in its place."""
        insort(self.requests, request, key=self._order)

    def remove(self, request: Request) -> None:
        """Take out a request that is here."""
        index = bisect_left(self.requests, self._order(request), key=self._order)
        if index == len(self.requests) or self.requests[index] is not request:
            raise ValueError(f"{request} is not in the queue")
        del self.requests[index]

    def bounds(self, service_class: ServiceClass) -> tuple[int, int]:
        """Where, in the order, the requests of a class begin and end."""
        return (
            bisect_left(self.requests, service_class, key=_class_of),
            bisect_right(self.requests, service_class, key=_class_of),
        )


def classes_in(*queues: RequestQueue) -> list[ServiceClass]:
    """Those of the requests that are in the queues, in order."""
    found: set[ServiceClass] = set()
    for queue in queues:
        if queue.requests:  # there are two classes: they are those of the first and the last one
            found.add(queue.requests[0].service_class)
            found.add(queue.requests[-1].service_class)
    return sorted(found)


class PassedOver:
    """The waiting requests that were found not to fit while a step is built."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        """This one does not fit."""
        self._requests.append(request)

    def count_admission(self) -> None:
        """A request behind all of them was admitted."""
        for request in self._requests:
            request.num_overtaken += 1

    @property
    def holds_up_others(self) -> bool:
        """Whether nobody behind may be admitted in this step."""
        return len(self._requests) >= MAX_PASSED_OVER or any(
            request.num_overtaken >= MAX_OVERTAKES for request in self._requests
        )
