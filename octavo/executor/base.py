"""Executor: where the workers run. The engine core knows only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import msgspec

from octavo.contracts.step import GrammarOutput, RunnerOutput, SchedulerOutput
from octavo.worker.info import ExecutorInfo

__all__ = ["Done", "Executor", "ExecutorInfo", "StepResult"]


class StepResult(Protocol):
    """What a step brought, or will bring: a `Future`, or `Done`."""

    def result(self) -> RunnerOutput:
        """Wait for it. Raises what the step raised."""


class Done(msgspec.Struct, frozen=True):
    """A step that has run already: a `Future` would make locks that nobody waits at."""

    output: RunnerOutput | Exception

    def result(self) -> RunnerOutput:
        if isinstance(self.output, Exception):
            raise self.output
        return self.output


class Executor(ABC):
    """Two calls per step, because a grammar mask for token i+1 needs token i.

    `execute_model` may return before the forward is done; steps run in the order submitted, and up
    to `pipeline_depth` of them may be in flight.
    """

    @abstractmethod
    def start(self) -> ExecutorInfo:
        """Load the model, plan memory, allocate the KV cache, capture graphs.

        Raises:
            ConfigError, MemoryPlanError, ModelError: it cannot be done; the message says why.
        """

    @abstractmethod
    def execute_model(self, step: SchedulerOutput) -> None:
        """Submit a step's forward."""

    @abstractmethod
    def sample_tokens(self, grammar: GrammarOutput | None) -> StepResult:
        """Submit the sampling of the step last given to `execute_model`."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise EngineDeadError if a worker is gone."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the workers. May be called twice."""
