"""How the front end reaches an EngineCore, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.contracts.messages import EngineOutputs, EngineRequest, SchedulerStats
from octavo.engine.core import EngineCore
from octavo.executor.base import ExecutorInfo


class CoreClient(ABC):
    """The front end's view of one engine core."""

    info: ExecutorInfo

    @abstractmethod
    def add_request(self, request: EngineRequest) -> None:
        """Queue a request."""

    @abstractmethod
    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; nothing more comes of them."""

    @abstractmethod
    def get_outputs(self) -> EngineOutputs:
        """The next outputs; none when there is nothing to do. Raises EngineDeadError."""

    @abstractmethod
    def stats(self) -> SchedulerStats:
        """The scheduler's counters, as last known."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while requests hold blocks."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the core. May be called twice."""


class InprocClient(CoreClient):
    """The core in this process: `get_outputs` runs a step."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.info = core.info

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestError: duplicate id, or it can never fit."""
        self.core.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests at once."""
        self.core.abort_requests(request_ids)

    def get_outputs(self) -> EngineOutputs:
        """Run one step."""
        return self.core.step()

    def stats(self) -> SchedulerStats:
        """The scheduler's counters now."""
        return self.core.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while requests hold blocks."""
        return self.core.reset_prefix_cache()

    def shutdown(self) -> None:
        """Stop the core. May be called twice."""
        self.core.shutdown()
