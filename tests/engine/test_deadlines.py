"""Requests that are late end with what they have."""

from __future__ import annotations

import time
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.contracts.messages import EngineRequest, FinishReason, RequestOutput
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.engine.deadlines import Deadlines
from octavo.engine.llm_engine import LLMEngine
from tests.engine.fakes import FakeExecutor, fake_engine


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**values)


def test_each_is_late_once() -> None:
    deadlines = Deadlines()
    deadlines.add("plain", params(), 100.0)
    deadlines.add("end", params(max_time_ms=2000), 100.0)
    deadlines.add("first", params(ttft_deadline_ms=1000, max_time_ms=5000), 100.0)
    deadlines.add("begun", params(ttft_deadline_ms=500, max_time_ms=4000), 100.0)
    deadlines.add("ended", params(max_time_ms=1), 100.0)
    deadlines.has_begun("begun")
    deadlines.has_begun("plain")
    deadlines.remove("ended")
    assert deadlines.take_late(100.4) == []
    assert deadlines.take_late(100.9) == []
    assert deadlines.take_late(101.0) == ["first"]
    assert deadlines.take_late(103.0) == ["end"]
    assert deadlines.take_late(104.0) == ["begun"]
    assert deadlines.take_late(1e9) == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def run(engine: LLMEngine) -> list[RequestOutput]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


@pytest.mark.parametrize("depth", [1, 2])
def test_a_partial_answer(clock: list[float], depth: int) -> None:
    engine = fake_engine(pipeline_depth=depth)
    plain = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    engine.add_request("whole", "abc", plain)
    whole = run(engine)[-1].outputs[0]
    engine.add_request(
        "late", "abc", SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, max_time_ms=50)
    )
    engine.add_request("other", "abc", plain)
    for _ in range(4):
        engine.step()
    clock[0] += 0.05
    last = {output.request_id: output.outputs[0] for output in run(engine)}
    assert last["late"].finish_reason == "timeout"
    assert 0 < len(last["late"].token_ids) < 20
    assert whole.token_ids[: len(last["late"].token_ids)] == last["late"].token_ids
    assert whole.text.startswith(last["late"].text)
    assert last["other"].token_ids == whole.token_ids
    assert engine.stats().num_used_blocks == 0


def test_no_first_token_in_time(clock: list[float]) -> None:
    """One that waits for its place ends where it is; one that has begun goes on."""
    engine = fake_engine(max_num_seqs=1)
    values = {"temperature": 0, "max_tokens": 9, "ignore_eos": True, "ttft_deadline_ms": 10}
    engine.add_request("first", "abc", SamplingParams(**values))
    engine.add_request("second", "abc", SamplingParams(**values))
    engine.step()
    clock[0] += 0.01
    last = {output.request_id: output.outputs[0] for output in run(engine)}
    assert last["first"].finish_reason == "length"
    assert (last["second"].finish_reason, last["second"].token_ids) == ("timeout", [])
    assert engine.stats().num_used_blocks == 0


def test_a_pause_stops_no_clock(clock: list[float]) -> None:
    config = EngineConfig.from_flat()
    core = EngineCore(FakeExecutor(config=config, vocab_size=64))
    params = SamplingParams(seed=0, max_time_ms=50)
    core.add_request(EngineRequest(request_id="a", prompt_token_ids=[1], sampling_params=params))
    core.pause("keep")
    assert not core.has_work()
    clock[0] += 0.05
    assert core.has_work()
    [output] = core.step()
    assert (output.request_id, output.finish_reason) == ("a", FinishReason.TIMEOUT)
    assert not core.has_work()
    core.shutdown()
