"""A toy device with behaviour: its "model" reads its whole context back out of the paged cache.

Pages hold token ids. The logits of a row are a function of the ids that the row's block tables
lead to at positions 0 … p, so that a wrong slot, block, position, token or row shows as a wrong
token. Its hidden states are these ids, and its head makes the logits of them. `ToyScheduler` drives
a runner as the real scheduler does, any number of steps ahead.
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
from octavo.kernels.ops import Graph, KVCache, StepInputs, StepLimits
from octavo.kernels.sampling_ops import SamplingOps, SamplingRows
from octavo.kernels.sync import ThreadCounters
from octavo.sample.logprobs import HEAD_LIMITS
from octavo.worker.model_runner import ModelRunner
from tests.sample.twin import TwinSampling

VOCAB = 32
BLOCK = 16
GREEDY = SamplingParams(temperature=0.0)
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


def toy_taps(rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """What a head gives: all logits, and the best of each row."""
    logits = np.array(rows, dtype=np.float32).reshape(-1, VOCAB)
    numbers = np.where(np.isnan(logits), -np.inf, logits)
    best = np.stack([numbers.argmax(axis=1), numbers.max(axis=1)], axis=1)
    return {"logits": logits, "argmax": best.astype(np.float32)}


def wanted(taps: Mapping[str, Any], step: StepInputs) -> dict[str, Any]:
    """Those that a step asks for."""
    return {name: taps[name] for name in (taps if step.outputs is None else step.outputs)}


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

    counters = ThreadCounters()

    def __init__(
        self, kv: ToyKV, windows: Sequence[int | None], *, max_logit_rows: int = 64
    ) -> None:
        self._kv = kv
        self._windows = windows
        self._max_logit_rows = max_logit_rows
        self.steps: list[StepInputs] = []

    @property
    def nbytes(self) -> int:
        return 0

    def replay(self, step: StepInputs) -> Mapping[str, np.ndarray]:
        self.steps.append(copy.deepcopy(step))
        for pool, slots in zip(self._kv.pools, step.slot_mapping):
            assert (slots >= BLOCK).all(), "the null block is never written"
            pool[slots] = step.token_ids
        contexts = _Contexts(self._kv, self._windows, step)
        rows = [toy_logits(contexts.of(row)) for row in step.logit_rows.tolist()]
        assert len(rows) <= self._max_logit_rows
        return wanted({"hidden_states": contexts, **toy_taps(rows)}, step)


class _Contexts:
    """For every token of a step the ids up to it, as read back from the cache; [T, D] where asked
    for as an array, filled up with -1."""

    def __init__(self, kv: ToyKV, windows: Sequence[int | None], step: StepInputs) -> None:
        self._kv, self._windows, self._step = kv, windows, copy.deepcopy(step)
        self._owner = np.repeat(np.arange(len(step.seq_lens)), np.diff(step.query_start))

    def of(self, token_row: int) -> list[int]:
        position, request = int(self._step.positions[token_row]), int(self._owner[token_row])
        contexts = []
        for pool, tables, window in zip(self._kv.pools, self._step.block_tables, self._windows):
            where = np.arange(position + 1)
            slots = tables[request, where // BLOCK] * BLOCK + where % BLOCK
            contexts.append((pool[slots], window))
        full = next(ids for ids, window in contexts if window is None)
        for ids, window in contexts:
            if window is not None:
                assert (ids[-window:] == full[-window:]).all()
        return full.tolist()

    def __getitem__(self, token_rows: np.ndarray) -> np.ndarray:
        rows = [self.of(row) for row in token_rows.tolist()]
        padded = np.full((len(rows), max(map(len, rows))), -1, dtype=np.float32)
        for row, ids in zip(padded, rows):
            row[: len(ids)] = ids
        return padded


class ToyHead(Graph):
    """Logits of contexts; its norm changes nothing, but for NaN after POISON."""

    nbytes = 0
    counters = ThreadCounters()

    def replay(self, step: StepInputs) -> Mapping[str, np.ndarray]:
        assert len(step.token_ids) <= HEAD_LIMITS.max_tokens
        states = step.extra["hidden_states"]
        contexts = states.astype(int).tolist()
        taps = toy_taps([toy_logits([i for i in ids if i >= 0]) for ids in contexts])
        normed = np.where((states == POISON).any(axis=1, keepdims=True), np.nan, states)
        return wanted({"last_hidden_state": normed, **taps}, step)


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
    graph = ToyGraph(kv, windows, max_logit_rows=max_logit_rows)
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
        head=ToyHead(),
        kv=kv,
        limits=limits,
        block_sizes=[BLOCK] * len(windows),
        vocab_size=VOCAB,
        features=features,
    )
    return Toy(runner, kv, graph)


def edited_logits(
    logits: np.ndarray,
    prompt: Sequence[int],
    output: Sequence[int],
    params: SamplingParams,
    stop_ids: Sequence[int],
    bad_words: Sequence[Sequence[int]],
) -> np.ndarray:
    """[VOCAB] float32 after all that is asked for has been done to them, in vLLM's order."""
    x = logits.copy()
    if params.allowed_token_ids is not None:
        x[[i for i in range(VOCAB) if i not in params.allowed_token_ids]] = -np.inf
    for *beginning, last in bad_words:
        if not beginning or list(output[-len(beginning) :]) == beginning:
            x[last] = -np.inf
    if len(output) < params.min_tokens:
        x[list(stop_ids)] = -np.inf
    for token_id, bias in (params.logit_bias or {}).items():
        x[token_id] += np.float32(bias)
    repetition, frequency, presence = map(
        np.float32,
        (params.repetition_penalty, params.frequency_penalty, params.presence_penalty),
    )
    for token_id in {*prompt, *output}:
        x[token_id] = x[token_id] / repetition if x[token_id] > 0 else x[token_id] * repetition
    for token_id in set(output):
        x[token_id] -= frequency * np.float32(list(output).count(token_id))
        x[token_id] -= presence
    return x


