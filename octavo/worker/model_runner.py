"""Runs steps: diffs into the persistent batch, forward, sampling.

    execute_model(step)    diffs → clears and copies → StepBatch → graph.replay
    sample_tokens(grammar) logits → tokens, kept in the persistent batch → RunnerOutput

Nothing here asks which model it runs. Feature state lives in `RunnerFeature`s and sampler stages,
which share one life cycle. A request that cannot be added, or whose logits are not finite, fails
alone: it leaves the batch, and its id is remembered until the scheduler drops it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from octavo.config.sections import LogprobsMode
from octavo.contracts.features import RunnerFeature
from octavo.contracts.kv_spec import NULL_BLOCK_ID
from octavo.contracts.messages import LogprobRows
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import (
    GrammarOutput,
    NewRequestData,
    RunnerOutput,
    SchedulerOutput,
)
from octavo.errors import ModelError, RequestError
from octavo.kernels.ops import Backend, Graph, KVCache, StepLimits
from octavo.log import get_logger
from octavo.sample.logits_processor import LogitsProcessor
from octavo.sample.logprobs import PromptChunk, PromptLogprobs
from octavo.sample.sampler import NOTHING_LEFT, Sampler, merged_rows
from octavo.sample.stage import MaskedRows, SampleBatch
from octavo.worker.logits import ForwardResult, StepForward
from octavo.worker.pooler import NOT_FINITE, Pooler
from octavo.worker.request_state import RequestState
from octavo.worker.step_batch import StepBatch, StepBatchBuilder, masked_rows

logger = get_logger(__name__)


class _Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A step between its forward and its sampling: `ran` is None where nothing was to run."""

    step: SchedulerOutput
    ran: tuple[StepBatch, ForwardResult] | None


