"""How a front end reaches engine cores, wherever they run.

    CoreClient           called step by step (LLMEngine)
    └── InprocClient         a core in this process
    AsyncCoreClient      used on an event loop (AsyncLLM)
    ├── SocketClient         a core in a process of its own (engine/socket_client.py)
    └── ManyCoresClient      several of those; an interface so far

Who speaks to whom is known by the connection, never by what a message says of itself. A front end's
socket tells its cores apart by their identity, the index that they were started with. A core that
serves several front ends has a socket for each; it answers a request by the socket that the request
came by, sends its counters and heartbeats by all, and takes request ids as unique per socket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.contracts.messages import (
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    SchedulerStats,
)
from octavo.contracts.pause_mode import PauseMode

if TYPE_CHECKING:
    from octavo.contracts.engine_view import EngineView
    from octavo.contracts.structured_outputs import GrammarSource
    from octavo.engine.core import EngineCore
    from octavo.engine.wire import CoreInfo
    from octavo.executor.base import ExecutorInfo


class CoreClient(ABC):
    """One engine core, driven by the thread that calls this."""

    info: ExecutorInfo

    @abstractmethod
    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestError: duplicate id, or it can never fit."""

    @abstractmethod
    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; nothing more comes of them. Unknown ids are passed over."""

    @abstractmethod
    def step(self) -> list[EngineOutput]:
        """Run a step: what it brought; nothing where there was nothing to do. Raises
        EngineDeadError."""

    @abstractmethod
    def stats(self) -> SchedulerStats:
        """The scheduler's counters, as last known."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False (and nothing done) while requests hold blocks."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the core. May be called twice."""


class InprocClient(CoreClient):
    """The core in this process."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.info = core.info

    def add_request(self, request: EngineRequest) -> None:
        self.core.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort_requests(request_ids)

    def step(self) -> list[EngineOutput]:
        return self.core.step()

    def stats(self) -> SchedulerStats:
        return self.core.stats()

    def reset_prefix_cache(self) -> bool:
        return self.core.reset_prefix_cache()

    def shutdown(self) -> None:
        self.core.shutdown()


class AsyncCoreClient(ABC):
    """Engine cores in other processes. All methods belong to one event loop, and one task reads
    `get_outputs`. Once a core is dead, every method but `abort_requests` and `shutdown` raises
    EngineDeadError, always of the first cause.
    """

    info: CoreInfo

    @abstractmethod
    async def add_request(self, request: EngineRequest) -> None:
        """Queue a request. What the core finds wrong comes as an output with an error."""

    @abstractmethod
    async def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; outputs under way may still come. A dead core is asked nothing."""

    @abstractmethod
    async def get_outputs(self) -> EngineOutputs:
        """Wait for the next outputs (none where only the counters are new)."""

    @abstractmethod
    async def check_grammar(self, grammar: GrammarSource, first: Sequence[int] | None) -> None:
        """Raise RequestError for a grammar that cannot be used, or whose texts begin with none of
        the tokens `first` (None: with any). Cancelling it takes the grammar back."""

    @abstractmethod
    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False (and nothing done) while requests hold blocks."""

    @abstractmethod
    async def pause(self, mode: PauseMode) -> None:
        """As `EngineCore.pause`."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on after a pause."""

    @abstractmethod
    async def is_paused(self) -> bool:
        """Whether it was paused, and not resumed since."""

    @abstractmethod
    async def has_begun_requests(self) -> bool:
        """Whether any request has run and has not ended."""

    @abstractmethod
    async def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView:
        """What is going on (`Scheduler.observe`), when the step in progress has ended."""

    @abstractmethod
    def check_health(self) -> None:
        """Raises EngineDeadError, or EngineUnresponsiveError: it has not been heard of for seconds,
        and may come back."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop the cores. May be called twice."""


@dataclass(frozen=True, kw_only=True)
class EngineLoad:
    """Requests that an engine has: by its last counters, plus those sent to it since."""

    num_waiting: int
    num_running: int


class ManyCoresClient(AsyncCoreClient):
    """Several cores of the same model, each with its own KV cache, as one (data parallelism).

    - Engines are numbered 0 … `num_engines` - 1 (`CoreHandle(index)`).
    - `add_request` asks `engine_of` once. The request stays there: its abort goes there, and a
      request with `fork_of` goes where its parent went, whose blocks it shares.
    - `get_outputs` gives the outputs of one engine at a time; their `stats` are sums over all
      engines, `load` has each one's.
    - `reset_prefix_cache` is True where it was for every engine; `check_grammar` asks any of them.
    - They live and die together: one dead engine is the death of all.
    """

    num_engines: int

    @abstractmethod
    def engine_of(self, request: EngineRequest) -> int:
        """Index of the engine that shall have a new request: the one with the least
        4 · num_waiting + num_running, as in vLLM, and of equals the lowest index."""

    @abstractmethod
    def load(self, engine_index: int) -> EngineLoad:
        """What an engine has to do."""
