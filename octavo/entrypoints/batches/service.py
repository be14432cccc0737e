"""Batches of one server: its store, beside the event loop, and what runs them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from octavo.entrypoints.batches.answers import LineAnswers
from octavo.entrypoints.batches.errors import storage_error
from octavo.entrypoints.batches.line_runner import LineSlots
from octavo.entrypoints.batches.runner import BatchRun
from octavo.entrypoints.batches.store import Store
from octavo.entrypoints.openai.errors import APIError
from octavo.env import octavo_home
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.state import Server

logger = get_logger(__name__)

T = TypeVar("T")

MAX_ACTIVE = 16
"""Batches that run side by side."""
POLL_SECONDS = 1.0
"""How soon this process hears of what another one, with the same folder, has stored."""
SWEEP_SECONDS = 60.0
RETRY_SECONDS = 30.0
"""After a failure of the store (the disk, the database)."""


class BatchService:
    """See the module.

    Of all processes with the same folder one runs the batches: who has the store's lock.

    Args:
        folder: of the store. Nothing is created before there is something to store.
        clock: seconds since 1970.

    Attributes:
        slots: lines in flight.
        uploads: that are under way, by owner.
        num_finished: lines, by outcome.
    """

    def __init__(
        self, server: Server, folder: Path, *, clock: Callable[[], float] = time.time
    ) -> None:
        config = server.config
        self._folder = folder
        self._clock = clock
        self._max_bytes = config.max_batch_storage_bytes
        self.max_line_bytes = config.max_request_bytes
        self.slots = LineSlots(config.max_batch_lines_in_flight or _idle_places(server))
        self.answers = LineAnswers(server)
        self.uploads: Counter[str] = Counter()
        self.num_finished = {"completed": 0, "failed": 0}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-batches")
        self._store: Store | None = None
        self._news = asyncio.Event()
        self._active: dict[str, BatchRun] = {}

    async def call(self, work: Callable[[Store], T]) -> T:
        """Do something with the store, in its thread. Raises what that raises; of the disk's and
        the database's errors, what `storage_error` makes of them."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, work)

    def call_soon(self, work: Callable[[Store], object]) -> None:
        """The same, without waiting for it."""
        self._thread.submit(self._call, work)

    def _call(self, work: Callable[[Store], T]) -> T:
        try:
            if self._store is None:
                self._store = Store(self._folder, max_bytes=self._max_bytes, clock=self._clock)
            return work(self._store)
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error) from error

    def notify(self) -> None:
        """A batch is new, or is to end."""
        self._news.set()

    # ---------------------------------------------------------------- what it does

    @property
    def num_waiting(self) -> int:
        """Lines of the running batches that have not begun."""
        return max(0, sum(run.num_left for run in self._active.values()) - self.slots.num_running)

    @property
    def num_active(self) -> int:
        """Batches that run."""
        return len(self._active)

    async def run(self) -> None:
        """Run batches until this is cancelled. What is in flight then will run again."""
        tasks: dict[str, asyncio.Task[None]] = {}
        swept = time.monotonic()
        try:
            while True:
                self._news.clear()
                pause = POLL_SECONDS
                try:
                    if self._exists() and await self.call(Store.take_lock):
                        await self._look(tasks)
                        if time.monotonic() > swept + SWEEP_SECONDS:
                            swept = time.monotonic()
                            await self.call(lambda store: store.files.sweep())
                except APIError:  # the store cannot be used, and the log says why
                    pause = RETRY_SECONDS
                except Exception:
                    logger.exception("batches cannot be run now")
                    pause = RETRY_SECONDS
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._news.wait(), pause)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _look(self, tasks: dict[str, asyncio.Task[None]]) -> None:
        """Begin batches, and end those whose time has come."""
        for job in await self.call(lambda store: store.jobs.unfinished(MAX_ACTIVE)):
            run = self._active.get(job.id)
            if run is None and len(self._active) < MAX_ACTIVE:
                run = self._active[job.id] = BatchRun(self, job)
                task = tasks[job.id] = asyncio.create_task(run.run())
                task.add_done_callback(partial(self._ended, tasks, job.id))
            elif run is not None and run.is_to_end(job, self._clock()):
                run.stop()

    def _ended(
        self, tasks: dict[str, asyncio.Task[None]], batch_id: str, task: asyncio.Task[None]
    ) -> None:
        del tasks[batch_id]
        if task.cancelled() or task.exception() is None:
            self._leave(batch_id)
            return
        logger.error("%s could not be ended; it will be tried again", batch_id)
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._leave, batch_id)

    def _leave(self, batch_id: str) -> None:
        """It does not run here any more; what is left of it may be taken up again."""
        del self._active[batch_id]
        self._news.set()

    def _exists(self) -> bool:
        return self._store is not None or (self._folder / "batches.db").exists()

    async def close(self) -> None:
        """Close the store, when all that it was asked has been done."""
        if self._store is not None:
            await self.call(Store.close)
        self._thread.shutdown(wait=False)


def _idle_places(server: Server) -> int:
    """Three quarters of the engines' places, so that a few requests find one without a
    preemption."""
    places = [e.config.scheduler.max_num_seqs for e in server.engines.values()]
    return max(1, 3 * min(places, default=0) // 4)


def batch_folder(config: ServerConfig, model: str) -> str | None:
    """Where a server keeps its files and batches; None: nowhere.

    Without --batch-dir it is a folder of OCTAVO_HOME that servers of other names do not share:
    they could not run the batches.
    """
    if not config.enable_batches:
        return None
    if config.batch_dir is not None:
        return config.batch_dir
    names = config.served_model_name or [model]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9.-]+", "_", names[0])[-40:].strip("._")
    return str(octavo_home() / "batches" / f"{name}-{digest}")