class ModelRunner:
    """Owns the persistent batch.

    Args:
        graph, head: the captured forward and head (`StepForward`).
        limits: what the graph was captured for.
        block_sizes: tokens per block, per KV group.
        logprobs_mode, logits_processors: see `Sampler`.
        features: worker halves of features, called in this order.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        graph: Graph,
        head: Graph,
        kv: KVCache,
        limits: StepLimits,
        block_sizes: Sequence[int],
        vocab_size: int,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        features: Sequence[RunnerFeature] = (),
    ) -> None:
        self._forward = StepForward(backend, graph, head, max_logit_rows=limits.max_logit_rows)
        self._kv = kv
        self._state = RequestState(
            max_num_seqs=limits.max_requests,
            max_model_len=limits.max_position,
            vocab_size=vocab_size,
            block_sizes=block_sizes,
        )
        self._builder = StepBatchBuilder(
            self._state, max_tokens=limits.max_tokens, max_requests=limits.max_requests
        )
        sizes = {"num_rows": limits.max_requests, "vocab_size": vocab_size}
        self._sampler = Sampler(
            backend, logprobs_mode=logprobs_mode, logits_processors=logits_processors, **sizes
        )
        self._prompt_logprobs = PromptLogprobs(backend, head, **sizes)
        self._pooler = Pooler(backend, head, num_rows=limits.max_requests)
        self._features = tuple(features)
        self._pooling_states: tuple[RunnerFeature, ...] = (self._pooler, *self._features)
        self._row_states: tuple[RunnerFeature, ...] = (
            self._sampler,
            self._prompt_logprobs,
            *self._pooling_states,
        )
        self._may_ask_hidden_states = False  # whether any request in the batch may, in some step
        self._failed: dict[str, tuple[str, str | None]] = {}  # why, and the field at fault
        self._pending: _Pending | None = None

    def execute_model(self, step: SchedulerOutput) -> None:
        """Run the step's forward. A step before it that was never sampled is dropped."""
        self._pending = None
        self._apply_diffs(step)
        # Clears come first: a page handed out anew may be the target of a copy, never its source.
        if step.blocks_to_clear:
            self._kv.clear_blocks(step.blocks_to_clear)
        if step.block_copies:
            self._kv.copy_blocks(step.block_copies)
        request_ids = list(step.num_scheduled_tokens)
        if self._failed:
            request_ids = [r for r in request_ids if r not in self._failed]
        batch = self._builder.build(step, request_ids) if request_ids else None
        for feature in self._features:
            feature.before_forward(step)
        ran = (batch, self._run(step, batch)) if batch is not None else None
        self._pending = _Pending(step=step, ran=ran)

    def _run(self, step: SchedulerOutput, batch: StepBatch) -> ForwardResult:
        only_best = not step.grammar_request_ids and (
            self._sampler.is_idle or self._sampler.needs_only_best(self._sample_batch(batch))
        )
        asks = self._may_ask_hidden_states and (
            self._prompt_logprobs.find(batch.rows) is not None
            or self._pooler.find(batch.rows) is not None
        )
        return self._forward.run(batch, only_best=only_best, hidden_states=asks)

    def _sample_batch(
        self, batch: StepBatch, part: slice = slice(None), masks: MaskedRows | None = None
    ) -> SampleBatch:
        """The logits rows of a step, or a part of them."""
        return SampleBatch(
            rows=batch.logit_rows_of_state[part],
            offsets=batch.logit_offsets[part],
            positions=batch.logit_positions[part],
            token_ids=self._state.token_ids,
            grammar=None if masks is None else masks.of(part),
        )

    def sample_tokens(self, grammar: GrammarOutput | None) -> RunnerOutput:
        """Sample for the step last executed."""
        if self._pending is None:
            raise RuntimeError("no step to sample for")
        pending, self._pending = self._pending, None
        output = RunnerOutput(
            step_id=pending.step.step_id,
            request_ids=list(pending.step.num_scheduled_tokens),
        )
        tokens: dict[str, list[int]] = {}
        if pending.ran is not None:
            batch, result = pending.ran
            output.forward_seconds = result.seconds
            tokens = self._sample(pending.step, batch, result, output, grammar)
            if "hidden_states" in result.taps:
                self._add_prompt_logprobs(batch, result.taps, output)
                self._add_pooled(batch, result.taps, output)
        output.sampled_token_ids = [tokens.get(r, []) for r in output.request_ids]
        if self._failed:
            for request_id in output.request_ids:
                if request_id in self._failed:
                    output.errors[request_id], param = self._failed[request_id]
                    if param is not None:
                        output.error_params[request_id] = param
        for feature in self._features:
            feature.after_forward(pending.step, output)
        return output

    def warm_up(self) -> None:
        """Run a step of one token through all of it, and clear what it stored.

        Raises:
            ModelError: no token comes of it.
        """
        request = NewRequestData(
            request_id="warm-up",
            token_ids=[0],
            num_prompt_tokens=1,
            block_ids=tuple([NULL_BLOCK_ID + 1] for _ in self._state.block_tables),
            num_computed_tokens=0,
            sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
        )
        ids = [request.request_id]
        self.execute_model(
            SchedulerOutput(
                step_id=-2,
                new_requests=[request],
                num_scheduled_tokens={request.request_id: 1},
                total_num_scheduled_tokens=1,
                samples=ids,
            )
        )
        errors = self.sample_tokens(None).errors
        self.execute_model(
            SchedulerOutput(
                step_id=-1, finished_request_ids=ids, blocks_to_clear=[NULL_BLOCK_ID + 1]
            )
        )
        self.sample_tokens(None)
        if errors:
            raise ModelError(
                f"the model cannot run a single token: {errors[request.request_id]}; "
                "its files may be damaged"
            )

    # ---------------------------------------------------------------- diffs

    def _apply_diffs(self, step: SchedulerOutput) -> None:
        for request_id in step.finished_request_ids:
            self._remove(request_id)
        for request_id in step.preempted_request_ids:
            self._remove(request_id)
        for request in step.new_requests:
            self._add(request)
        self._state.update_requests(step.cached_requests)
        self._state.apply_staged_writes()
        if step.new_requests or step.finished_request_ids or step.preempted_request_ids:
            for row_state in self._row_states:
                row_state.apply_staged_writes()
            self._may_ask_hidden_states = self._prompt_logprobs.is_needed or self._pooler.is_needed

    def _add(self, request: NewRequestData) -> None:
        """Add a request to the batch; where that fails, it fails alone."""
        try:
            row = self._state.add_request(request)
            is_pooling = request.pooling_params is not None
            for row_state in self._pooling_states if is_pooling else self._row_states:
                row_state.add_request(row, request)
        except RequestError as error:
            self._fail(request.request_id, str(error))
        except Exception as error:
            logger.exception("request %s could not be added to the batch", request.request_id)
            self._fail(request.request_id, f"internal error: {error}")

    def _remove(self, request_id: str) -> None:
        """Drop a request, if it is here: one may end while it waits after a preemption."""
        self._failed.pop(request_id, None)
        row = self._state.remove_request(request_id)
        if row is not None:
            for row_state in self._row_states:
                row_state.remove_request(row)

    def _fail(self, request_id: str, why: str, param: str | None = None) -> None:
        """Take a request out of the batch.

        Args:
            param: its field that is at fault, if what it computed is sound all the same.
        """
        self._remove(request_id)
        self._failed[request_id] = (why, param)

    # ---------------------------------------------------------------- sampling

    def _sample(
        self,
        step: SchedulerOutput,
        batch: StepBatch,
        result: ForwardResult,
        output: RunnerOutput,
        grammar: GrammarOutput | None,
    ) -> dict[str, list[int]]:
        """Sample the step's logits rows. Returns request id → tokens."""
        if not any(batch.num_logits):
            return {}
        masks = None if grammar is None else masked_rows(grammar, step, batch)
        sampled = merged_rows(
            [
                self._sampler.take_best(array)
                if result.tap == "argmax"
                else self._sampler.sample(array, self._sample_batch(batch, part, masks))
                for part, array in self._forward.parts(batch, result)
            ]
        )
        token_ids = sampled.token_ids
        self._builder.write_sampled(token_ids)
        if not (step.scheduled_drafts or sampled.failed or sampled.logprobs):
            sampling = compress(batch.request_ids, batch.num_logits)
            return {request_id: [token_id] for request_id, token_id in zip(sampling, token_ids)}
        tokens: dict[str, list[int]] = {}
        end = 0
        for request_id, count in zip(batch.request_ids, batch.num_logits):
            if not count:
                continue
            rows = range(end, end + count)
            end += count
            if count > 1:
                draft = step.scheduled_drafts[request_id]
                rows = rows[: 1 + _num_accepted(token_ids[rows.start : rows.stop], draft)]
                self._state.truncate(request_id, int(batch.logit_positions[rows[-1]]) + 1)
            why = next((sampled.failed[r] for r in rows if r in sampled.failed), None)
            if why is not None:
                param = None
                if why == NOTHING_LEFT:
                    has_grammar = grammar is not None and request_id in grammar.request_ids
                    param = "structured_outputs" if has_grammar else "allowed_token_ids"
                self._fail(request_id, why, param)
                continue
            tokens[request_id] = token_ids[rows.start : rows.stop]
            if rows[0] in sampled.logprobs:
                output.logprobs[request_id] = _stacked([sampled.logprobs[r] for r in rows])
        return tokens

    def _add_prompt_logprobs(
        self, batch: StepBatch, taps: Mapping[str, Any], output: RunnerOutput
    ) -> None:
        """Of all prompt tokens in the step that another prompt token follows."""
        asking = self._prompt_logprobs.find(batch.rows)
        if asking is None:
            return
        state, bounds = self._state, batch.inputs.query_start.tolist()
        chunks = []
        for index in asking.tolist():
            row, start = int(batch.rows[index]), bounds[index]
            first = int(batch.inputs.positions[start])
            num_left = int(state.num_prompt_tokens[row]) - 1 - first
            count = min(bounds[index + 1] - start, num_left)
            skip = max(0, self._prompt_logprobs.first_position(row) - first - 1)
            if count > skip:
                chunks.append(
                    PromptChunk(
                        index=index,
                        token_rows=np.arange(start + skip, start + count),
                        next_ids=state.token_ids[row, first + 1 + skip : first + 1 + count],
                    )
                )
        if not chunks:
            return
        gathered = self._prompt_logprobs.gather(taps["hidden_states"], batch.rows, chunks)
        for index, rows in gathered.items():
            output.prompt_logprobs[batch.request_ids[index]] = rows

    def _add_pooled(self, batch: StepBatch, taps: Mapping[str, Any], output: RunnerOutput) -> None:
        """The vectors of prompts that are complete."""
        for request_id, vector in self._pooler.pool(taps.get("hidden_states"), batch).items():
            if np.isfinite(vector).all():
                output.pooler_outputs[request_id] = vector
            else:
                self._fail(request_id, NOT_FINITE)


def _num_accepted(sampled: Sequence[int], draft: Sequence[int]) -> int:
    """How many drafts hold. Draws are keyed by position, so sampled[i] is what would have been
    drawn without drafts: a draft holds where it is equal, and the next one only after it."""
    count = 0
    while count < len(draft) and sampled[count] == draft[count]:
        count += 1
    return count


def _stacked(parts: Sequence[LogprobRows]) -> LogprobRows:
    if len(parts) == 1:
        return parts[0]
    return LogprobRows(
        np.concatenate([p.token_ids for p in parts]),
        np.concatenate([p.logprobs for p in parts]),
        np.concatenate([p.ranks for p in parts]),
    )
