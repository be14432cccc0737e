"""Everything at once, at random: whatever happens in whatever order, answers are what each request
gives alone, every invariant holds after every event, and in the end nothing is held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo.contracts.features import Admission, HookRequest, SchedulerHook
from octavo.contracts.messages import FinishReason, ServiceClass
from octavo.errors import RequestError
from tests.core.fake_worker import FakeCore

# Few ids and few beginnings, so that prefixes meet.
STEMS = [[7] * 64, [i % 5 + 1 for i in range(64)]]


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    stem = draw(st.sampled_from(STEMS))[: draw(st.integers(0, 60))]
    return stem + draw(st.lists(st.integers(1, 3), min_size=not stem, max_size=9))


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "max_tokens": draw(st.integers(1, 24)),
        "seed": draw(st.integers(0, 3)),
        "ignore_eos": draw(st.booleans()),
        "priority": draw(st.integers(0, 2)),
        "service_class": draw(st.sampled_from([*ServiceClass, ServiceClass.INTERACTIVE])),
        "cache_salt": draw(st.sampled_from([None, None, "a"])),
    }
    if draw(st.booleans()):
        chosen["stop_token_ids"] = draw(st.lists(st.integers(0, 39), max_size=4))
    if draw(st.integers(0, 3)) == 0:
        chosen["min_tokens"] = draw(st.integers(0, chosen["max_tokens"]))
    if draw(st.integers(0, 3)) == 0:
        chosen["logprobs"] = 0
    if draw(st.integers(0, 5)) == 0:
        chosen["prompt_logprobs"] = 0
    return chosen


class Moody(SchedulerHook):
    """Refuses, delays, clamps and keeps blocks, at the test's whim."""

    name = "moody"

    def __init__(self) -> None:
        self.waits = False
        self.clamp = 1000
        self.keeps = False
        self.kept: list[str] = []
        self.ended: set[str] = set()

    def can_admit(self, request: HookRequest) -> Admission:
        if "doomed" in request.request_id:
            return Admission.FAIL
        return Admission.WAIT if self.waits else Admission.READY

    def clamp_tokens(self, request: HookRequest, num_new_tokens: int) -> int:
        return min(self.clamp, num_new_tokens)

    def on_finish(self, request: HookRequest) -> bool:
        assert request.request_id not in self.ended
        self.ended.add(request.request_id)
        if self.keeps:
            self.kept.append(request.request_id)
        return self.keeps

    def take_freed(self) -> list[str]:
        freed: list[str] = []
        if not self.keeps:
            freed, self.kept = self.kept, []
        return freed


class CoreMachine(RuleBasedStateMachine):
    @initialize(
        depth=st.integers(1, 3),
        windows=st.sampled_from([(None,), (None,), (20,), (None, 20), (33, None, 5)]),
        num_blocks=st.integers(7, 14),
        budget=st.sampled_from([3, 16, 40, 200, None]),
        threshold=st.sampled_from([0, 0, 7]),
        max_num_seqs=st.integers(1, 6),
        policy=st.sampled_from(["fcfs", "priority"]),
        prefix_caching=st.sampled_from([True, True, False]),
        hooked=st.booleans(),
    )
    def start(self, hooked: bool, **config: Any) -> None:
        config["num_blocks"] *= len(config["windows"])
        self.hook = Moody()
        self.hooked = hooked
        self.failing: set[str] = set()
        self.core = FakeCore(
            **config,
            max_model_len=96,
            hooks=[self.hook] if hooked else [],
            fails=lambda step_id, request_id: request_id in self.failing,
        )
        self.count = 0

    def _ids(self) -> list[str]:
        return list(self.core.scheduler._requests)

    @rule(prompt=prompts(), chosen=options(), n=st.sampled_from([1, 1, 2, 3]), doom=st.booleans())
    def add(self, prompt: list[int], chosen: Mapping[str, Any], n: int, doom: bool) -> None:
        self.count += 1
        name = f"{self.count}{' doomed' if doom and self.count % 4 == 0 else ''}"
        try:
            self.core.add_n(name, n, prompt, **chosen)
        except RequestError:
            assert len(prompt) + 1 > self.core.scheduler._max_len

    @precondition(lambda self: len(self.core.in_flight) < self.core.depth)
    @rule()
    def schedule(self) -> None:
        self.core.schedule()

    @precondition(lambda self: self.core.in_flight)
    @rule()
    def settle(self) -> None:
        self.core.settle()

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.core.step()

    @precondition(lambda self: self._ids())
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def finish(self, data: st.DataObject, reason: FinishReason) -> None:
        self.core.finish(data.draw(st.sampled_from(self._ids())), reason)

    @precondition(lambda self: self._ids())
    @rule(data=st.data(), wrong_at=st.integers(0, 5), count=st.integers(1, 5))
    def draft(self, data: st.DataObject, wrong_at: int, count: int) -> None:
        """Offer drafts that are right up to some point."""
        request_id = data.draw(st.sampled_from(self._ids()))
        request = self.core.scheduler._requests[request_id]
        token_ids, _, _ = self.core.expected(request_id)
        drafts = token_ids[len(request.output_token_ids) :][:count]
        if wrong_at < len(drafts):
            drafts[wrong_at] = (drafts[wrong_at] + 1) % 40
        self.core.scheduler.update_draft_token_ids({request_id: drafts, "unknown": [1]})

    @precondition(lambda self: self._ids())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """From its next step on the worker cannot compute this one."""
        self.failing.add(data.draw(st.sampled_from(self._ids())))

    @rule(waits=st.booleans(), clamp=st.sampled_from([0, 1, 5, 1000, 1000]), keeps=st.booleans())
    def change_mood(self, waits: bool, clamp: int, keeps: bool) -> None:
        self.hook.waits, self.hook.clamp, self.hook.keeps = waits, clamp, keeps

    @rule()
    def reset(self) -> None:
        held = self.core.scheduler._kv.pool.num_used_blocks
        assert self.core.scheduler.reset_prefix_cache() == (held == 0)
        self.core.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.hook.waits, self.hook.clamp, self.hook.keeps = False, 1000, False
        self.core.run()
        self.core.check_answers()
        for request_id, answer in self.core.answers.items():
            assert answer.finish_reason is not None, request_id
            assert bool(answer.error) == (answer.finish_reason is FinishReason.ERROR)
            assert not (self.hooked and "doomed" in request_id and answer.token_ids)
        # Each id once, though it may never have reached a worker otherwise.
        assert sorted(self.core.worker.finished) == sorted(self.core.answers)
        stats = self.core.scheduler.stats()
        assert stats.generation_tokens == sum(
            len(answer.token_ids) for answer in self.core.answers.values()
        )
        assert stats.num_running == stats.num_waiting == stats.num_used_blocks == 0


TestCore = CoreMachine.TestCase
TestCore.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
