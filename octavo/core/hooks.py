"""The scheduler's end of `contracts.features.SchedulerHook`: several hooks as one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter

from octavo.contracts.features import Admission, SchedulerHook
from octavo.contracts.step import RunnerOutput, SchedulerOutput
from octavo.core.request import Request

_clamps_of = attrgetter("clamps")


class HookChain:
    """All hooks, asked in order. Every hook hears of every event that it has a method for."""

    def __init__(self, hooks: Sequence[SchedulerHook]) -> None:
        self._hooks = tuple(hooks)
        # What comes with every step, every request of it, and every block: for those who listen.
        self._freeing = _overriding(hooks, "take_freed")
        self._planning = _overriding(hooks, "build_step_meta")
        self._hearing = _overriding(hooks, "on_output")
        self._clamping = _overriding(hooks, "clamp_tokens")
        self._hashing = _overriding(hooks, "extra_hash_keys")
        self._kept: dict[str, tuple[Request, set[str]]] = {}

    @property
    def clamps(self) -> bool:
        """Whether `clamp` can change anything now."""
        return any(map(_clamps_of, self._clamping))

    @property
    def adds_hash_keys(self) -> bool:
        """Whether there can be `extra_hash_keys`."""
        return bool(self._hashing)

    def added(self, request: Request) -> None:
        """A request arrived."""
        for hook in self._hooks:
            hook.on_add(request)

    def admission(self, request: Request) -> tuple[Admission, SchedulerHook | None]:
        """Whether all hooks let it run; the hook that fails it, if one does."""
        verdict = Admission.READY
        for hook in self._hooks:
            answer = hook.can_admit(request)
            if answer is Admission.FAIL:
                return answer, hook
            if answer is Admission.WAIT:
                verdict = answer
        return verdict, None

    def clamp(self, request: Request, num_new_tokens: int) -> int:
        """The fewest tokens that any hook allows."""
        for hook in self._clamping:
            num_new_tokens = min(num_new_tokens, hook.clamp_tokens(request, num_new_tokens))
        return max(0, num_new_tokens)

    def extra_hash_keys(
        self, request: Request, start: int, end: int
    ) -> Sequence[tuple[str, Hashable]]:
        """All hooks' keys, each with the hook's name."""
        return [
            (f"hook/{hook.name}", key)
            for hook in self._hashing
            for key in hook.extra_hash_keys(request, start, end)
        ]

    def preempted(self, request: Request) -> None:
        """It lost its blocks."""
        for hook in self._hooks:
            hook.on_preempt(request)

    def finished(self, request: Request) -> bool:
        """It ended. Whether its blocks must be kept; `take_freed` returns it when they may go."""
        keepers = {hook.name for hook in self._hooks if hook.on_finish(request)}
        if keepers:
            self._kept[request.request_id] = (request, keepers)
        return bool(keepers)

    @property
    def kept(self) -> Sequence[Request]:
        """Ended requests whose blocks hooks keep."""
        return [request for request, _ in self._kept.values()]

    def keeps(self, request_id: str) -> bool:
        """Whether blocks of an ended request with this id are still kept."""
        return request_id in self._kept

    def take_freed(self) -> list[Request]:
        """Ended requests that no hook keeps any more."""
        freed = []
        for hook in self._freeing:
            for request_id in hook.take_freed():
                request, keepers = self._kept.get(request_id, (None, set()))
                keepers.discard(hook.name)
                if request is not None and not keepers:
                    del self._kept[request_id]
                    freed.append(request)
        return freed

    def add_step_meta(self, step: SchedulerOutput) -> None:
        """Let every hook add its data to a step that is otherwise complete."""
        for hook in self._planning:
            meta = hook.build_step_meta(step)
            if meta is not None:
                step.extras[hook.name] = meta

    def output(self, step: SchedulerOutput, output: RunnerOutput) -> None:
        """A step's results, before requests are updated with them."""
        for hook in self._hearing:
            hook.on_output(step, output)


def _overriding(hooks: Sequence[SchedulerHook], method: str) -> tuple[SchedulerHook, ...]:
    """The hooks with a method of their own."""
    neutral = getattr(SchedulerHook, method)
    return tuple(hook for hook in hooks if getattr(type(hook), method) is not neutral)
