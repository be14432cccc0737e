"""What several watchers of one engine look at: the core is asked once for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.contracts.engine_view import MAX_ENTRIES, MAX_STEPS

if TYPE_CHECKING:
    from octavo.contracts.engine_view import EngineView, RequestView, StepView
    from octavo.entrypoints.openai.state import EngineClient

REFRESH_SECONDS = 0.4
"""How old a picture may be before the core is asked for another."""

BLOCK_SECONDS = 0.1
"""The same where somebody asks for a block, which is not in it: a look holds up the core, for 12 ms
where it has 100,000 blocks."""

_MAX_ENDED = 4096


class Feed:
    """The last picture of an engine, and the steps before it.

    Args:
        engine: is asked for as long as somebody asks here.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._asking = asyncio.Lock()
        self._latest: EngineView | None = None
        self._taken_at = 0.0
        self._steps: deque[StepView] = deque(maxlen=MAX_STEPS)
        self._num_entries = 0
        self._ended: dict[int, RequestView] = {}

    async def view(self, after_step: int, block_id: int | None = None) -> EngineView:
        """What goes on, with the steps after the one that a watcher knows, and of the requests that
        have ended those that these steps name.

        Raises:
            EngineDeadError: there is nothing to see any more.
        """
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._asking:
            latest = self._latest
            if (
                latest is None
                or block_id is not None
                or asked_at - self._taken_at >= REFRESH_SECONDS
            ):
                if latest is not None:
                    await asyncio.sleep(self._taken_at + BLOCK_SECONDS - loop.time())
                known = self._steps[-1].step_id if self._steps else -1
                latest = await self._engine.observe(known, block_id)
                self._take(latest)
                self._taken_at = loop.time()
        steps = [step for step in self._steps if step.step_id > after_step]
        current = [r for r in latest.requests if r.status != "finished"]
        named = {entry.index for step in steps for entry in step.entries}
        named.difference_update(r.index for r in current)
        ended = [self._ended[i] for i in sorted(named) if i in self._ended]
        changes: dict[str, Any] = {"steps": steps, "requests": current + ended}
        return msgspec.structs.replace(latest, **changes)

    def _take(self, view: EngineView) -> None:
        self._latest = view
        for step in view.steps:
            if len(self._steps) == MAX_STEPS:
                self._forget_oldest()
            self._steps.append(step)
            self._num_entries += len(step.entries)
        while self._num_entries > MAX_ENTRIES:
            self._forget_oldest()
        for request in view.requests:
            if request.status == "finished":
                self._ended[request.index] = request
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _forget_oldest(self) -> None:
        self._num_entries -= len(self._steps.popleft().entries)
