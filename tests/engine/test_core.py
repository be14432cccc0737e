"""The loop over scheduler and executor: depth, failures, aborts, ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.contracts.features import Admission, HookRequest, SchedulerHook
from octavo.contracts.messages import EngineOutput, EngineRequest, FinishReason
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.errors import ConfigError, EngineDeadError, RequestError
from octavo.executor.base import ExecutorInfo
from tests.engine.fakes import EOS, FakeExecutor


@pytest.fixture(autouse=True)
def _check_integrity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CHECK", "1")


def make(
    *, hooks: Sequence[SchedulerHook] = (), executor: dict[str, Any] | None = None, **options: Any
) -> tuple[EngineCore, FakeExecutor]:
    config = EngineConfig.from_flat(**options)
    fake = FakeExecutor(config=config, **(executor or {}))
    return EngineCore(fake, hooks), fake


def request(request_id: str, prompt: Sequence[int] = (1, 2, 3), **params: Any) -> EngineRequest:
    values = {"max_tokens": 8, "ignore_eos": True, "temperature": 0.0, "seed": 1} | params
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(**values),
        eos_token_ids=[EOS],
    )


def run(core: EngineCore) -> dict[str, list[EngineOutput]]:
    """Step until nothing is left."""
    seen: dict[str, list[EngineOutput]] = {}
    for _ in range(10_000):
        if not core.has_work():
            return seen
        for output in core.step():
            seen.setdefault(output.request_id, []).append(output)
    raise AssertionError("the core does not come to an end")


def token_ids(outputs: list[EngineOutput]) -> list[int]:
    return [i for o in outputs for i in o.new_token_ids]


def workload() -> list[EngineRequest]:
    prompts = [range(i, i + n) for i, n in enumerate((1, 16, 17, 40, 33, 5, 64, 31))]
    return [
        request(str(i), list(p), temperature=float(i % 2), seed=i, max_tokens=20 + i)
        for i, p in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """What each request of the workload gives alone, one step at a time."""
    expected = {}
    for r in workload():
        core, _ = make()
        core.add_request(r)
        expected[r.request_id] = token_ids(run(core)[r.request_id])
    return expected


class TestSteps:
    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("budget", [7, 2048])
    @pytest.mark.parametrize("num_blocks", [12, 64])
    def test_depth_budget_and_preemption_do_not_change_the_answer(
        self, alone: dict[str, list[int]], depth: int, budget: int, num_blocks: int
    ) -> None:
        core, _ = make(
            executor={"num_blocks": num_blocks},
            pipeline_depth=depth,
            max_num_batched_tokens=budget,
        )
        for r in workload():
            core.add_request(r)
        outputs = run(core)
        assert {i: token_ids(o) for i, o in outputs.items()} == alone
        assert {o[-1].finish_reason for o in outputs.values()} == {FinishReason.LENGTH}
        assert (core.stats().num_preemptions > 0) == (num_blocks == 12)
        assert core.stats().num_used_blocks == 0

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_the_queue_is_filled_before_a_result_is_waited_for(self, depth: int) -> None:
        gate = threading.Semaphore(0)
        core, executor = make(executor={"gate": gate}, pipeline_depth=depth)
        core.add_request(request("r"))
        stepping = threading.Thread(target=core.step)
        stepping.start()
        deadline = time.monotonic() + 10
        while len(executor.steps) < depth and time.monotonic() < deadline:
            time.sleep(0.001)
        gate.release(100)
        stepping.join()
        assert len(executor.steps) == executor.max_in_flight == depth

    def test_nothing_to_do(self) -> None:
        core, executor = make()
        assert core.step() == []
        assert executor.steps == []
        assert not core.has_work()

    def test_workers_hear_of_an_end_once_and_nothing_is_computed_for_it(self) -> None:
        core, executor = make()
        core.add_request(request("r", max_tokens=1))
        run(core)
        assert [s.finished_request_ids for s in executor.steps] == [[], ["r"]]
        assert [s.total_num_scheduled_tokens for s in executor.steps] == [3, 0]
        assert not core.has_work()

    def test_queue_time_comes_with_the_first_output(self) -> None:
        core, _ = make(max_num_seqs=1)
        for i in "ab":
            core.add_request(request(i, max_tokens=3))
        outputs = run(core)
        for i in "ab":
            assert [o.queue_time is None for o in outputs[i]] == [False, True, True]
        assert outputs["b"][0].queue_time > outputs["a"][0].queue_time

    def test_progress_is_no_output(self) -> None:
        """What comes with the first output does not come before it."""
        core, _ = make(max_num_batched_tokens=4)
        core.add_request(request("r", range(1, 11), max_tokens=2, report_progress=True))
        outputs = run(core)["r"]
        assert [o.progress is None for o in outputs] == [False, False, True, True]
        assert [o.queue_time is None for o in outputs] == [True, True, False, True]

    def test_stats_are_those_after_the_last_step(self) -> None:
        core, _ = make()
        core.add_request(request("r"))
        assert core.stats().num_running == 0
        core.step()
        assert core.stats().num_running == 1


class TestAborts:
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_nothing_more_comes_and_nothing_is_held(self, depth: int) -> None:
        core, _ = make(pipeline_depth=depth)
        for i in "abc":
            core.add_request(request(i, max_tokens=30))
        for _ in range(3):
            core.step()
        core.abort_requests(["b", "unknown"])
        core.abort_requests(["b"])
        outputs = run(core)
        assert sorted(outputs) == ["a", "c"]
        assert core.stats().num_used_blocks == 0

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_an_id_can_be_used_again_at_once(self, depth: int) -> None:
        core, _ = make(pipeline_depth=depth)
        core.add_request(request("r", [9, 9, 9], max_tokens=30))
        for _ in range(3):
            core.step()
        core.abort_requests(["r"])
        core.add_request(request("r", max_tokens=5))
        fresh, _ = make()
        fresh.add_request(request("r", max_tokens=5))
        assert token_ids(run(core)["r"]) == token_ids(run(fresh)["r"])

    def test_while_waiting(self) -> None:
        core, executor = make()
        core.add_request(request("r"))
        core.abort_requests(["r"])
        assert run(core) == {}
        assert all(not s.num_scheduled_tokens for s in executor.steps)


class TestFailures:
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(self, depth: int) -> None:
        fail = {2: RuntimeError("boom")}
        core, _ = make(executor={"fail": fail}, pipeline_depth=depth)
        for i in "ab":
            core.add_request(request(i, max_tokens=10))
        outputs = run(core)
        for i in "ab":
            assert outputs[i][-1].finish_reason is FinishReason.ERROR
            assert "boom" in outputs[i][-1].error
            assert len(token_ids(outputs[i])) == 2
        assert core.stats().num_used_blocks == 0
        core.add_request(request("c"))
        fresh, _ = make()
        fresh.add_request(request("c"))
        assert token_ids(run(core)["c"]) == token_ids(run(fresh)["c"])

    def test_requests_that_are_not_in_the_step_go_on(self) -> None:
        core, _ = make(executor={"fail": {0: RuntimeError("boom")}}, max_num_batched_tokens=8)
        core.add_request(request("a", range(8)))
        core.add_request(request("b", range(50, 60)))
        outputs = run(core)
        assert outputs["a"][-1].finish_reason is FinishReason.ERROR
        assert outputs["b"][-1].finish_reason is FinishReason.LENGTH

    def test_execute_model_may_raise_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core, executor = make()
        core.add_request(request("a"))

        def execute_model(step: object) -> None:
            raise ValueError("not this one")

        with monkeypatch.context() as patch:
            patch.setattr(executor, "execute_model", execute_model)
            (output,) = core.step()
        assert output.finish_reason is FinishReason.ERROR
        assert "not this one" in output.error
        core.add_request(request("b"))
        assert run(core)["b"][-1].finish_reason is FinishReason.LENGTH

    def test_an_unhealthy_executor_is_the_end(self) -> None:
        core, executor = make(executor={"fail": {0: RuntimeError("boom")}})
        executor.healthy = False
        core.add_request(request("a"))
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="worker is gone"):
                core.step()
        for call in (
            lambda: core.add_request(request("b")),
            lambda: core.abort_requests(["a"]),
            core.reset_prefix_cache,
        ):
            with pytest.raises(EngineDeadError, match="worker is gone"):
                call()

    def test_a_broken_scheduler_is_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core, _ = make()
        core.add_request(request("a"))

        def schedule() -> None:
            raise KeyError("lost")

        monkeypatch.setattr(core.scheduler, "schedule", schedule)
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="KeyError: 'lost'"):
                core.step()

    def test_broken_invariants_are_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core, _ = make()
        core.add_request(request("a"))

        def check_integrity() -> None:
            raise AssertionError("invariant 3")

        monkeypatch.setattr(core.scheduler, "check_integrity", check_integrity)
        with pytest.raises(EngineDeadError, match="invariant 3"):
            core.step()

    def test_refused_requests_leave_no_trace(self) -> None:
        core, _ = make(executor={"num_blocks": 4})
        core.add_request(request("a"))
        with pytest.raises(RequestError):
            core.add_request(request("a"))
        with pytest.raises(RequestError):
            core.add_request(request("b", range(200)))
        assert list(run(core)) == ["a"]

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([[5, 300]], "bad_words_token_ids holds 300"),
            ([[-1]], "bad_words_token_ids holds -1"),
            ([[]], "none of them empty"),
            ([[5]] * 257, "at most 256 lists"),
            ([[5] * 2049], "more than 1024 tokens"),
        ],
    )
    def test_bad_words_are_checked_again(self, words: list[list[int]], says: str) -> None:
        core, _ = make()
        bad = request("a")
        bad.bad_words_token_ids = words
        with pytest.raises(RequestError, match=says):
            core.add_request(bad)
        bad.bad_words_token_ids = [[5]] * 256
        core.add_request(bad)

    def test_an_executor_that_cannot_start_is_shut_down(self) -> None:
        class Broken(FakeExecutor):
            def start(self) -> ExecutorInfo:
                raise ConfigError("no memory")

        executor = Broken()
        with pytest.raises(ConfigError, match="no memory"):
            EngineCore(executor)
        assert executor.num_shutdowns == 1

    def test_an_interrupted_wait_loses_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        core, _ = make(pipeline_depth=2)
        core.add_request(request("a"))
        core.step()

        def result(future: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("concurrent.futures.Future.result", result)
            with pytest.raises(KeyboardInterrupt):
                core.step()
        fresh, _ = make()
        fresh.add_request(request("a"))
        first = token_ids(run(fresh)["a"])
        assert token_ids(run(core)["a"]) == first[1:]

    def test_shutdown(self) -> None:
        core, executor = make(pipeline_depth=2)
        core.add_request(request("a"))
        core.step()
        core.shutdown()
        core.shutdown()
        assert executor.num_shutdowns == 2
        with pytest.raises(EngineDeadError, match="shut down"):
            core.step()


class _Gate(SchedulerHook):
    """Admits nothing until told; fails what it is told to."""

    name = "gate"

    def __init__(self) -> None:
        self.verdict = Admission.WAIT

    def can_admit(self, request: HookRequest) -> Admission:
        return self.verdict

    def error_of(self, request: HookRequest) -> str:
        return "no entry"


class TestHooks:
    def test_waiting_for_a_hook_is_no_busy_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = _Gate()
        core, executor = make(hooks=[gate])
        naps: list[float] = []
        monkeypatch.setattr(time, "sleep", naps.append)
        core.add_request(request("a"))
        for _ in range(3):
            assert core.step() == []
        assert len(naps) == 3
        assert min(naps) > 0
        assert executor.steps == []
        gate.verdict = Admission.READY
        assert run(core)["a"][-1].finish_reason is FinishReason.LENGTH
        assert len(naps) == 3

    def test_the_error_of_a_hook_comes_though_nothing_runs(self) -> None:
        gate = _Gate()
        gate.verdict = Admission.FAIL
        core, _ = make(hooks=[gate])
        core.add_request(request("a"))
        (output,) = run(core)["a"]
        assert (output.finish_reason, output.error) == (FinishReason.ERROR, "no entry")


class TestHashSecret:
    """Block hashes are keyed by a secret of the user's, kept from one process to the next."""

    def test_is_made_once_and_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
        secrets = []
        for _ in range(2):
            make()[0].shutdown()
            secrets.append((tmp_path / "home/block_hash.secret").read_bytes())
        assert len(secrets[0]) == 32
        assert secrets[0] == secrets[1]
        assert (tmp_path / "home/block_hash.secret").stat().st_mode & 0o777 == 0o600

    def test_without_a_place_for_it_the_engine_runs(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        (tmp_path / "home").write_text("a file, not a folder")
        monkeypatch.setenv("OCTAVO_HOME", str(tmp_path / "home"))
        core, _ = make()
        core.add_request(request("a"))
        assert len(token_ids(run(core)["a"])) == 8
        core.shutdown()
        assert "block_hash.secret" in caplog.text
