"""Hooks: how a feature takes part in scheduling and in the runner without either knowing it.

A feature has a core half (`SchedulerHook`) and/or a worker half (`RunnerFeature`), each one file.
They reach their places as lists (`EngineCore(hooks=…)`, `Worker(features=…)`); absent features are
not in them. Every method has a neutral default, so a half overrides what it needs.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from octavo.contracts.messages import EngineRequest
from octavo.contracts.step import NewRequestData, RunnerOutput, SchedulerOutput


class HookRequest(Protocol):
    """What a hook may read of the scheduler's request."""

    @property
    def request_id(self) -> str: ...
    @property
    def engine_request(self) -> EngineRequest: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def output_token_ids(self) -> Sequence[int]: ...


class Admission(enum.Enum):
    """Answer to "may this waiting request run now?"."""

    READY = "ready"
    WAIT = "wait"  # skip it in this step, ask again in the next
    FAIL = "fail"  # end it with an error (the hook gives the text)


class SchedulerHook:
    """Core half of a feature. All methods run in the scheduler's thread and must be cheap.

    Attributes:
        name: of the feature.
        error_param: the request's field that `error_of` is about; None if it is not the request's
            fault.
    """

    name: str = ""
    error_param: str | None = None

    def on_add(self, request: HookRequest) -> None:
        """A request arrived."""

    def can_admit(self, request: HookRequest) -> Admission:
        """May it leave the waiting queue (grammar compiled, adapter slot free, KV arrived …)?"""
        return Admission.READY

    def error_of(self, request: HookRequest) -> str:
        """The message for the user after `Admission.FAIL`."""
        return f"{self.name} refused the request"

    @property
    def clamps(self) -> bool:
        """Whether `clamp_tokens` may allow less now than it is asked for; asked once per step."""
        return True

    def clamp_tokens(self, request: HookRequest, num_new_tokens: int) -> int:
        """At most how many of `num_new_tokens` may be scheduled now (≥ 0)."""
        return num_new_tokens

    def extra_hash_keys(self, request: HookRequest, start: int, end: int) -> Sequence[Hashable]:
        """Keys, beside tokens, that change the KV of tokens start…end-1. Tag each with its kind."""
        return ()

    def on_preempt(self, request: HookRequest) -> None:
        """It lost its blocks and will be computed again. They may be written to by the next step:
        reads that outlive a step must be over before that step's forward (`before_forward`)."""

    def on_finish(self, request: HookRequest) -> bool:
        """It ended. True keeps its blocks until `take_freed` names it."""
        return False

    def take_freed(self) -> Sequence[str]:
        """Ids of ended requests whose delayed blocks may be freed now."""
        return ()

    def build_step_meta(self, step: SchedulerOutput) -> Any | None:
        """Step data for the worker half; stored under `name` in `step.extras` if not None."""
        return None

    def on_output(self, step: SchedulerOutput, output: RunnerOutput) -> None:
        """The worker's results of a step, before requests are updated with it."""


class RunnerFeature:
    """Worker half of a feature: per-request state in rows of the persistent batch.

    One life cycle: add_request / remove_request stage changes, `apply_staged_writes` puts them in
    force, once, before the forward of a step that brings or takes away any request,
    `before_forward` / `after_forward` frame every forward.
    """

    name: str = ""

    def add_request(self, row: int, request: NewRequestData) -> None:
        """The request now lives in `row`."""

    def remove_request(self, row: int) -> None:
        """`row` is free again."""

    def apply_staged_writes(self) -> None:
        """Put all staged changes in force."""

    def before_forward(self, step: SchedulerOutput) -> None:
        """The step is about to run; its own data is `step.extras.get(self.name)`."""

    def after_forward(self, step: SchedulerOutput, output: RunnerOutput) -> None:
        """The step ran; results for the core half go to `output.extras[self.name]`."""
