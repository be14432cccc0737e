"""A worker that computes nothing and notices everything.

`FakeWorker` executes `SchedulerOutput`s literally on a model of the KV cache: block id → slot →
what a store put there. What is stored for a token names its position and a hash of *all* tokens up
to it, as real keys and values depend on all of them. At every scheduled token all slots that its
attention would read must hold exactly what this request's own tokens imply; so a block shared,
copied, evicted or reused wrongly is caught where it first matters. Sampled tokens are a function of
the whole prefix, so `FakeModel.generate` tells what each request must give, whatever was scheduled.

`FakeCore` is the loop around a `Scheduler` and a `FakeWorker`, with steps in flight. Steps are
executed when their results are fetched, long after they were planned: a step that shares state with
the scheduler shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.config.sections import SchedulerConfig
from octavo.contracts.features import SchedulerHook
from octavo.contracts.kv_spec import (
    BLOCK_SIZE,
    NULL_BLOCK_ID,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    SlidingWindowSpec,
)
from octavo.contracts.messages import EngineOutput, EngineRequest, FinishReason, LogprobRows
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData, RunnerOutput, SchedulerOutput
from octavo.contracts.tensor import DType
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler

EOS = 0
ENGINE_FIELDS = (
    *("sample_index", "fork_of", "priority", "cache_salt", "lora_name", "extras"),
    *("bad_words_token_ids", "leaves_fork_source", "service_class"),
)
POISON = -1
SECRET = bytes(range(32))

Content = tuple[int, int]
"""What a slot holds: (position, hash of all tokens up to it); (POISON, POISON) for rubbish."""


def kv_config(num_blocks: int, windows: Sequence[int | None] = (None,)) -> KVCacheConfig:
    """A pool with one group per entry: a sliding window, or None for full attention."""
    shape = {"num_kv_heads": 1, "head_size": 4, "head_size_v": 4, "dtype": DType.F32}
    groups = [
        KVCacheGroup(
            layer_names=(f"layer.{i}",),
            spec=FullAttentionSpec(**shape)
            if window is None
            else SlidingWindowSpec(**shape, sliding_window=window),
        )
        for i, window in enumerate(windows)
    ]
    return KVCacheConfig(num_blocks=num_blocks, groups=tuple(groups))


def make_request(request_id: str, prompt: Sequence[int], **options: Any) -> EngineRequest:
    """An EngineRequest; sampling parameters and its own fields in one name space."""
    fields = {name: options.pop(name) for name in ENGINE_FIELDS if name in options}
    params = SamplingParams(**{"seed": 0, **options})
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling_params=params,
        eos_token_ids=[EOS],
        **fields,
    )


class FakeModel:
    """Token ids from hashes. EOS is as likely as any other id."""

    def __init__(self, vocab_size: int = 40) -> None:
        self.vocab_size = vocab_size

    def chain(self, token_ids: Sequence[int]) -> list[int]:
        """For every token the hash of all tokens up to it."""
        chain, state = [], 1
        for token_id in token_ids:
            state = hash((state, token_id))
            chain.append(state)
        return chain

    def sample(
        self, state: int, position: int, params: SamplingParams, index: int, masked: Sequence[int]
    ) -> int:
        """The token at `position`, after tokens whose hash is `state`."""
        token_id = hash((state, position, params.seed, index)) % self.vocab_size
        while token_id in masked:
            token_id = (token_id + 1) % self.vocab_size
        return token_id

    def generate(
        self, request: EngineRequest, max_len: int
    ) -> tuple[list[int], FinishReason, int | None]:
        """What the request must give: one token after another, alone, nothing cached."""
        params = request.sampling_params
        assert params is not None
        tokens = list(request.prompt_token_ids)
        num_prompt = len(tokens)
        most = max_len - num_prompt
        if params.max_tokens is not None:
            most = min(most, params.max_tokens)
        eos = [] if params.ignore_eos else request.eos_token_ids
        stops = params.stop_token_ids or []
        state = self.chain(tokens)[-1]
        while True:
            masked = [*eos, *stops] if len(tokens) - num_prompt < params.min_tokens else []
            token = self.sample(state, len(tokens), params, request.sample_index, masked)
            tokens.append(token)
            state = hash((state, token))
            if token in eos:
                return tokens[num_prompt:], FinishReason.STOP, None
            if token in stops:
                return tokens[num_prompt:], FinishReason.STOP, token
            if len(tokens) - num_prompt >= most:
                return tokens[num_prompt:], FinishReason.LENGTH, None


@dataclass
class _Row:
    data: NewRequestData
    token_ids: list[int]
    tables: list[list[int]]
    num_computed: int
    failed: str = ""

    @property
    def params(self) -> SamplingParams:
        assert self.data.sampling_params is not None
        return self.data.sampling_params


class FakeWorker:
    """Executes steps in the order given.

    Args:
        fails: (step id, request id) → whether that request fails in that step: it stores rubbish,
            and is not computed any more.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        model: FakeModel | None = None,
        *,
        fails: Callable[[int, str], bool] = lambda step_id, request_id: False,
    ) -> None:
        self.model = model or FakeModel()
        self.windows = [
            g.spec.sliding_window if isinstance(g.spec, SlidingWindowSpec) else None
            for g in config.groups
        ]
        self.num_blocks = config.num_blocks
        self.pages: dict[int, dict[int, Content]] = {}
        self.rows: dict[str, _Row] = {}
        self.fails = fails
        self.num_steps = 0
        self.num_computed_tokens = 0
        self.finished: list[str] = []

    def execute(self, step: SchedulerOutput) -> RunnerOutput:
        """Run one step."""
        self.num_steps += 1
        self._apply(step)
        output = RunnerOutput(step_id=step.step_id)
        assert step.total_num_scheduled_tokens == sum(step.num_scheduled_tokens.values())
        assert set(step.samples) <= set(step.num_scheduled_tokens)
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            row = self.rows[request_id]
            drafts = step.scheduled_drafts.get(request_id, [])
            output.request_ids.append(request_id)
            output.sampled_token_ids.append([])
            if not row.failed and self.fails(step.step_id, request_id):
                row.failed = f"failed in step {step.step_id}"
                self._forward(row, num_tokens, drafts)
            if row.failed:  # and so in every step, until it is dropped
                output.errors[request_id] = row.failed
                continue
            states = self._forward(row, num_tokens, drafts)
            self._prompt_logprobs(row, num_tokens, output)
            if request_id in step.samples:
                sampled = self._sample(row, num_tokens, drafts, states)
                output.sampled_token_ids[-1] = sampled
                self._logprobs(row, sampled, output)
            else:
                assert not drafts
                assert row.num_computed + num_tokens < len(row.token_ids)
                row.num_computed += num_tokens
        return output

    # ---------------------------------------------------------------- diffs

    def _apply(self, step: SchedulerOutput) -> None:
        for request_id in step.finished_request_ids:
            self.finished.append(request_id)
            self.rows.pop(request_id, None)
        for request_id in step.preempted_request_ids:
            assert request_id in self.rows, f"{request_id} preempted, and unknown"
            del self.rows[request_id]
        for new in step.new_requests:
            assert new.request_id not in self.rows, f"{new.request_id} is new, and known"
            tables = [list(ids) for ids in new.block_ids]
            self.rows[new.request_id] = _Row(
                new, list(new.token_ids), tables, new.num_computed_tokens
            )
        cached = step.cached_requests
        for request_id, num_computed in zip(cached.request_ids, cached.num_computed_tokens):
            row = self.rows[request_id]
            assert row.failed or row.num_computed == num_computed, request_id
        assert set(cached.new_block_ids) <= set(cached.request_ids)
        for request_id, new_ids in cached.new_block_ids.items():
            for table, ids in zip(self.rows[request_id].tables, new_ids):
                table += ids
        assert not set(step.preempted_request_ids) & {r.request_id for r in step.new_requests}
        for block_id in step.blocks_to_clear:
            self.pages[block_id] = {}
        for copy in step.block_copies:
            assert NULL_BLOCK_ID not in (copy.src, copy.dst)
            self.pages[copy.dst] = dict(self.pages.get(copy.src, {}))

    # ---------------------------------------------------------------- the forward

    def _forward(self, row: _Row, num_tokens: int, drafts: Sequence[int]) -> list[int]:
        """Store, then attend. Returns for every scheduled token the hash of its prefix."""
        self.num_computed_tokens += num_tokens
        start, end = row.num_computed, row.num_computed + num_tokens
        num_known = num_tokens - len(drafts)
        assert num_tokens > 0
        assert start + num_known <= len(row.token_ids), "scheduled tokens that nobody knows"
        token_ids = [*row.token_ids[: start + num_known], *drafts]
        states = self.model.chain(token_ids)
        poisoned = bool(row.failed) or self._attention_is_poisoned(row, start, start, states)
        rubbish = (POISON, POISON)
        for table in row.tables:
            for position in range(start, end):
                block_id = table[position // BLOCK_SIZE]
                assert 0 < block_id < self.num_blocks
                page = self.pages.setdefault(block_id, {})
                page[position % BLOCK_SIZE] = rubbish if poisoned else (position, states[position])
        self._attention_is_poisoned(row, start, end, states)
        return [POISON] * num_tokens if poisoned else states[start:]

    def _attention_is_poisoned(
        self, row: _Row, start: int, end: int, states: Sequence[int]
    ) -> bool:
        """Read all slots before `end` that tokens from `start` on read."""
        for window, table in zip(self.windows, row.tables):
            first = 0 if window is None else max(0, start - window + 1)
            for position in range(first, end):
                block_id = table[position // BLOCK_SIZE]
                assert block_id != NULL_BLOCK_ID, f"{row.data.request_id} reads the null block"
                found = self.pages.get(block_id, {}).get(position % BLOCK_SIZE)
                if found == (POISON, POISON):
                    return True
                assert found == (position, states[position]), (
                    f"{row.data.request_id}: position {position} in block {block_id} holds {found}"
                )
        return False

    def _sample(
        self, row: _Row, num_tokens: int, drafts: Sequence[int], states: Sequence[int]
    ) -> list[int]:
        """Accepted drafts and one more token."""
        assert row.num_computed + num_tokens == len(row.token_ids) + len(drafts)
        sampled: list[int] = []
        for state, draft in zip(states[-1 - len(drafts) :], [*drafts, None]):
            position = len(row.token_ids) + len(sampled)
            num_output = position - row.data.num_prompt_tokens
            masked = row.data.stop_ids if num_output < row.params.min_tokens else []
            token = self.model.sample(state, position, row.params, row.data.sample_index, masked)
            sampled.append(token)
            if token != draft:
                break
        row.token_ids += sampled
        row.num_computed = len(row.token_ids) - 1
        return sampled

    # ---------------------------------------------------------------- logprobs

    def _logprobs(self, row: _Row, sampled: Sequence[int], output: RunnerOutput) -> None:
        if row.params.logprobs is not None:
            end = len(row.token_ids)
            output.logprobs[row.data.request_id] = self.rows_of(
                row.token_ids, range(end - len(sampled), end)
            )

    def _prompt_logprobs(self, row: _Row, num_tokens: int, output: RunnerOutput) -> None:
        if row.params.prompt_logprobs is not None:
            end = min(row.num_computed + num_tokens, row.data.num_prompt_tokens - 1)
            if row.num_computed < end:
                output.prompt_logprobs[row.data.request_id] = self.rows_of(
                    row.token_ids, range(row.num_computed + 1, end + 1)
                )

    def rows_of(self, token_ids: Sequence[int], positions: range) -> LogprobRows:
        """Log probabilities of tokens, made of the hashes of what is before them."""
        states = self.model.chain(token_ids)
        chosen = np.array([[token_ids[p]] for p in positions], np.int32)
        values = np.array([[-((states[p - 1] % 997) / 97)] for p in positions], np.float32)
        ranks = np.array([1 + states[p - 1] % 7 for p in positions], np.int32)
        return LogprobRows(chosen, values, ranks)


@dataclass
class Answer:
    """All that a user got."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    num_cached_tokens: int = 0
    outputs: list[EngineOutput] = field(default_factory=list)


class FakeCore:
    """A scheduler, a fake worker, and up to `depth` steps in flight. Checks after every event.

    Attributes:
        watch: called with every step that was planned.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        windows: Sequence[int | None] = (None,),
        depth: int = 1,
        max_num_seqs: int = 8,
        budget: int | None = 64,
        threshold: int = 0,
        policy: str = "fcfs",
        max_model_len: int = 512,
        prefix_caching: bool = True,
        hooks: Sequence[SchedulerHook] = (),
        model: FakeModel | None = None,
        fails: Callable[[int, str], bool] = lambda step_id, request_id: False,
    ) -> None:
        config = kv_config(num_blocks, windows)
        self.model = model or FakeModel()
        self.depth = depth
        self.max_model_len = max_model_len
        scheduler_config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            scheduling_policy=policy,  # type: ignore[arg-type]
            pipeline_depth=depth,
        )
        self.budget = scheduler_config.max_step_tokens
        self.scheduler = Scheduler(
            scheduler_config,
            config,
            max_model_len=max_model_len,
            enable_prefix_caching=prefix_caching,
            hooks=hooks,
            hash_secret=SECRET,
        )
        self.worker = FakeWorker(config, self.model, fails=fails)
        self.in_flight: deque[SchedulerOutput] = deque()
        self.steps: list[SchedulerOutput] = []
        self.sent: dict[str, EngineRequest] = {}
        self.answers: dict[str, Answer] = {}
        self.watch: Callable[[SchedulerOutput], None] = lambda step: None
        self._writers: dict[tuple[int, int], tuple[Request, int]] = {}

    # ---------------------------------------------------------------- events

    def add(self, request_id: str, prompt: Sequence[int], **options: Any) -> EngineRequest:
        """Send a request."""
        request = make_request(request_id, prompt, **options)
        self.scheduler.add_request(request)
        self.sent[request_id] = request
        self.answers[request_id] = Answer()
        return request

    def add_n(self, request_id: str, n: int, prompt: Sequence[int], **options: Any) -> None:
        """Send n completions of one prompt, as the front end does."""
        for i in range(n):
            self.add(
                f"{i}_{request_id}",
                prompt,
                sample_index=i,
                fork_of=f"0_{request_id}" if i else None,
                **options,
            )

    def finish(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request from outside."""
        self._hear(self.scheduler.finish_requests([request_id], reason))
        self.scheduler.check_integrity()

    def schedule(self) -> SchedulerOutput:
        """Plan a step and send it off."""
        step = self.scheduler.schedule()
        self.scheduler.check_integrity()
        assert step.total_num_scheduled_tokens <= self.budget
        for new in step.new_requests:
            added = self.sent[new.request_id].service_class
            assert all(added < self.sent[r].service_class for r in step.preempted_request_ids)
        assert len(step.samples) == len(set(step.samples))
        if step.num_scheduled_tokens:
            self._check_writers()
        self.watch(step)
        if step.num_scheduled_tokens or step.finished_request_ids or step.preempted_request_ids:
            self.in_flight.append(step)
            self.steps.append(step)
        return step

    def settle(self) -> list[EngineOutput]:
        """Run the oldest step in flight and take its results in."""
        step = self.in_flight.popleft()
        outputs = self.scheduler.update_from_output(step, self.worker.execute(step))
        self._hear(outputs)
        self.scheduler.check_integrity()
        return outputs

    def step(self) -> list[EngineOutput]:
        """What an engine does: fill the queue, then take one result."""
        while len(self.in_flight) < self.depth and self.scheduler.has_work():
            before = len(self.in_flight)
            self.schedule()
            if len(self.in_flight) == before:
                break
        return self.settle() if self.in_flight else []

    def run(self, max_steps: int = 2000) -> None:
        """Until all is done, all workers know, and nothing is held."""
        for _ in range(max_steps):
            if not self.in_flight and not self.scheduler.has_work():
                break
            self.step()
        else:
            raise AssertionError(f"not done after {max_steps} steps: {self.scheduler._requests}")
        assert self.scheduler._kv.pool.num_used_blocks == 0
        assert not self.worker.rows

    # ---------------------------------------------------------------- checks

    def expected(self, request_id: str) -> tuple[list[int], FinishReason, int | None]:
        """What the request must give."""
        return self.model.generate(self.sent[request_id], self.scheduler._max_len)

    def check_answers(self) -> None:
        """All that ended by themselves gave what they must; the others gave a beginning of it."""
        for request_id, answer in self.answers.items():
            token_ids, reason, stop_reason = self.expected(request_id)
            if answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) and (
                len(answer.token_ids) == len(token_ids)
            ):
                assert answer.token_ids == token_ids, request_id
                assert (answer.finish_reason, answer.stop_reason) == (reason, stop_reason)
            else:
                assert answer.token_ids == token_ids[: len(answer.token_ids)], request_id

    def check_complete(self) -> None:
        """Every request gave all that it must."""
        for request_id, answer in self.answers.items():
            found = answer.token_ids, answer.finish_reason, answer.stop_reason
            assert found == self.expected(request_id), request_id

    def _hear(self, outputs: Sequence[EngineOutput]) -> None:
        for output in outputs:
            answer = self.answers[output.request_id]
            assert answer.finish_reason is None, f"{output.request_id} goes on after its end"
            is_first = all(o.progress is not None for o in answer.outputs)
            assert is_first or output.num_cached_tokens == 0
            answer.outputs.append(output)
            answer.token_ids += output.new_token_ids
            answer.finish_reason = output.finish_reason
            answer.stop_reason = output.stop_reason
            answer.error = output.error
            answer.num_cached_tokens += output.num_cached_tokens

    def _check_writers(self) -> None:
        """From hand-out to hand-out one request alone writes to a block."""
        for request, epoch, start, num_tokens, *_ in self.scheduler._in_flight[-1].scheduled:
            first, last = start // BLOCK_SIZE, (start + num_tokens - 1) // BLOCK_SIZE
            for table in request.block_tables:
                for block in table[first : last + 1]:
                    key = (block.block_id, block.generation)
                    writer = self._writers.setdefault(key, (request, epoch))
                    assert writer == (request, epoch), f"{request} writes to {writer}'s block"
