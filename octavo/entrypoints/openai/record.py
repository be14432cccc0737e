"""What the server knows of one HTTP request: who sent it, what it asks for, what it used. The gate
begins it, those who answer fill it in, and log, metrics and traces read it at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.metrics import FinishedSequence
    from octavo.entrypoints.openai.errors import APIError
    from octavo.entrypoints.openai.keys import ApiKey

OTHER_ROUTE = "other"
"""Of requests that no route answers."""
CLIENT_GONE = 499
"""The status where the client left before there was an answer (nginx's word for it)."""


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One HTTP request.

    Attributes:
        method: as it was sent.
        route: path of the route that answers, with its parameters' names in braces.
        key: whose it is; None where the server has no keys, or the route needs none.
        headers: all that came, for the trace's context.
        started: `time.monotonic()`.
        started_ns: `time.time_ns()`, the same moment.
        model, params: what it asks for, where it is a generation.
        is_over: the HTTP request has been answered, or its client has left.
        in_background: the generation may go on when the HTTP request is over; it has a line of the
            log of its own then, and the span, when it ends.
        error_status, error_code: of what ended the answer after its status was sent.
        num_prompt_tokens: of all prompts, each once, however many completions share it.
        num_generated_tokens: of all sequences that have ended, whether they were sent or not.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        arrival, scheduled, first_token, last_token: when its first sequence came so far (the last:
            its last one); `time.monotonic()`.
        finish_reasons: why its sequences ended, each reason once.
    """

    request_id: str
    method: str = ""
    route: str = OTHER_ROUTE
    status: int = CLIENT_GONE
    key: ApiKey | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    started_ns: int = field(default_factory=time.time_ns)
    model: str | None = None
    params: SamplingParams | None = None
    is_over: bool = False
    in_background: bool = False
    error_status: int | None = None
    error_code: str | None = None
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_tokens: int = 0
    arrival: float | None = None
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finish_reasons: dict[str, None] = field(default_factory=dict)

    def check_tokens(self) -> None:
        """It is to use tokens. Raises APIError 429: its key has none left."""
        if self.key is not None:
            self.key.account.check_tokens()

    def take_prompt(self, num_tokens: int) -> None:
        """Its prompts are known. Raises APIError 429: its key may not use so many tokens now."""
        if self.key is not None:
            self.key.account.take_prompt(num_tokens)
        self.num_prompt_tokens += num_tokens

    def add(self, sequence: FinishedSequence) -> None:
        """One of its sequences has ended."""
        if self.key is not None:
            self.key.account.take_generated(sequence.num_generated_tokens)
        self.num_generated_tokens += sequence.num_generated_tokens
        self.num_cached_tokens += sequence.num_cached_tokens
        self.arrival = _earliest(self.arrival, sequence.arrival)
        self.scheduled = _earliest(self.scheduled, sequence.scheduled)
        self.first_token = _earliest(self.first_token, sequence.first_token)
        if sequence.last_token is not None:
            self.last_token = max(self.last_token or sequence.last_token, sequence.last_token)
        self.finish_reasons[str(sequence.reason)] = None

    def fail(self, error: APIError) -> None:
        """The answer failed after its status was sent."""
        self.error_status, self.error_code = error.status, error.code

    @property
    def has_begun(self) -> bool:
        """Has the answer?"""
        return self.status != CLIENT_GONE

    @property
    def final_status(self) -> int:
        """The status; of an answer that failed later, the one that it would have had."""
        return self.status if self.error_status is None else self.error_status

    def log_fields(self, seconds: float) -> dict[str, Any]:
        """The line of the log, for programs. Nothing that the user wrote but the request's id."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "key": None if self.key is None else self.key.name,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "seconds": round(seconds, 6),
        }
        if self.model is not None and not self.in_background:
            fields |= self._usage_fields()
        return fields | self._error_fields()

    def generation_fields(self, seconds: float) -> dict[str, Any]:
        """The line of the log that ends a generation in the background, for programs."""
        return {
            "request_id": self.request_id,
            "key": None if self.key is None else self.key.name,
            "route": self.route,
            "seconds": round(seconds, 6),
            **self._usage_fields(),
            **self._error_fields(),
        }

    def _error_fields(self) -> dict[str, Any]:
        return {} if self.error_status is None else {"error": self.error_code}

    def _usage_fields(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "generation_tokens": self.num_generated_tokens,
            "finish_reasons": list(self.finish_reasons),
        }


def _earliest(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else min(a, b)
