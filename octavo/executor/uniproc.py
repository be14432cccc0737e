"""The executor of one process: the worker runs in the caller's thread, or in one beside it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from octavo.config.engine import EngineConfig
from octavo.contracts.step import GrammarOutput, RunnerOutput, SchedulerOutput
from octavo.errors import EngineDeadError
from octavo.executor.base import Done, Executor, ExecutorInfo, StepResult
from octavo.models.files import ModelFiles
from octavo.worker.worker import Worker


class StepWorker(Protocol):
    """What the executor asks of a worker."""

    def start(self) -> ExecutorInfo: ...
    def execute_model(self, step: SchedulerOutput) -> None: ...
    def sample_tokens(self, grammar: GrammarOutput | None) -> RunnerOutput: ...
    def close(self) -> None: ...


class UniProcExecutor(Executor):
    """Runs the worker in this process.

    With `pipeline_depth` 1 every call runs at once, in the caller's thread. With more, calls are
    put in a queue that one background thread works off in order: a step's tokens are sampled before
    the next step reads them. A step that raises hands its exception to its Future; what that means
    for the requests is for the engine core to decide, and later steps run.

    Args:
        worker: in place of a `Worker` of `config` and `files`.
    """

    def __init__(
        self, config: EngineConfig, files: ModelFiles, *, worker: StepWorker | None = None
    ) -> None:
        self._worker: StepWorker = Worker(config, files) if worker is None else worker
        self._run_in_background = config.scheduler.pipeline_depth > 1
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._step_error: Exception | None = None
        self._is_open = False

    def start(self) -> ExecutorInfo:
        try:
            info = self._worker.start()
        except BaseException:
            self._worker.close()
            raise
        self._is_open = True
        if self._run_in_background:
            self._thread = threading.Thread(target=self._work, name="octavo-executor", daemon=True)
            self._thread.start()
        return info

    def execute_model(self, step: SchedulerOutput) -> None:
        self.check_health()
        if self._run_in_background:
            self._calls.put(partial(self._execute, step))
        else:
            self._execute(step)

    def sample_tokens(self, grammar: GrammarOutput | None) -> StepResult:
        self.check_health()
        if not self._run_in_background:
            return Done(self._sample(grammar))
        future: Future[RunnerOutput] = Future()
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        self._calls.put(partial(self._sample_for, future, grammar))
        return future

    def check_health(self) -> None:
        if not self._is_open:
            raise EngineDeadError("the executor is not running: start it, or make a new engine")
        if self._thread is not None and not self._thread.is_alive():
            raise EngineDeadError("the executor's thread has ended; make a new engine")

    def shutdown(self) -> None:
        self._is_open = False
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None
        self._worker.close()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _execute(self, step: SchedulerOutput) -> None:
        try:
            self._worker.execute_model(step)
        except Exception as error:
            self._step_error = error

    def _sample(self, grammar: GrammarOutput | None) -> RunnerOutput | Exception:
        error, self._step_error = self._step_error, None
        if error is not None:
            return error
        try:
            return self._worker.sample_tokens(grammar)
        except Exception as raised:
            return raised

    def _sample_for(self, future: Future[RunnerOutput], grammar: GrammarOutput | None) -> None:
        output = self._sample(grammar)
        if isinstance(output, Exception):
            future.set_exception(output)
        else:
            future.set_result(output)
