from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from octavo.contracts.features import Admission, HookRequest, SchedulerHook
from octavo.contracts.messages import FinishReason
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.step import RunnerOutput, SchedulerOutput
from octavo.core.hooks import HookChain
from octavo.core.request import Request
from octavo.errors import RequestError
from tests.core.fake_worker import FakeCore, make_request


class Diary(SchedulerHook):
    """Writes down what it hears; does what it is told."""

    def __init__(self, name: str = "diary") -> None:
        self.name = name
        self.heard: list[tuple[Any, ...]] = []
        self.admission = Admission.READY
        self.waits_for = ""
        self.clamp: int | None = None
        self.keeps = False
        self.freed: list[str] = []
        self.keys: dict[str, Hashable] = {}

    def on_add(self, request: HookRequest) -> None:
        self.heard.append(("add", request.request_id, request.num_prompt_tokens))

    def can_admit(self, request: HookRequest) -> Admission:
        return Admission.WAIT if request.request_id == self.waits_for else self.admission

    def error_of(self, request: HookRequest) -> str:
        return f"{self.name} does not want {request.request_id}"

    def clamp_tokens(self, request: HookRequest, num_new_tokens: int) -> int:
        assert num_new_tokens > 0
        return num_new_tokens if self.clamp is None else self.clamp

    def extra_hash_keys(self, request: HookRequest, start: int, end: int) -> Sequence[Hashable]:
        key = self.keys.get(request.request_id)
        return () if key is None else (key,)

    def on_preempt(self, request: HookRequest) -> None:
        assert request.num_computed_tokens == 0
        self.heard.append(("preempt", request.request_id))

    def on_finish(self, request: HookRequest) -> bool:
        self.heard.append(("finish", request.request_id, tuple(request.output_token_ids)))
        return self.keeps

    def take_freed(self) -> Sequence[str]:
        freed, self.freed = self.freed, []
        return freed

    def build_step_meta(self, step: SchedulerOutput) -> Any:
        return len(step.num_scheduled_tokens) or None

    def on_output(self, step: SchedulerOutput, output: RunnerOutput) -> None:
        self.heard.append(("output", step.step_id, output.step_id))


def request(request_id: str = "r") -> Request:
    return Request(make_request(request_id, [1]), arrival_index=0, num_groups=1, max_len=9)


class TestChain:
    def test_no_hooks(self) -> None:
        chain = HookChain([])
        assert not chain.clamps
        assert not chain.adds_hash_keys
        assert chain.admission(request()) == (Admission.READY, None)
        assert chain.clamp(request(), 5) == 5
        assert not chain.finished(request())
        assert chain.take_freed() == []

    def test_one_refusal_or_delay_is_enough(self) -> None:
        a, b = Diary("a"), Diary("b")
        chain = HookChain([a, b])
        a.admission = Admission.WAIT
        assert chain.admission(request()) == (Admission.WAIT, None)
        b.admission = Admission.FAIL
        assert chain.admission(request()) == (Admission.FAIL, b)

    def test_only_hooks_with_an_answer_are_asked(self) -> None:
        chain = HookChain([SchedulerHook(), Diary("a")])
        assert chain.clamps
        assert chain.adds_hash_keys
        chain = HookChain([SchedulerHook()])
        assert not chain.clamps
        assert not chain.adds_hash_keys

    def test_one_that_clamps_nothing_now_is_not_asked(self) -> None:
        class Resting(Diary):
            clamps = False

        assert not HookChain([Resting("a")]).clamps
        assert HookChain([Resting("a"), Diary("b")]).clamps

    def test_the_tightest_clamp_counts(self) -> None:
        a, b = Diary("a"), Diary("b")
        a.clamp, b.clamp = 7, 3
        assert HookChain([a, b]).clamp(request(), 5) == 3
        b.clamp = -1
        assert HookChain([a, b]).clamp(request(), 5) == 0

    def test_keys_carry_their_hooks_name(self) -> None:
        a, b = Diary("a"), Diary("b")
        a.keys["r"] = b.keys["r"] = "same"
        keys = HookChain([a, b]).extra_hash_keys(request(), 0, 16)
        assert keys == [("hook/a", "same"), ("hook/b", "same")]

    def test_blocks_stay_until_every_keeper_lets_go(self) -> None:
        a, b, c = Diary("a"), Diary("b"), Diary("c")
        a.keeps = c.keeps = True
        chain = HookChain([a, b, c])
        kept = request()
        assert chain.finished(kept)
        assert [r for r in chain.kept if r is kept]
        assert chain.keeps("r")
        a.freed = b.freed = ["r", "unknown"]
        assert chain.take_freed() == []
        c.freed = ["r"]
        assert chain.take_freed() == [kept]
        assert not chain.keeps("r")

    def test_step_data_is_kept_apart_by_name(self) -> None:
        step = SchedulerOutput(step_id=0, num_scheduled_tokens={"r": 1})
        HookChain([Diary("a"), Diary("b")]).add_step_meta(step)
        assert step.extras == {"a": 1, "b": 1}


