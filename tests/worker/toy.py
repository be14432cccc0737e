"""A toy device with behaviour: its "model" reads its whole context back out of the paged cache.

Pages hold token ids. The logits of a row are a function of the ids that the row's block tables
lead to at positions 0 … p, so that a wrong slot, block, position, token or row shows as a wrong
token. `ToyScheduler` drives a runner as the real scheduler does, any number of steps ahead.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo.contracts.kv_spec import BlockCopy
from octavo.contracts.messages import LogprobRows
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import CachedRequestData, NewRequestData, RunnerOutput, SchedulerOutput
from octavo.kernels.ops import Graph, KVCache, SamplingOps, SamplingRows, StepInputs, StepLimits
from octavo.worker.model_runner import ModelRunner
from tests.sample.twin import TwinSampling

VOCAB = 32
BLOCK = 16
POISON = VOCAB - 1
"""A token after which logits are NaN."""


def toy_logits(context: Sequence[int]) -> np.ndarray:
    """[VOCAB] float32 after a context of token ids."""
    if POISON in context:
        return np.full(VOCAB, np.nan, dtype=np.float32)
    state = np.uint64(1469598103934665603)
    with np.errstate(over="ignore"):
        for token in context:
            state = (state ^ np.uint64(token + 1)) * np.uint64(1099511628211)
        mixed = (np.arange(VOCAB, dtype=np.uint64) + state) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    logits = (mixed >> np.uint64(40)).astype(np.float32) * np.float32(6 / 2**24)
    logits[POISON] = -20.0
    return logits


class ToyKV(KVCache):
    """One pool of token ids per group: [blocks * BLOCK] int32, -1 where nothing was stored."""

    def __init__(self, num_groups: int, num_blocks: int) -> None:
        self.pools = [np.full(num_blocks * BLOCK, -1, dtype=np.int32) for _ in range(num_groups)]

    def layer(self, name: str) -> Any:
        raise NotImplementedError

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for pool in self.pools:
            pages = pool.reshape(-1, BLOCK)
            for c in copies:
                pages[c.dst] = pages[c.src]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        for pool in self.pools:
            pool.reshape(-1, BLOCK)[list(blocks)] = -1


class ToyGraph(Graph):
    """`windows`: per group, how many last tokens it must still hold (None: all)."""

    def __init__(self, kv: ToyKV, windows: Sequence[int | None]) -> None:
        self._kv = kv
        self._windows = windows
        self.steps: list[StepInputs] = []

    @property
    def nbytes(self) -> int:
        return 0

    def replay(self, step: StepInputs) -> Mapping[str, np.ndarray]:
        self.steps.append(copy.deepcopy(step))
        owner = np.repeat(np.arange(len(step.seq_lens)), np.diff(step.query_start))
        for pool, slots in zip(self._kv.pools, step.slot_mapping):
            assert (slots >= BLOCK).all(), "the null block is never written"
            pool[slots] = step.token_ids
        rows = []
        for token_row in step.logit_rows.tolist():
            position, request = int(step.positions[token_row]), int(owner[token_row])
            contexts = []
            for pool, tables, window in zip(self._kv.pools, step.block_tables, self._windows):
                where = np.arange(position + 1)
                slots = tables[request, where // BLOCK] * BLOCK + where % BLOCK
                contexts.append((pool[slots], window))
            full = next(ids for ids, window in contexts if window is None)
            for ids, window in contexts:
                if window is not None:
                    assert (ids[-window:] == full[-window:]).all()
            rows.append(toy_logits(full.tolist()))
        return {"logits": np.array(rows, dtype=np.float32).reshape(-1, VOCAB)}


class ToyBackend:
    """As much of a back end as a runner needs."""

    def __init__(self, sampling: SamplingOps | None = None) -> None:
        self.sampling = sampling or TwinSampling()

    @staticmethod
    def to_numpy(array: np.ndarray) -> np.ndarray:
        return array


@dataclass
class Toy:
    runner: ModelRunner
    kv: ToyKV
    graph: ToyGraph


def make_toy(
    *,
    max_num_seqs: int = 4,
    max_model_len: int = 80,
    max_tokens: int = 64,
    max_logit_rows: int = 64,
    num_blocks: int = 64,
    windows: Sequence[int | None] = (None,),
    features: Sequence[Any] = (),
) -> Toy:
    kv = ToyKV(len(windows), num_blocks)
    graph = ToyGraph(kv, windows)
    limits = StepLimits(
        max_tokens=max_tokens,
        max_requests=max_num_seqs,
        max_logit_rows=max_logit_rows,
        max_blocks_per_request=-(-max_model_len // BLOCK),
        max_position=max_model_len,
    )
    runner = ModelRunner(
        backend=ToyBackend(),  # type: ignore[arg-type]
        graph=graph,
        kv=kv,
        limits=limits,
        block_sizes=[BLOCK] * len(windows),
        vocab_size=VOCAB,
        features=features,
    )
    return Toy(runner, kv, graph)


def generate_alone(
    prompt: Sequence[int], params: SamplingParams, n: int, *, sample_index: int = 0, stop_ids=()
) -> tuple[list[int], list[LogprobRows]]:
    """The answer by definition: no batch, no cache, no rows. Returns token ids and logprobs."""
    ops, ids, logprobs = TwinSampling(), list(prompt), []
    for i in range(n):
        logits = toy_logits(ids)[None]
        raw = logits.copy()
        if i < params.min_tokens and stop_ids:
            logits[0, list(stop_ids)] = -np.inf
        one = np.ones(1)
        token = ops.sample(
            logits,
            SamplingRows(
                temperature=(one * params.temperature).astype(np.float32),
                top_k=(one * params.top_k).astype(np.int32),
                top_p=(one * params.top_p).astype(np.float32),
                min_p=(one * params.min_p).astype(np.float32),
                seed=np.array([(params.seed or 0) % 2**64], dtype=np.uint64),
                sample_index=np.array([sample_index], dtype=np.int32),
                position=np.array([len(ids)], dtype=np.int32),
            ),
        )
        ids.append(int(token[0]))
        if params.logprobs is not None:
            k = VOCAB if params.logprobs == -1 else params.logprobs
            rows = np.zeros(1, dtype=np.int32)
            logprobs.append(LogprobRows(*ops.logprobs(raw, rows, token, k)))
    return ids[len(prompt) :], logprobs


@dataclass
class ToyRequest:
    """A request as `ToyScheduler` knows it. `output` is what came back, `ahead` is in flight."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    sample_index: int = 0
    stop_ids: tuple[int, ...] = ()
    output: list[int] = field(default_factory=list)
    logprobs: list[LogprobRows] = field(default_factory=list)
    error: str | None = None
    ahead: int = 0
    num_computed: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    epoch: int = 0  # counts preemptions: results of an earlier epoch are dropped

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + len(self.output) + self.ahead


