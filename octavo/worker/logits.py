"""A step's forward, and the logits of its rows: in the forward itself, or in parts behind it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from octavo.kernels.ops import Backend, Graph, StepInputs
from octavo.sample.logprobs import HEAD_LIMITS
from octavo.worker.step_batch import StepBatch

LOGITS_ROWS = 64
"""Most logits rows that the forward's own buffers hold. In a step with more, the head runs by parts
of `HEAD_LIMITS`, so that memory does not grow with max_num_seqs × vocabulary."""


class ForwardResult(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    taps: of the forward.
    tap: the one that sampling reads: "logits", or "argmax" where the best of each row is enough.
    seconds: that the forward took.
    """

    taps: Mapping[str, Any]
    tap: str
    seconds: float


class StepForward:
    """Replays a model's graphs.

    Args:
        graph: the captured forward, with taps "hidden_states" [T, D], "logits" [R, vocab] and
            "argmax" [R, 2] float32.
        head: the captured head, from the input "hidden_states" to the same taps.
        max_logit_rows: what `graph` was captured for.
    """

    def __init__(self, backend: Backend, graph: Graph, head: Graph, *, max_logit_rows: int) -> None:
        self._backend = backend
        self._graph = graph
        self._head = head
        self._max_logit_rows = max_logit_rows

    def run(self, batch: StepBatch, *, only_best: bool, hidden_states: bool) -> ForwardResult:
        """Run the forward of a step.

        Args:
            only_best: sampling needs nothing but the best logit of each row.
            hidden_states: they are needed beside.
        """
        tap, inputs = "argmax" if only_best else "logits", batch.inputs
        in_parts = len(inputs.logit_rows) > self._max_logit_rows
        outputs = ["hidden_states"] if hidden_states or in_parts else []
        if in_parts:
            inputs = _without_logits(inputs)
        elif len(inputs.logit_rows):
            outputs.append(tap)
        inputs.outputs = outputs
        start = time.perf_counter()
        taps = self._graph.replay(inputs)
        return ForwardResult(taps=taps, tap=tap, seconds=time.perf_counter() - start)

    def parts(self, batch: StepBatch, result: ForwardResult) -> Iterable[tuple[slice, Any]]:
        """The logits rows of a step that has some, in parts, each valid until the next: which they
        are, and the array of the tap that sampling reads."""
        if result.tap in result.taps:
            return [(slice(0, len(batch.inputs.logit_rows)), result.taps[result.tap])]
        return self._parts_of_head(batch, result)

    def _parts_of_head(
        self, batch: StepBatch, result: ForwardResult
    ) -> Iterator[tuple[slice, Any]]:
        hidden_states = result.taps["hidden_states"]
        most = HEAD_LIMITS.max_logit_rows
        for start in range(0, len(batch.inputs.logit_rows), most):
            part = slice(start, start + most)
            x = self._backend.to_numpy(hidden_states[batch.inputs.logit_rows[part]])
            inputs = StepInputs.of_rows(len(x), {"hidden_states": x})
            inputs.outputs = [result.tap]
            yield part, self._head.replay(inputs)[result.tap]


def _without_logits(inputs: StepInputs) -> StepInputs:
    return StepInputs(
        token_ids=inputs.token_ids,
        positions=inputs.positions,
        query_start=inputs.query_start,
        seq_lens=inputs.seq_lens,
        block_tables=inputs.block_tables,
        slot_mapping=inputs.slot_mapping,
        logit_rows=inputs.logit_rows[:0],
        extra=inputs.extra,
    )
