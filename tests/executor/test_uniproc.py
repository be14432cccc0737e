"""The in-process executor: order, errors, end; over toy workers, then over real models."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.contracts.step import GrammarOutput, RunnerOutput, SchedulerOutput
from octavo.errors import EngineDeadError
from octavo.executor.base import Done, StepResult
from octavo.executor.uniproc import UniProcExecutor


class ToyWorker:
    """Writes down what it is asked, in which thread. Steps in `broken` fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.threads: set[int] = set()
        self.broken: dict[tuple[str, int], Exception] = {}
        self.gate: threading.Event | None = None
        self.closed = 0
        self._step_id = -1

    def start(self) -> Any:
        return "info"

    def execute_model(self, step: SchedulerOutput) -> None:
        if self.gate is not None:
            self.gate.wait()
        self._step_id = step.step_id
        self._note("execute")

    def sample_tokens(self, grammar: GrammarOutput | None) -> RunnerOutput:
        self._note("sample")
        return RunnerOutput(step_id=self._step_id)

    def close(self) -> None:
        self.closed += 1

    def _note(self, what: str) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append((what, self._step_id))
        if error := self.broken.get((what, self._step_id)):
            raise error


def make_executor(depth: int, worker: Any) -> UniProcExecutor:
    config = EngineConfig.from_flat(pipeline_depth=depth)
    return UniProcExecutor(config, files=None, worker=worker)  # type: ignore[arg-type]


def submit(executor: UniProcExecutor, step_id: int) -> StepResult:
    executor.execute_model(SchedulerOutput(step_id=step_id))
    return executor.sample_tokens(None)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_steps_run_in_order(depth: int) -> None:
    worker = ToyWorker()
    executor = make_executor(depth, worker)
    assert executor.start() == "info"
    futures = [submit(executor, i) for i in range(20)]
    assert [f.result().step_id for f in futures] == list(range(20))
    assert worker.calls == [(what, i) for i in range(20) for what in ("execute", "sample")]
    assert len(worker.threads) == 1
    assert (threading.get_ident() in worker.threads) == (depth == 1)
    executor.shutdown()


def test_depth_1_has_the_result_at_once() -> None:
    executor = make_executor(1, ToyWorker())
    executor.start()
    assert submit(executor, 0) == Done(RunnerOutput(step_id=0))
    executor.shutdown()


def test_depth_2_does_not_wait_for_the_forward() -> None:
    worker = ToyWorker()
    worker.gate = threading.Event()
    executor = make_executor(2, worker)
    executor.start()
    futures = [submit(executor, i) for i in range(2)]
    assert not any(f.done() for f in futures)
    assert not futures[0].cancel(), "a step cannot be called back"
    worker.gate.set()
    assert [f.result().step_id for f in futures] == [0, 1]
    executor.shutdown()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", ["execute", "sample"])
def test_a_step_that_raises_gives_its_error_to_its_future_only(depth: int, where: str) -> None:
    worker = ToyWorker()
    worker.broken[where, 1] = ValueError("broken")
    executor = make_executor(depth, worker)
    executor.start()
    futures = [submit(executor, i) for i in range(3)]
    assert futures[0].result().step_id == 0
    with pytest.raises(ValueError, match="broken"):
        futures[1].result()
    assert futures[2].result().step_id == 2
    executor.check_health()
    executor.shutdown()
    assert (("sample", 1) in worker.calls) == (where == "sample")


@pytest.mark.parametrize("depth", [1, 2])
def test_after_shutdown_it_is_dead(depth: int) -> None:
    worker = ToyWorker()
    executor = make_executor(depth, worker)
    with pytest.raises(EngineDeadError, match="not running"):
        executor.check_health()
    executor.start()
    future = submit(executor, 0)
    executor.shutdown()
    executor.shutdown()
    assert future.result().step_id == 0, "what was submitted still runs"
    assert worker.closed >= 1
    for call in (executor.check_health, lambda: submit(executor, 1)):
        with pytest.raises(EngineDeadError, match="not running"):
            call()
    assert not [t for t in threading.enumerate() if t.name == "octavo-executor"]


def test_a_worker_that_cannot_start_is_closed() -> None:
    worker = ToyWorker()

    def fail() -> None:
        raise MemoryError

    worker.start = fail  # type: ignore[method-assign]
    executor = make_executor(2, worker)
    with pytest.raises(MemoryError):
        executor.start()
    assert worker.closed == 1
    with pytest.raises(EngineDeadError):
        executor.check_health()