class ToyScheduler:
    """Schedules what it is told to, one group table per window, blocks from one free list.

    `submit` gives a step to a runner; `collect` takes the results of the oldest step in flight.
    """

    def __init__(self, num_groups: int, num_blocks: int) -> None:
        self.waiting: dict[str, ToyRequest] = {}
        self.running: dict[str, ToyRequest] = {}
        self._num_groups = num_groups
        self._free = list(range(1, num_blocks))
        self._finished: list[str] = []
        self._preempted: list[str] = []
        self._new: list[str] = []
        self._in_flight: list[tuple[SchedulerOutput, dict[str, int], Callable[[], RunnerOutput]]]
        self._in_flight = []
        self._step_id = 0

    def add(self, request: ToyRequest) -> None:
        self.waiting[request.request_id] = request

    def admit(self, request_id: str) -> None:
        self.running[request_id] = self.waiting.pop(request_id)
        self._new.append(request_id)

    def finish(self, request_id: str) -> None:
        request = self.running.pop(request_id, None) or self.waiting.pop(request_id)
        self._release(request)
        self._finished.append(request_id)

    def preempt(self, request_id: str) -> None:
        request = self.waiting[request_id] = self.running.pop(request_id)
        self._release(request)
        request.num_computed = request.ahead = 0
        request.epoch += 1
        self._preempted.append(request_id)

    def schedule(self, wishes: Mapping[str, int]) -> SchedulerOutput:
        """Schedule at most wishes[id] tokens of each running request."""
        step = SchedulerOutput(
            step_id=self._step_id,
            finished_request_ids=self._finished,
            preempted_request_ids=self._preempted,
        )
        self._step_id += 1
        self._finished, self._preempted = [], []
        cached = CachedRequestData()
        for request_id, wish in wishes.items():
            request = self.running[request_id]
            count = min(wish, request.num_tokens - request.num_computed)
            if count <= 0:
                continue
            fresh = self._grow(request, request.num_computed + count)
            if request_id in self._new:
                self._new.remove(request_id)
                step.new_requests.append(self._whole(request))
            else:
                cached.request_ids.append(request_id)
                cached.new_block_ids.append(tuple(fresh) if any(fresh) else None)
                cached.num_computed_tokens.append(request.num_computed)
            step.num_scheduled_tokens[request_id] = count
            request.num_computed += count
            if request.num_computed == request.num_tokens:
                step.samples.append(request_id)
                request.ahead += 1
        step.cached_requests = cached
        step.total_num_scheduled_tokens = sum(step.num_scheduled_tokens.values())
        return step

    def submitted(self, step: SchedulerOutput, result: Callable[[], RunnerOutput]) -> None:
        epochs = {r: self.running[r].epoch for r in step.samples}
        self._in_flight.append((step, epochs, result))

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def collect(self) -> RunnerOutput:
        step, epochs, result = self._in_flight.pop(0)
        output = result()
        assert output.step_id == step.step_id
        assert output.request_ids == list(step.num_scheduled_tokens)
        for request_id, tokens in zip(output.request_ids, output.sampled_token_ids):
            request = self.running.get(request_id)
            if request is None or request.epoch != epochs.get(request_id, request.epoch):
                continue
            if request_id in output.errors:
                request.error = output.errors[request_id]
                self.finish(request_id)
                continue
            assert len(tokens) == (request_id in step.samples)
            if tokens:
                request.ahead -= 1
                request.output += tokens
                if request_id in output.logprobs:
                    request.logprobs.append(output.logprobs[request_id])
        return output

    def _whole(self, request: ToyRequest) -> NewRequestData:
        return NewRequestData(
            request_id=request.request_id,
            token_ids=request.prompt + request.output,
            num_prompt_tokens=len(request.prompt),
            block_ids=tuple(list(ids) for ids in request.blocks),
            num_computed_tokens=request.num_computed,
            sampling_params=request.params,
            sample_index=request.sample_index,
            stop_ids=list(request.stop_ids),
        )

    def _grow(self, request: ToyRequest, num_tokens: int) -> list[list[int]]:
        """Give it blocks for `num_tokens`. Returns the fresh ones per group."""
        if not request.blocks:
            request.blocks = [[] for _ in range(self._num_groups)]
        fresh: list[list[int]] = []
        for ids in request.blocks:
            need = -(-num_tokens // BLOCK) - len(ids)
            fresh.append([self._free.pop() for _ in range(need)])
            ids += fresh[-1]
        return fresh

    def _release(self, request: ToyRequest) -> None:
        for ids in request.blocks:
            self._free += ids
        request.blocks = []
        if request.request_id in self._new:
            self._new.remove(request.request_id)
