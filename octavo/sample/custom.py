"""The stages that run the user's code: logits processors of the engine and of single requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from octavo.contracts.step import NewRequestData
from octavo.errors import RequestError, shown
from octavo.kernels.sampling_ops import SamplingOps
from octavo.log import get_logger
from octavo.sample.logits_processor import Added, BatchUpdate, LogitsProcessor, Moved
from octavo.sample.params_state import sampling_params_of
from octavo.sample.stage import LogitsStage, RequestRows, SampleBatch

logger = get_logger(__name__)

_MAX_ERROR = 200  # characters


class _Context:
    """The ids of one request, as lists that the user's code may keep.

    Attributes:
        output: drafts included, while they are verified.
    """

    def __init__(self, request: NewRequestData) -> None:
        self.params = sampling_params_of(request)
        self.prompt = list(request.token_ids[: request.num_prompt_tokens])
        self.output = list(request.token_ids[request.num_prompt_tokens :])
        self._num_certain = len(self.output)

    def advance(self, context: np.ndarray, *, is_certain: bool) -> None:
        """Bring the output up to date.

        Args:
            context: [n] prompt and output.
            is_certain: whether none of these are drafts.
        """
        if is_certain:
            del self.output[self._num_certain :]
        self.output += context[len(self.prompt) + len(self.output) :].tolist()
        if is_certain:
            self._num_certain = len(self.output)


class RequestProcessors(LogitsStage):
    """`SamplingParams.logits_processors`: callables of single requests, in their order."""

    def __init__(self, num_rows: int) -> None:
        self._states = RequestRows[tuple[_Context, list[Callable[..., Any]]]](num_rows)

    def add_request(self, row: int, request: NewRequestData) -> None:
        callables = sampling_params_of(request).logits_processors
        if callables:
            context = _Context(request)
            self._states.put(row, (context, [_bound(call, context) for call in callables]))

    def remove_request(self, row: int) -> None:
        self._states.drop(row)

    @property
    def is_needed(self) -> bool:
        return bool(self._states)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        return self._states.find(batch.rows)

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        array = np.asarray(logits)  # shares memory with a tensor
        states, offsets = self._states.of(batch.rows[edited]), batch.offsets[edited]
        for (context, calls), index, offset in zip(states, edited, offsets):
            known = batch.token_ids[batch.rows[index], : batch.positions[index]]
            context.advance(known, is_certain=offset == 0)
            try:
                for call in calls:
                    _take(call(array[index]), array[index])
            except Exception as error:  # the user's code: its request fails, the others go on
                logger.warning("a logits processor of a request failed", exc_info=error)
                batch.failed[int(index)] = f"its logits processor failed: {_text(error)}"


class BatchProcessor(LogitsStage):
    """One logits processor of the engine.

    Attributes:
        is_argmax_invariant: see `LogitsProcessor`; greedy requests are then left out.
    """

    def __init__(self, kind: type[LogitsProcessor], *, num_rows: int, vocab_size: int) -> None:
        self._kind = kind
        self._sizes = {"vocab_size": vocab_size, "max_num_seqs": num_rows}
        self._processor: LogitsProcessor | None = kind(**self._sizes)
        self.is_argmax_invariant = self._processor.is_argmax_invariant()
        self._contexts = RequestRows[_Context](num_rows)
        self._batch: list[_Context] = []  # whose rows the processor knows

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        is_left_out = self.is_argmax_invariant and params.is_greedy
        if not is_left_out and self._kind.applies_to(params):
            self._contexts.put(row, _Context(request))

    def remove_request(self, row: int) -> None:
        self._contexts.drop(row)

    @property
    def is_needed(self) -> bool:
        return bool(self._contexts)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        return self._contexts.find(batch.rows)

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        array = np.asarray(logits)  # shares memory with a tensor
        offsets = batch.offsets[edited]
        for offset in np.unique(offsets):
            self._apply(array, batch, edited[offsets == offset], is_certain=offset == 0)

    def _apply(
        self, array: np.ndarray, batch: SampleBatch, edited: np.ndarray, *, is_certain: bool
    ) -> None:
        """Run it over rows of different requests."""
        contexts = self._contexts.of(batch.rows[edited])
        for context, index in zip(contexts, edited):
            known = batch.token_ids[batch.rows[index], : batch.positions[index]]
            context.advance(known, is_certain=is_certain)
        try:
            if self._processor is None:
                self._processor = self._kind(**self._sizes)
            update, self._batch = batch_update(self._batch, contexts), contexts
            self._processor.update_state(update)
            if len(edited) == len(array):
                _take(self._processor.apply(array), array)
            else:
                part = array[edited]
                _take(self._processor.apply(part), part)
                array[edited] = part
        except Exception as error:  # the user's code: its requests fail, the engine goes on
            name = f"{self._kind.__module__}:{self._kind.__qualname__}"
            logger.exception("the logits processor %s failed", name)
            self._processor, self._batch = None, []
            why = f"the logits processor {name} failed: {_text(error)}"
            batch.failed.update(dict.fromkeys(edited.tolist(), why))


def batch_update(old: Sequence[_Context], new: Sequence[_Context]) -> BatchUpdate | None:
    """How to get from the rows `old` to the rows `new`; None where they are the same."""
    if len(old) == len(new) and all(a is b for a, b in zip(old, new)):
        return None
    staying = set(map(id, new))
    rows: list[_Context | None] = [c if id(c) in staying else None for c in old]
    free = [i for i, context in enumerate(rows) if context is None]
    known = {id(c) for c in rows if c is not None}
    added: list[Added] = []
    for context in new:
        if id(context) in known:
            continue
        if free:
            row = free.pop(0)
            rows[row] = context
        else:
            row = len(rows)
            rows.append(context)
        added.append((row, context.params, context.prompt, context.output))
    place = {id(context): row for row, context in enumerate(rows) if context is not None}
    moved: list[Moved] = []
    for row, context in enumerate(new):
        source, other = place[id(context)], rows[row]
        if source == row:
            continue
        moved.append((source, row, "move" if other is None else "swap"))
        rows[row], rows[source] = context, other
        place[id(context)] = row
        if other is not None:
            place[id(other)] = source
    return BatchUpdate(batch_size=len(new), removed=free, added=added, moved=moved)


def check_callables(callables: Sequence[Any]) -> None:
    """Each must take two or three arguments. Raises RequestError."""
    for call in callables:
        _num_arguments(call)


def _num_arguments(call: Any) -> int:
    """2 or 3, the most that it takes."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError) as error:
        raise _wrong_signature(call) from error
    for count in (3, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count
    raise _wrong_signature(call)


def _wrong_signature(call: Any) -> RequestError:
    return RequestError(
        f"logits_processors holds {shown(call)}; it must take (output_ids, logits) or "
        "(prompt_ids, output_ids, logits)",
        param="logits_processors",
    )


def _bound(call: Any, context: _Context) -> Callable[[np.ndarray], Any]:
    """The callable, as a function of the logits alone."""
    if _num_arguments(call) == 3:
        return lambda logits: call(context.prompt, context.output, logits)
    return lambda logits: call(context.output, logits)


def _take(result: Any, logits: np.ndarray) -> None:
    """Put what a processor returned into the logits that it was given."""
    if result is None or result is logits:
        return
    result = np.asarray(result)
    if result.shape != logits.shape:
        raise ValueError(f"it returned logits {result.shape}, not {logits.shape}")
    logits[:] = result


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:_MAX_ERROR]}"
