"""How far requests are that have no token yet, told to the users who asked.

A request hears at most once per step, and only of what has changed: of its prompt after every step
that computed some of it, of its place in the queue when that has moved by an eighth. So a request
that begins behind a thousand others hears of its place about fifty times, and when one request is
admitted not all that wait are told.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.contracts.messages import EngineOutput, PromptProgress
from octavo.core.request import Request

_STEPS_PER_PLACE = 8


class ProgressReports:
    """The requests that asked (`SamplingParams.report_progress`), until their first token."""

    def __init__(self) -> None:
        self._told: dict[Request, PromptProgress | None] = {}

    def add(self, request: Request) -> None:
        """A request came."""
        params = request.engine_request.sampling_params
        if params is not None and params.report_progress:
            self._told[request] = None

    def remove(self, request: Request) -> None:
        """A request has ended."""
        self._told.pop(request, None)

    def news(self, waiting: Sequence[Request]) -> list[EngineOutput]:
        """What there is to tell after a step.

        Args:
            waiting: all waiting requests, the next one first.
        """
        if not self._told:
            return []
        places = {request: i for i, request in enumerate(waiting) if request in self._told}
        outputs = []
        for request, told in list(self._told.items()):
            if request.output_token_ids:
                del self._told[request]
                continue
            num_computed = min(request.num_processed_tokens, request.num_prompt_tokens)
            now = PromptProgress(places.get(request), num_computed)
            if _is_news(told, now):
                self._told[request] = now
                outputs.append(EngineOutput(request_id=request.request_id, progress=now))
        return outputs


def _is_news(told: PromptProgress | None, now: PromptProgress) -> bool:
    if told is None or told.num_ahead is None or now.num_ahead is None:
        return told != now
    return abs(now.num_ahead - told.num_ahead) >= max(1, told.num_ahead // _STEPS_PER_PLACE)
