"""A half that overrides nothing changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.contracts.features import Admission, HookRequest, RunnerFeature, SchedulerHook
from octavo.contracts.messages import EngineRequest
from octavo.contracts.step import NewRequestData, RunnerOutput, SchedulerOutput


@dataclass
class Request:
    """A request as hooks see it."""

    request_id: str = "a"
    engine_request: EngineRequest = field(
        default_factory=lambda: EngineRequest(request_id="a", prompt_token_ids=[1])
    )
    num_prompt_tokens: int = 1
    num_tokens: int = 1
    num_computed_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)


def test_a_hook_is_neutral_by_default() -> None:
    hook, request = SchedulerHook(), Request()
    view: HookRequest = request
    step, output = SchedulerOutput(step_id=0), RunnerOutput(step_id=0)
    hook.on_add(view)
    assert hook.can_admit(view) is Admission.READY
    assert [hook.clamp_tokens(view, n) for n in (0, 1, 2048)] == [0, 1, 2048]
    assert list(hook.extra_hash_keys(view, 0, 16)) == []
    hook.on_preempt(view)
    assert hook.on_finish(view) is False
    assert list(hook.take_freed()) == []
    assert hook.build_step_meta(step) is None
    hook.on_output(step, output)
    assert request == Request()
    assert (step, output) == (SchedulerOutput(step_id=0), RunnerOutput(step_id=0))


def test_a_refusal_names_its_hook() -> None:
    class Adapters(SchedulerHook):
        name = "lora"

    assert "lora" in Adapters().error_of(Request())


def test_a_runner_feature_is_neutral_by_default() -> None:
    feature = RunnerFeature()
    new = NewRequestData(
        request_id="a", token_ids=[1], num_prompt_tokens=1, block_ids=([1],), num_computed_tokens=0
    )
    step, output = SchedulerOutput(step_id=0, new_requests=[new]), RunnerOutput(step_id=0)
    feature.add_request(0, new)
    feature.apply_staged_writes()
    feature.before_forward(step)
    feature.after_forward(step, output)
    feature.remove_request(0)
    assert output == RunnerOutput(step_id=0)
    assert step.extras == {}
