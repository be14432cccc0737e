"""One request's outputs on their way from the receiving task to the request's generator."""

from __future__ import annotations

import asyncio

from octavo.contracts.answer_events import joined as joined_events
from octavo.contracts.messages import RequestOutput
from octavo.contracts.sampling_params import RequestOutputKind


class OutputStream:
    """A mailbox for one reader. Never more than one output is kept for a slow one: a newer output
    replaces it, or, for deltas, is joined to it."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._delta = kind is RequestOutputKind.DELTA
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Give the reader an output."""
        if self._output is not None and self._delta:
            output = joined(self._output, output)
        self._output = output
        self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""
        self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """The next output. Raises what `fail` was given, once all outputs were taken."""
        while self._output is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        output, self._output = self._output, None
        return output

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def joined(old: RequestOutput, new: RequestOutput) -> RequestOutput:
    """Two deltas as one: `new`, with the news of `old` before it."""
    outputs = {c.index: c for c in old.outputs}
    for completion in new.outputs:
        before = outputs.get(completion.index)
        if before is not None:
            completion.text = before.text + completion.text
            completion.token_ids = before.token_ids + completion.token_ids
            if before.logprobs is not None:
                completion.logprobs = before.logprobs + (completion.logprobs or [])
            if before.events is not None:
                completion.events = joined_events(before.events + (completion.events or []))
        outputs[completion.index] = completion
    new.outputs = [outputs[i] for i in sorted(outputs)]
    if new.outputs:
        new.progress = None
    if new.prompt_logprobs is None:
        new.prompt_logprobs = old.prompt_logprobs
    return new