class TestInTheScheduler:
    def test_all_hear_of_everything_in_order(self) -> None:
        diary = Diary()
        core = FakeCore(hooks=[diary])
        core.add("r", [1] * 20, max_tokens=2, ignore_eos=True)
        core.run()
        assert diary.heard == [
            ("add", "r", 20),
            ("output", 0, 0),
            ("output", 1, 1),
            ("finish", "r", tuple(core.answers["r"].token_ids)),
            ("output", 2, 2),  # the step that tells the workers
        ]
        assert [step.extras for step in core.steps] == [{"diary": 1}, {"diary": 1}, {}]

    def test_a_request_waits_until_it_may_start(self) -> None:
        diary = Diary()
        diary.admission = Admission.WAIT
        core = FakeCore(hooks=[diary])
        core.add("r", [1] * 20, max_tokens=2)
        assert not core.schedule().num_scheduled_tokens
        assert core.scheduler.stats().num_deferred == core.scheduler.stats().num_waiting == 1
        diary.admission = Admission.READY
        core.run()
        assert core.scheduler.stats().num_deferred == 0
        core.check_complete()

    def test_a_refused_request_fails_alone(self) -> None:
        diary = Diary()
        core = FakeCore(hooks=[diary])
        core.add("fine", [1] * 20, max_tokens=5)
        core.step()
        diary.admission = Admission.FAIL
        core.add("bad", [1] * 20, max_tokens=5)
        core.run()
        assert core.answers["bad"].finish_reason is FinishReason.ERROR
        assert core.answers["bad"].error == "diary does not want bad"
        assert core.answers["fine"].token_ids == core.expected("fine")[0]

    def test_a_refusal_reaches_the_user_though_nothing_else_runs(self) -> None:
        diary = Diary()
        diary.admission = Admission.FAIL
        core = FakeCore(hooks=[diary])
        core.add("bad", [1] * 20, max_tokens=5)
        core.step()
        assert core.answers["bad"].finish_reason is FinishReason.ERROR

    def test_clamps_slow_down_and_change_nothing(self) -> None:
        diary = Diary()
        core = FakeCore(hooks=[diary])
        core.add("r", [1] * 20, max_tokens=5)
        diary.clamp = 0
        assert not core.schedule().num_scheduled_tokens
        diary.clamp = 3
        assert core.schedule().num_scheduled_tokens == {"r": 3}
        core.settle()
        diary.clamp = 0
        assert not core.schedule().num_scheduled_tokens
        diary.clamp = 9
        core.run()
        core.check_complete()

    def test_clamped_drafts_are_cut_before_tokens(self) -> None:
        diary = Diary()
        core = FakeCore(hooks=[diary])
        core.add("r", [1] * 20, max_tokens=9, ignore_eos=True)
        core.step()
        diary.clamp = 3
        core.scheduler.update_draft_token_ids({"r": core.expected("r")[0][1:6]})
        step = core.schedule()
        assert step.num_scheduled_tokens == {"r": 3}
        assert step.scheduled_drafts == {"r": core.expected("r")[0][1:3]}
        core.settle()
        core.run()
        core.check_complete()

    def test_where_tokens_are_clamped_there_are_no_drafts(self) -> None:
        diary = Diary()
        core = FakeCore(hooks=[diary])
        core.add("r", [1] * 20, max_tokens=9, ignore_eos=True)
        diary.clamp = 10
        core.step()
        diary.clamp = 7  # of the prompt's last ten
        core.scheduler.update_draft_token_ids({"r": core.expected("r")[0][:4]})
        step = core.schedule()
        assert (step.num_scheduled_tokens, step.scheduled_drafts) == ({"r": 7}, {})
        core.settle()
        core.run()
        core.check_complete()

    def test_keys_keep_prefixes_apart(self) -> None:
        diary = Diary()
        diary.keys = {"cat": "cat", "dog": "dog", "cat again": "cat"}
        core = FakeCore(hooks=[diary])
        for request_id in ("cat", "dog", "cat again", "plain"):
            core.add(request_id, [1] * 40, max_tokens=1)
            core.run()
        cached = {r: answer.num_cached_tokens for r, answer in core.answers.items()}
        assert cached == {"cat": 0, "dog": 0, "cat again": 32, "plain": 0}

    def test_a_fork_needs_the_same_keys(self) -> None:
        diary = Diary()
        diary.keys = {"0_n": "cat", "1_n": "dog"}
        core = FakeCore(hooks=[diary])
        core.add_n("n", 2, [1] * 40, max_tokens=4)
        assert [r.request_id for r in core.schedule().new_requests] == ["0_n", "1_n"]
        core.run()
        assert not any(step.block_copies for step in core.steps)

    def test_a_preemption_is_told(self) -> None:
        diary = Diary()
        core = FakeCore(hooks=[diary], num_blocks=5)
        for i in range(2):
            core.add(str(i), [i + 1] * 30, max_tokens=20, ignore_eos=True)
        core.run()
        assert ("preempt", "1") in diary.heard
        core.check_complete()

    def test_kept_blocks_are_not_handed_out_and_the_id_stays_in_use(self) -> None:
        diary = Diary()
        diary.keeps = True
        core = FakeCore(hooks=[diary], num_blocks=5)
        core.add("r", [1] * 30, max_tokens=1)
        core.step()
        assert core.scheduler.stats().num_used_blocks == 2
        assert core.scheduler.has_work()
        assert not core.scheduler.has_unfinished_requests()
        assert not core.scheduler.reset_prefix_cache()
        core.add("big", [2] * 40, max_tokens=1)
        core.step()
        assert not core.answers["big"].outputs
        with pytest.raises(RequestError, match="'r' is in use"):
            core.scheduler.add_request(make_request("r", [1]))
        diary.keeps = False
        diary.freed = ["r"]
        core.run()
        core.check_complete()

    def test_kept_blocks_of_half_a_prompt_are_not_forked(self) -> None:
        diary = Diary()
        diary.keeps = True
        core = FakeCore(hooks=[diary], budget=16)
        core.add_n("n", 2, [1] * 40, max_tokens=3)
        core.step()
        core.finish("0_n")
        diary.keeps = False
        while core.scheduler.has_unfinished_requests():
            core.step()
        assert core.answers["1_n"].token_ids == core.expected("1_n")[0]
        diary.freed = ["0_n"]
        core.run()

    def test_a_child_waits_for_a_parent_that_may_not_start(self) -> None:
        diary = Diary()
        diary.waits_for = "0_n"
        core = FakeCore(hooks=[diary])
        core.add_n("n", 2, [1] * 40, max_tokens=3)
        assert not core.schedule().num_scheduled_tokens
        diary.waits_for = ""
        core.run()
        core.check_complete()
        assert any(step.block_copies for step in core.steps)

    def test_pooled_vectors_end_a_request(self) -> None:
        core = FakeCore(budget=8)
        core.add("other", [2] * 10, max_tokens=9)
        wire = make_request("r", [1] * 20)
        wire.sampling_params, wire.pooling_params = None, PoolingParams(pooling_type="MEAN")
        for request_id, vector in (("r", np.ones(3, np.float32)), ("none", None)):
            wire.request_id = request_id
            core.scheduler.add_request(wire)
            last = None
            while core.scheduler.has_unfinished_requests() and last is None:
                step = core.scheduler.schedule()
                assert request_id not in step.samples
                ids = list(step.num_scheduled_tokens)
                output = RunnerOutput(
                    step_id=step.step_id,
                    request_ids=ids,
                    sampled_token_ids=[[5] if r in step.samples else [] for r in ids],
                )
                request = core.scheduler._requests[request_id]
                if request.num_computed_tokens == 20 and vector is not None:
                    output.pooler_outputs[request_id] = vector
                for each in core.scheduler.update_from_output(step, output):
                    if each.request_id == request_id:
                        last = each
                core.scheduler.check_integrity()
            assert last is not None
            if vector is None:
                assert last.finish_reason is FinishReason.ERROR
                assert last.error == "the worker returned no vector"
            else:
                assert last.finish_reason is FinishReason.STOP
                assert last.pooling_output is vector