def generate_alone(
    prompt: Sequence[int],
    params: SamplingParams,
    n: int,
    *,
    sample_index: int = 0,
    stop_ids: Sequence[int] = (),
    bad_words: Sequence[Sequence[int]] = (),
) -> tuple[list[int], list[LogprobRows]]:
    """The answer by definition: no batch, no cache, no rows. Returns token ids and logprobs."""
    ops, ids, logprobs = TwinSampling(), list(prompt), []
    for _ in range(n):
        raw = toy_logits(ids)[None]
        output = ids[len(prompt) :]
        logits = edited_logits(raw[0], prompt, output, params, stop_ids, bad_words)[None]
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


def prompt_logprobs_alone(prompt: Sequence[int], k: int, position: int) -> LogprobRows:
    """About the prompt's token at a position, by definition."""
    logits, zero = toy_logits(prompt[:position])[None], np.zeros(1, dtype=np.int32)
    token = np.array([prompt[position]], dtype=np.int32)
    return LogprobRows(*TwinSampling().logprobs(logits, zero, token, VOCAB if k == -1 else k))


@dataclass
class ToyRequest:
    """A request as `ToyScheduler` knows it. `output` is what came back, `ahead` is in flight;
    `prompt_logprobs` is by position, of every time that it was computed."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    sample_index: int = 0
    stop_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    output: list[int] = field(default_factory=list)
    logprobs: list[LogprobRows] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, LogprobRows]] = field(default_factory=list)
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
                if any(fresh):
                    cached.new_block_ids[request_id] = tuple(fresh)
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
        epochs = {r: self.running[r].epoch for r in step.num_scheduled_tokens}
        self._in_flight.append((step, epochs, result))

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def collect(self) -> RunnerOutput:
        step, epochs, result = self._in_flight.pop(0)
        output = result()
        assert output.step_id == step.step_id
        assert output.request_ids == list(step.num_scheduled_tokens)
        starts = {r.request_id: r.num_computed_tokens for r in step.new_requests}
        cached = step.cached_requests
        starts.update(zip(cached.request_ids, cached.num_computed_tokens))
        for request_id, tokens in zip(output.request_ids, output.sampled_token_ids):
            request = self.running.get(request_id)
            if request is None or request.epoch != epochs[request_id]:
                continue
            if request_id in output.errors:
                request.error = output.errors[request_id]
                self.finish(request_id)
                continue
            assert len(tokens) == (request_id in step.samples)
            start, count = starts[request_id], step.num_scheduled_tokens[request_id]
            self._collect_prompt(request, start, count, output.prompt_logprobs.get(request_id))
            if tokens:
                request.ahead -= 1
                request.output += tokens
                if request_id in output.logprobs:
                    request.logprobs.append(output.logprobs[request_id])
        return output

    def _collect_prompt(
        self, request: ToyRequest, start: int, count: int, rows: LogprobRows | None
    ) -> None:
        """Row i of a chunk is about the prompt's token at start + 1 + i."""
        expected = max(0, min(count, len(request.prompt) - 1 - start))
        if request.params.prompt_logprobs is None:
            expected = 0
        assert (0 if rows is None else len(rows)) == expected
        for i in range(expected):
            assert rows is not None
            one = slice(i, i + 1)
            row = LogprobRows(rows.token_ids[one], rows.logprobs[one], rows.ranks[one])
            request.prompt_logprobs.append((start + 1 + i, row))

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
            bad_words_token_ids=[list(word) for word in request.bad_words],
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


def check(request: ToyRequest) -> None:
    """What the request got is what it gets alone."""
    ids, logprobs = generate_alone(
        request.prompt,
        request.params,
        len(request.output),
        sample_index=request.sample_index,
        stop_ids=request.stop_ids,
        bad_words=request.bad_words,
    )
    assert request.output == ids
    assert len(request.logprobs) == len(logprobs)
    for got, want in zip(request.logprobs, logprobs):
        np.testing.assert_array_equal(got.token_ids, want.token_ids)
        np.testing.assert_array_equal(got.logprobs, want.logprobs)
        np.testing.assert_array_equal(got.ranks, want.ranks)
    k = request.params.prompt_logprobs
    for position, got in request.prompt_logprobs:
        assert k is not None
        want = prompt_logprobs_alone(request.prompt, k, position)
        np.testing.assert_array_equal(got.token_ids, want.token_ids)
        np.testing.assert_array_equal(got.logprobs, want.logprobs)
        np.testing.assert_array_equal(got.ranks, want.ranks)
    if k is not None and request.output:
        found = {position for position, _ in request.prompt_logprobs}
        assert found == set(range(1, len(request.prompt)))


def run_step(toy: Toy, scheduler: ToyScheduler, wishes: dict[str, int]) -> SchedulerOutput:
    step = scheduler.schedule(wishes)
    toy.runner.execute_model(step)
    output = toy.runner.sample_tokens(None)
    scheduler.submitted(step, lambda: output)
    return step


def run_to_end(toy: Toy, requests: Sequence[ToyRequest], num_tokens: int) -> None:
    """All of them from now on, together, one step at a time."""
    scheduler = ToyScheduler(1, 64)
    for request in requests:
        scheduler.add(request)
        scheduler.admit(request.request_id)
    while any(len(r.output) < num_tokens and r.error is None for r in requests):
        wishes = {r: 64 // len(requests) for r in scheduler.running}
        run_step(toy, scheduler, wishes)
        scheduler.collect()
