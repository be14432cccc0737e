"""How much may wait: requests without a first token, their prompt tokens, and the bytes of bodies
that are not parsed yet are counted.

A request counts as one from its first byte on, then as the sequences that it really asks for,
each until its first token. What is over the limits is told to come again.

What its sequences used is written into the request's record, and taken from its key's account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType

from octavo.engine.beam_search import search_id_of
from octavo.engine.metrics import FinishedSequence
from octavo.entrypoints.openai.errors import APIError, unavailable
from octavo.entrypoints.openai.record import RequestRecord


class Admission:
    """The queue's account.

    Args:
        max_num_queued_reqs: most sequences that wait; 0 is no limit.
        max_num_queued_tokens: most prompt tokens that wait; 0 is no limit. One request alone is
            always let in.
        max_body_bytes: most bytes of bodies; 0 is no limit.

    Attributes:
        draining: nobody is let in any more.
        rejections: refused requests, by reason.
    """

    def __init__(
        self,
        *,
        max_num_queued_reqs: int = 0,
        max_num_queued_tokens: int = 0,
        max_body_bytes: int = 0,
    ) -> None:
        self.max_reqs = max_num_queued_reqs
        self.max_tokens = max_num_queued_tokens
        self.max_body_bytes = max_body_bytes
        self.draining = False
        self.rejections = {"queued_reqs": 0, "queued_tokens": 0, "body_bytes": 0, "draining": 0}
        self.num_tokens = 0
        self.num_body_bytes = 0
        self._num_unread = 0
        self._waiting: dict[str, int] = {}  # id of the engine request → prompt tokens
        self._records: dict[str, RequestRecord] = {}  # the same, until the HTTP request has ended

    @property
    def num_reqs(self) -> int:
        """Sequences that wait; of a request whose body is being read, one."""
        return self._num_unread + len(self._waiting)

    def enter(self, record: RequestRecord, *, queued: bool = True) -> Ticket:
        """A request begins; one that is not `queued` may always. Raises APIError: 503; 429, its key
        has no tokens left."""
        if not queued:
            return Ticket(self, record, is_read=True)
        if self.draining:
            self.rejections["draining"] += 1
            raise unavailable("the server is stopping", "draining")
        record.check_tokens()
        self._check(1, 0)
        self._num_unread += 1
        return Ticket(self, record, is_read=False)

    def started(self, engine_id: str) -> None:
        """A sequence has had its first token, or ended without one."""
        self.num_tokens -= self._waiting.pop(engine_id, 0)

    def finished(self, sequence: FinishedSequence) -> None:
        """A sequence has ended, however it did."""
        engine_id = sequence.request_id
        record = self._records.get(engine_id) or self._records.get(search_id_of(engine_id))
        if record is not None:
            record.add(sequence)

    def _admit(self, prompt_tokens: Mapping[str, int], record: RequestRecord) -> None:
        num_tokens = sum(prompt_tokens.values())
        self._check(len(prompt_tokens), num_tokens)
        record.take_prompt(num_tokens)
        self._waiting.update(prompt_tokens)
        self.num_tokens += num_tokens
        self._records.update(dict.fromkeys(prompt_tokens, record))

    def _forget(self, engine_id: str) -> None:
        self.started(engine_id)
        self._records.pop(engine_id, None)

    def _take_body(self, num_bytes: int) -> None:
        held, most = self.num_body_bytes, self.max_body_bytes
        if most and held + num_bytes > most:
            raise self._full("body_bytes", f"{held} bytes of bodies", most)
        self.num_body_bytes += num_bytes

    def _check(self, reqs: int, tokens: int) -> None:
        if self.max_reqs and self.num_reqs and self.num_reqs + reqs > self.max_reqs:
            raise self._full("queued_reqs", f"{self.num_reqs} requests", self.max_reqs)
        if self.max_tokens and self.num_tokens and self.num_tokens + tokens > self.max_tokens:
            raise self._full("queued_tokens", f"{self.num_tokens} prompt tokens", self.max_tokens)

    def _full(self, reason: str, waiting: str, limit: int) -> APIError:
        self.rejections[reason] += 1
        return unavailable(f"the queue is full: {waiting} wait of at most {limit}", "queue_full")


class Ticket:
    """One HTTP request's part of the account; a context manager that gives back what is left.

    Attributes:
        record: of that request.
    """

    def __init__(self, admission: Admission, record: RequestRecord, *, is_read: bool) -> None:
        self._admission = admission
        self.record = record
        self._is_read = is_read
        self._num_body_bytes = 0
        self._ids: Iterable[str] = ()

    def add_body(self, num_bytes: int) -> None:
        """A piece of the body has come. Raises APIError 503."""
        self._admission._take_body(num_bytes)
        self._num_body_bytes += num_bytes

    def body_done(self) -> None:
        """The body's bytes are not needed any more."""
        self._admission.num_body_bytes -= self._num_body_bytes
        self._num_body_bytes = 0

    def admit(self, prompt_tokens: Mapping[str, int]) -> None:
        """Now it is known what the request asks for.

        Args:
            prompt_tokens: id of each engine request to come → its prompt tokens.

        Raises:
            APIError: 503; 429 where its key may not use so many tokens now.
        """
        self._read()
        self._admission._admit(prompt_tokens, self.record)
        self._ids = prompt_tokens

    def hand_over(self) -> Ticket:
        """A ticket for work that goes on when the request has been answered: this one's part of the
        account, bodies apart, is that one's from now on."""
        ticket = Ticket(self._admission, self.record, is_read=self._is_read)
        ticket._ids, self._ids = self._ids, ()
        self._is_read = True
        return ticket

    def _read(self) -> None:
        if not self._is_read:
            self._is_read = True
            self._admission._num_unread -= 1

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._read()
        self.body_done()
        for engine_id in self._ids:
            self._admission._forget(engine_id)
