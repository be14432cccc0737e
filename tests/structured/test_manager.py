"""The core half: who waits, which tokens may come next, and what happens at limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.features import Admission
from octavo.contracts.messages import EngineRequest, ServiceClass
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import SchedulerOutput
from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured.manager import CONTRADICTION, StructuredOutputs
from octavo.structured.turns import MAX_SHARE
from tests.engine.fakes import EOS
from tests.structured.lab import vocabulary

VOCAB_SIZE = len(vocabulary().token_bytes)
FLAG = GrammarSource("json", '{"enum": [{"name": true}, {"name": "no"}, [1]]}')


@dataclass
class View:
    """A request as the scheduler shows it."""

    request_id: str
    source: GrammarSource | None
    ignore_eos: bool = False
    output_token_ids: list[int] = field(default_factory=list)
    num_prompt_tokens: int = 1
    num_computed_tokens: int = 1
    service_class: ServiceClass = ServiceClass.INTERACTIVE

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def engine_request(self) -> EngineRequest:
        return EngineRequest(
            request_id=self.request_id,
            prompt_token_ids=[1],
            sampling_params=SamplingParams(ignore_eos=self.ignore_eos),
            eos_token_ids=[EOS],
            grammar=self.source,
            service_class=self.service_class,
        )


@pytest.fixture(scope="module")
def manager() -> Iterator[StructuredOutputs]:
    made = StructuredOutputs(vocabulary, vocab_size=VOCAB_SIZE)
    yield made
    made.close()


def admitted(manager: StructuredOutputs, request: View) -> Admission:
    """The answer once it is no longer to wait."""
    manager.on_add(request)
    for _ in range(10_000):
        answer = manager.can_admit(request)
        if answer is not Admission.WAIT:
            return answer
        time.sleep(0.001)
    raise AssertionError("never compiled")


def step_of(manager: StructuredOutputs, *ids: str, **drafts: list[int]) -> SchedulerOutput:
    step = SchedulerOutput(
        step_id=0,
        num_scheduled_tokens={r: 1 + len(drafts.get(r, ())) for r in ids},
        samples=list(ids),
        scheduled_drafts=drafts,
    )
    manager.build_step_meta(step)
    return step


def allowed_rows(manager: StructuredOutputs, *ids: str, **drafts: list[int]) -> list[set[int]]:
    """What each logits row of a step may sample."""
    grammar, failed = manager.masks(step_of(manager, *ids, **drafts))
    assert not failed
    assert grammar is not None
    bits = np.unpackbits(grammar.bitmask.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


class TestAdmission:
    def test_a_request_waits_until_its_grammar_is_there(self, manager: StructuredOutputs) -> None:
        request = View("slow", GrammarSource("regex", "slow|fast"))
        manager.on_add(request)
        assert manager.can_admit(request) is Admission.WAIT
        assert manager.can_admit(View("other", None)) is Admission.READY
        assert admitted(manager, request) is Admission.READY
        manager.on_finish(request)

    def test_a_bad_grammar_fails_its_request(self, manager: StructuredOutputs) -> None:
        request = View("bad", GrammarSource("regex", "("))
        assert admitted(manager, request) is Admission.FAIL
        assert "unclosed group" in manager.error_of(request)
        manager.on_finish(request)
        assert not manager._requests

    def test_one_that_leaves_while_it_waits(self, manager: StructuredOutputs) -> None:
        request = View("gone", GrammarSource("regex", "gone+"))
        manager.on_add(request)
        manager.on_finish(request)
        manager.on_finish(request)
        assert not manager._requests


class TestChecks:
    """What is said of a grammar before a request has it."""

    def checked(
        self, manager: StructuredOutputs, source: GrammarSource, first: list[int] | None
    ) -> str:
        for _ in range(10_000):
            answer = manager.check(source, first)
            if answer is not None:
                return answer
            time.sleep(0.001)
        raise AssertionError("never compiled")

    def test_what_it_begins_with(self, manager: StructuredOutputs) -> None:
        source = GrammarSource("regex", "(a|b)c")
        assert manager.check(source, None) is None
        for first in (None, [ord("a")], [ord("c"), ord("b")]):
            assert self.checked(manager, source, first) == ""
        for first in ([ord("c")], [EOS], [*range(ord("c"), VOCAB_SIZE)], [], [2**31 - 1]):
            assert self.checked(manager, source, first) == CONTRADICTION
        assert self.checked(manager, GrammarSource("regex", "(ab)?"), [EOS]) == ""

    def test_what_does_not_compile(self, manager: StructuredOutputs) -> None:
        assert "cannot be used" in self.checked(manager, GrammarSource("lark", "rubbish (("), None)

    def test_what_nobody_waits_for(self) -> None:
        manager = StructuredOutputs(vocabulary, vocab_size=VOCAB_SIZE)
        try:
            sources = [GrammarSource("regex", f"({'a' * i}|b)*") for i in range(1, 40)]
            for source in sources:
                assert manager.check(source, None) is None
            manager.on_add(View("waits", sources[-1]))
            for source in sources:
                manager.forget(source)
            assert admitted(manager, View("waits", sources[-1])) is Admission.READY
            # At most those that had been begun were compiled.
            assert len(manager._compiler._done) < len(sources) - 1
            assert not manager._compiler._queue
        finally:
            manager.close()


class TestMasks:
    def test_follow_the_output(self, manager: StructuredOutputs) -> None:
        request = View("a", GrammarSource("regex", "ab?"))
        assert admitted(manager, request) is Admission.READY
        assert allowed_rows(manager, "a") == [{ord("a")}]
        request.output_token_ids.append(ord("a"))
        assert allowed_rows(manager, "a") == [{ord("b"), EOS}]
        assert allowed_rows(manager, "a") == [{ord("b"), EOS}]  # a step that was dropped
        request.output_token_ids.append(ord("b"))
        assert allowed_rows(manager, "a") == [{EOS}]
        manager.on_finish(request)

    def test_only_who_samples_and_has_one(self, manager: StructuredOutputs) -> None:
        a, b = View("a", GrammarSource("regex", "a")), View("b", GrammarSource("regex", "b"))
        for request in (a, b):
            admitted(manager, request)
        assert manager.masks(step_of(manager, "plain")) == (None, {})
        step = step_of(manager, "b", "plain", "a")
        assert step.grammar_request_ids == ["b", "a"]
        assert allowed_rows(manager, "b", "plain", "a") == [{ord("b")}, {ord("a")}]
        for request in (a, b):
            manager.on_finish(request)

    def test_rows_behind_drafts(self, manager: StructuredOutputs) -> None:
        request = View("a", GrammarSource("regex", "abc"))
        admitted(manager, request)
        a, b, c, z = b"abcz"
        rows = allowed_rows(manager, "a", a=[a, b, c])
        assert rows == [{a}, {b}, {c}, {EOS}]
        everything = set(range(32 * -(-VOCAB_SIZE // 32)))
        assert allowed_rows(manager, "a", a=[a, z, c]) == [{a}, {b}, everything, everything]
        assert allowed_rows(manager, "a") == [{a}]  # drafts leave no trace
        manager.on_finish(request)

    def test_no_end_while_more_may_come(self, manager: StructuredOutputs) -> None:
        request = View("a", GrammarSource("regex", "ab?"), ignore_eos=True)
        admitted(manager, request)
        request.output_token_ids.append(ord("a"))
        assert allowed_rows(manager, "a") == [{ord("b")}]
        request.output_token_ids.append(ord("b"))
        assert allowed_rows(manager, "a") == [{EOS}]
        manager.on_finish(request)

    def test_at_a_limit_the_request_ends(self, manager: StructuredOutputs) -> None:
        """Its row allows all, since what it samples is dropped."""
        greedy = View("a", GrammarSource("lark", 'start: a\na: a a | "x" |'))
        calm = View("b", GrammarSource("regex", "x*"))
        for request in (greedy, calm):
            admitted(manager, request)
            request.output_token_ids += b"x" * 2000
        grammar, failed = manager.masks(step_of(manager, "a", "b"))
        assert list(failed) == ["a"]
        assert "cannot go on: " in failed["a"]
        assert grammar is not None
        assert (grammar.bitmask[0] == -1).all()
        assert not (grammar.bitmask[1] == -1).all()
        for request in (greedy, calm):
            manager.on_finish(request)


class TestCostlyMasks:
    def test_rest_beside_others(
        self, manager: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A second of processor time for every mask, on a clock that stands still."""
        costly, plain = View("a", FLAG), View("plain", None)
        admitted(manager, costly)
        ticks = iter(range(1000))
        monkeypatch.setattr(time, "thread_time", lambda: next(ticks))
        now = time.monotonic() + 1000
        monkeypatch.setattr(time, "monotonic", lambda: now)
        for others, left in (((), 1), (("plain",), 0)):
            manager.masks(step_of(manager, "a", *others))
            step_of(manager, "a", *others)
            assert manager.clamp_tokens(costly, 1) == left
            assert manager.clamp_tokens(plain, 7) == 7
        assert not manager.forced_token_ids(["a"])
        monkeypatch.setattr(time, "monotonic", lambda: now + 1000)
        assert manager.clamp_tokens(costly, 1) == 1
        manager.on_finish(costly)
        assert not any(manager._turns.values())

    def test_preempted_ones_have_no_turn(
        self, manager: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        requests = [View(name, FLAG) for name in "ab"]
        for request in requests:
            admitted(manager, request)
        ticks = iter(range(1000))
        monkeypatch.setattr(time, "thread_time", lambda: next(ticks))
        manager.masks(step_of(manager, "a", "b"))
        step_of(manager, "a", "b", "plain")
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 1e5)
        assert [manager.clamp_tokens(r, 1) for r in requests] == [1, 0]
        manager.on_preempt(requests[0])
        assert [manager.clamp_tokens(r, 1) for r in requests] == [1, 1]
        requests[0].num_computed_tokens = 0
        manager.masks(step_of(manager, "b", "a"))  # of a step that was planned before
        step_of(manager, "b", "plain")
        monkeypatch.setattr(time, "monotonic", lambda: now + 2e5)
        assert [manager.clamp_tokens(r, 1) for r in requests] == [1, 1]
        for request in requests:
            manager.on_finish(request)

    def test_interactive_ones_do_not_rest_for_batches(
        self, manager: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither for a plain line nor for the turn of a costly one; lines do rest for them."""
        batch = ServiceClass.BATCH
        line, costly_line = View("line", None, service_class=batch), View("b", FLAG)
        costly_line.service_class = batch
        chat = View("a", FLAG)
        manager.on_add(line)
        for request in (costly_line, chat):
            admitted(manager, request)
        ticks = iter(range(1000))
        monkeypatch.setattr(time, "thread_time", lambda: next(ticks))
        manager.masks(step_of(manager, "b", "a", "line"))
        step_of(manager, "b", "a", "line")
        assert manager.clamp_tokens(chat, 1) == 1
        assert manager.clamp_tokens(costly_line, 1) == 0
        for request in (line, costly_line, chat):
            manager.on_finish(request)
        assert not manager._batch_ids


def test_it_gives_way_to_compiling(
    manager: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there is something to compile, and not all the time."""
    waits: list[float] = []
    now = [time.monotonic() + 1e6]  # whatever other tests have spent

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(manager._compiler, "wait", wait)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for is_busy in (False, True):
        began = now[0]
        monkeypatch.setattr(type(manager._compiler), "is_busy", is_busy)
        for _ in range(1000):
            manager.give_way()
            now[0] += 0.001
        assert bool(waits) == is_busy
    assert 0.8 * MAX_SHARE < sum(waits) / (now[0] - began) < MAX_SHARE + 0.01


def test_compiling_without_end_leaves_masks_their_turns(
    manager: StructuredOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the share is free is asked after a step for compiling, and before it for masks."""
    costly, num_waits, num_turns = View("a", FLAG), 0, 0
    admitted(manager, costly)
    now = time.monotonic() + 2e6  # whatever other tests have spent

    def wait(seconds: float) -> None:
        nonlocal num_waits, now
        num_waits += 1
        now += seconds

    ticks = iter(range(10**6))
    monkeypatch.setattr(time, "thread_time", lambda: 0.002 * next(ticks))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(manager._compiler, "wait", wait)
    monkeypatch.setattr(type(manager._compiler), "is_busy", True)
    for _ in range(500):
        ids = ["plain", *(["a"] if manager.clamp_tokens(costly, 1) else [])]
        num_turns += len(ids) - 1
        manager.masks(step_of(manager, *ids))
        now += 0.011
        manager.give_way()
    assert num_turns > 50
    assert num_waits > 50
    manager.on_finish(costly)


class TestForcedTokens:
    @given(seed=st.integers(0, 2**32))
    def test_are_what_the_masks_leave(self, manager: StructuredOutputs, seed: int) -> None:
        """Whatever came before: each of them is the only token that its mask allows."""
        rng = np.random.default_rng(seed)
        request = View("a", FLAG)
        admitted(manager, request)
        while True:
            forced = manager.forced_token_ids(["a"]).get("a", [])
            rows = allowed_rows(manager, "a", a=forced)
            assert [{i} for i in forced] == rows[: len(forced)]
            request.output_token_ids += forced
            chosen = int(rng.choice(sorted(rows[-1])))
            if chosen == EOS:
                break
            request.output_token_ids.append(chosen)
        manager.on_finish(request)

    def test_of_nobody_else(self, manager: StructuredOutputs) -> None:
        request = View("a", GrammarSource("regex", "name"))
        admitted(manager, request)
        assert list(manager.forced_token_ids(["a", "plain"])) == ["a"]
        manager.on_finish(request)
        assert not manager.forced_token_ids(["a"])
