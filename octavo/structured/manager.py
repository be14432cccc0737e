"""Structured outputs in the core: who waits for a grammar, and which tokens may come next.

A request with a grammar waits until that is compiled (`GrammarCompiler`), while others run. Then it
has a matcher, which follows its *known* output tokens: what a step in flight has sampled is looked
at when it is known and the next mask is needed, so that a preempted request, or one whose results
in flight are dropped, needs nothing undone.

A request whose masks are costly sits out steps of others (`turns`), though not for those of a lower
service class; and while grammars are compiled the loop stands still now and then (`give_way`). Both
together take a bounded share of the time, by turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from octavo.contracts.features import Admission, HookRequest, SchedulerHook
from octavo.contracts.messages import ServiceClass
from octavo.contracts.step import GrammarOutput, SchedulerOutput
from octavo.contracts.structured_outputs import GRAMMAR_PARAM
from octavo.structured.backend import clean_error
from octavo.structured.compiler import GrammarCompiler
from octavo.structured.turns import TimeShare, Turns
from octavo.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from octavo.contracts.structured_outputs import GrammarSource

_WORD = 32
MAX_FORCED_TOKENS = 32
"""Tokens that a grammar leaves no choice about, taken with one forward."""
CONTRADICTION = (
    "the grammar and allowed_token_ids contradict each other: no text of the grammar begins with a "
    "token that is allowed; allow more tokens, or leave one of the two out"
)
_GIVEN_WAY_SECONDS = 3e-3
"""How long the loop stands still at a time, a third of a step."""


class _Constrained:
    """A request with a grammar.

    Attributes:
        matcher: after `num_matched` of its output tokens; None while it waits for its grammar.
        error: why the grammar cannot be used.
        goes_on: whether it wants no end while anything else may come (ignore_eos).
    """

    __slots__ = ("error", "goes_on", "matcher", "num_matched", "request", "source")

    def __init__(self, request: HookRequest, source: GrammarSource) -> None:
        params = request.engine_request.sampling_params
        self.request = request
        self.source = source
        self.matcher: LLMatcher | None = None
        self.num_matched = 0
        self.error = ""
        self.goes_on = params is not None and params.ignore_eos

    def catch_up(self) -> LLMatcher | None:
        """The matcher after all known output tokens; None if it cannot follow (`error`)."""
        if self.matcher is None or self.error:
            return None
        token_ids = self.request.output_token_ids
        if self.num_matched < len(token_ids):
            new = list(token_ids[self.num_matched :])
            self.num_matched = len(token_ids)
            if not self.matcher.consume_tokens(new):
                self.error = clean_error(self.matcher.get_error())
                return None
        return self.matcher


class StructuredOutputs(SchedulerHook):
    """Core half of structured outputs. All but compiling runs in the core's thread.

    Args:
        vocabulary: makes the model's vocabulary, when the first grammar comes.
        vocab_size: columns of the logits.
    """

    name = "structured_outputs"
    error_param = GRAMMAR_PARAM

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, vocab_size: int) -> None:
        self._compiler = GrammarCompiler(vocabulary)
        self._num_words = -(-vocab_size // _WORD)
        self._requests: dict[str, _Constrained] = {}
        self._share = TimeShare()
        # Of each class, with what runs of it and of higher ones.
        self._turns = {service_class: Turns(self._share) for service_class in ServiceClass}
        self._batch_ids: set[str] = set()  # requests of the class BATCH, without a grammar too
        self._has_resting = False  # whether any sat out a step since the loop last gave way
        self._is_turn_of_masks = False

    def close(self) -> None:
        """Stop compiling."""
        self._compiler.close()

    def check(self, source: GrammarSource, first: Sequence[int] | None) -> str | None:
        """What is wrong with a grammar, "" if nothing; None while it is compiled.

        Args:
            first: tokens with which its texts may begin, those of the vocabulary; None: any.
        """
        compiled = self._compiler.result(source)
        if compiled is None:
            return None
        if compiled.matcher is None:
            return _cannot_be_used(compiled.error)
        if first is not None:
            row = np.zeros(self._num_words, dtype=np.int32)
            _fill(compiled.matcher.deep_copy(), row)
            ids = np.array(first, dtype=np.int64)
            ids = ids[ids < self._num_words * _WORD]
            if not (row.view(np.uint32)[ids // _WORD] >> (ids % _WORD).astype(np.uint32) & 1).any():
                return CONTRADICTION
        return ""

    def forget(self, source: GrammarSource) -> None:
        """Nobody waits for this grammar any more, but maybe a request."""
        if not any(c.source == source for c in self._requests.values()):
            self._compiler.forget(source)

    def give_way(self) -> None:
        """Stand still between two steps, for a few milliseconds at a time, if a grammar is being
        compiled: its threads and processes run only where a core is idle, and steps leave none."""
        if not self._compiler.is_busy:
            return
        now = time.monotonic()
        if not self._share.is_free(now):
            return
        if self._is_turn_of_masks and self._has_resting:
            # The share became free during the step: else whoever rests would always come too late.
            self._is_turn_of_masks = False
            return
        self._compiler.wait(_GIVEN_WAY_SECONDS)
        then = time.monotonic()
        self._share.spend(then - now, then)
        self._is_turn_of_masks, self._has_resting = True, False

    # ---------------------------------------------------------------- the scheduler's hook

    def on_add(self, request: HookRequest) -> None:
        if request.engine_request.service_class is ServiceClass.BATCH:
            self._batch_ids.add(request.request_id)
        source = request.engine_request.grammar
        if source is not None:
            self._requests[request.request_id] = _Constrained(request, source)
            self._compiler.result(source)  # compile it while the request waits its turn

    def can_admit(self, request: HookRequest) -> Admission:
        constrained = self._requests.get(request.request_id)
        if constrained is None or constrained.matcher is not None:
            return Admission.READY
        compiled = self._compiler.result(constrained.source)
        if compiled is None:
            return Admission.WAIT
        if compiled.matcher is None:
            constrained.error = compiled.error
            return Admission.FAIL
        constrained.matcher = compiled.matcher.deep_copy()
        return Admission.READY

    def error_of(self, request: HookRequest) -> str:
        return _cannot_be_used(self._requests[request.request_id].error)

    @property
    def clamps(self) -> bool:
        return bool(self._requests)

    def clamp_tokens(self, request: HookRequest, num_new_tokens: int) -> int:
        if request.request_id in self._requests:
            turns = self._turns_of(request)
            if turns and not turns.may_go(request.request_id, time.monotonic()):
                self._has_resting = True
                return 0
        return num_new_tokens

    def on_preempt(self, request: HookRequest) -> None:
        self._turns_of(request).remove(request.request_id)

    def on_finish(self, request: HookRequest) -> bool:
        self._turns_of(request).remove(request.request_id)
        self._batch_ids.discard(request.request_id)
        constrained = self._requests.pop(request.request_id, None)
        if constrained is not None and constrained.matcher is None:
            self.forget(constrained.source)
        return False

    def build_step_meta(self, step: SchedulerOutput) -> None:
        """Name the requests of a step that need a mask."""
        if self._requests:
            step.grammar_request_ids = [r for r in step.samples if r in self._requests]
            ids = step.num_scheduled_tokens
            interactive = (r for r in ids if r not in self._batch_ids)
            self._turns[ServiceClass.INTERACTIVE].note_step(interactive)
            self._turns[ServiceClass.BATCH].note_step(ids)

    def _turns_of(self, request: HookRequest) -> Turns:
        return self._turns[request.engine_request.service_class]

    # ---------------------------------------------------------------- masks

    def masks(self, step: SchedulerOutput) -> tuple[GrammarOutput | None, dict[str, str]]:
        """The masks of a step whose requests' tokens are all known.

        Returns:
            The masks, None where none is needed, and request id → why it must end: its matcher has
            reached a limit. Such a request has a mask that allows all; what it samples is to be
            dropped.
        """
        ids = [r for r in step.grammar_request_ids if r in self._requests]
        if not ids:
            return None, {}
        drafts = [step.scheduled_drafts.get(r, ()) for r in ids]
        num_rows = len(ids) + sum(map(len, drafts))
        bitmask = np.full((num_rows, self._num_words), -1, dtype=np.int32)
        failed: dict[str, str] = {}
        start = 0
        for request_id, draft in zip(ids, drafts):
            constrained = self._requests[request_id]
            rows = bitmask[start : start + 1 + len(draft)]
            start += len(rows)
            began = time.thread_time()
            self._fill_rows(constrained, rows, draft)
            cost = time.thread_time() - began
            if constrained.request.num_computed_tokens:  # else preempted since: it has no turn
                self._turns_of(constrained.request).note_cost(request_id, cost, time.monotonic())
            if constrained.error:
                failed[request_id] = f"the grammar cannot go on: {constrained.error}"
        return GrammarOutput(request_ids=ids, bitmask=bitmask), failed

    def _fill_rows(self, constrained: _Constrained, rows: np.ndarray, draft: Sequence[int]) -> None:
        """Write a request's masks to `rows` [1 + drafts, words]; or why there are none, to it."""
        matcher = constrained.catch_up()
        if matcher is None:
            return
        _fill(matcher, rows[0])
        if draft:
            matcher = matcher.deep_copy()
            _fill_behind(matcher, draft, rows)
        if matcher.is_error():  # llguidance then wrote a mask of the end alone
            constrained.error = clean_error(matcher.get_error())
        elif constrained.goes_on:
            self._drop_end(rows, constrained.request.engine_request.eos_token_ids)

    def _drop_end(self, rows: np.ndarray, eos_token_ids: Sequence[int]) -> None:
        """Forbid the end in rows [n, words] that allow anything else."""
        end = np.zeros(self._num_words, dtype=np.uint32)
        for token_id in eos_token_ids:
            end[token_id // _WORD] |= np.uint32(1 << token_id % _WORD)
        without = rows.view(np.uint32) & ~end
        others = without.any(axis=1)
        rows[others] = without[others].view(np.int32)

    def forced_token_ids(self, request_ids: Iterable[str]) -> Mapping[str, list[int]]:
        """What must come next, where the masks leave one token, of those of the requests whose
        grammar says so; as drafts, which are verified like any others. Not where masks are costly:
        every draft needs one."""
        forced: dict[str, list[int]] = {}
        for request_id in request_ids:
            constrained = self._requests.get(request_id)
            if constrained is None or request_id in self._turns_of(constrained.request):
                continue
            matcher = constrained.catch_up()
            if matcher is not None and not matcher.is_stopped():
                token_ids = matcher.compute_ff_tokens()[:MAX_FORCED_TOKENS]
                if token_ids:
                    forced[request_id] = token_ids
        return forced


def _cannot_be_used(error: str) -> str:
    return f"the grammar cannot be used: {error}"


def _fill(matcher: LLMatcher, row: np.ndarray) -> None:
    """Write what may come next to `row` [words] int32, contiguous. Releases the GIL."""
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


def _fill_behind(matcher: LLMatcher, draft: Sequence[int], rows: np.ndarray) -> None:
    """Write the masks behind each draft, as far as the grammar allows the draft. What is sampled
    behind one that it does not allow is not looked at."""
    for token_id, row in zip(draft, rows[1:]):
        if not matcher.try_consume_tokens([token_id]):
            return
        _fill(matcher, row)
