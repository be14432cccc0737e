"""What an engine measures of its requests.

Names, labels and buckets are vLLM's core set. Recording must be cheap (it happens per token), so
the recorder keeps plain numbers; `metrics_exposition` makes Prometheus' families of them.

All times are `time.monotonic()` seconds, the clock of `EngineRequest.arrival_time`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.contracts.messages import (
    BlockTimes,
    EngineOutputs,
    EngineRequest,
    FinishReason,
    SchedulerStats,
)

ABORT_REASONS = ("disconnect", "api", "shutdown", "engine_dead")
"""Why a request was aborted: the caller left its stream, `abort()` was called, the server stopped,
the engine core died."""

_TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_TIME_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_BLOCK_TIME_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)
_STEP_BUCKETS = tuple(float(2**i) for i in (0, *range(3, 15)))
_N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTION_BUCKETS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)


def buckets_1_2_5(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to `limit`."""
    return tuple(
        float(m * 10**e) for e in range(len(str(limit))) for m in (1, 2, 5) if m * 10**e <= limit
    )


class Histogram:
    """Counts per bucket; `bounds` are inclusive upper bounds, the last bucket (+Inf) is implied."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound, number of values ≤ bound) pairs, as Prometheus wants them."""
        pairs, seen = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts):
            seen += count
            pairs.append((bound, float(seen)))
        return pairs


HISTOGRAMS = {
    "time_to_first_token_seconds": "Seconds from arrival to the first token.",
    "inter_token_latency_seconds": "Seconds between two outputs of one sequence.",
    "request_time_per_output_token_seconds": "Mean seconds per token after the first, by request.",
    "e2e_request_latency_seconds": "Seconds from arrival to the end.",
    "request_queue_time_seconds": "Seconds from arrival until first scheduled.",
    "request_inference_time_seconds": "Seconds from first scheduled to the last token.",
    "request_prefill_time_seconds": "Seconds from first scheduled to the first token.",
    "request_decode_time_seconds": "Seconds from the first to the last token.",
    "request_prompt_tokens": "Prompt tokens of ended requests.",
    "request_generation_tokens": "Generated tokens of ended requests.",
    "request_max_num_generation_tokens": "Most tokens that any of a request's n sequences made.",
    "request_params_n": "The parameter n of ended requests.",
    "request_params_max_tokens": "The parameter max_tokens of ended requests.",
    "request_prefill_kv_computed_tokens": "Prompt tokens of ended requests that were computed.",
    "request_num_preemptions": "Preemptions of ended requests.",
    "iteration_tokens_total": "Tokens computed per step of the engine.",
    "kv_block_lifetime_seconds": "Seconds from when a block's content could be found until its "
    "eviction; of every 64th block.",
    "kv_block_idle_before_evict_seconds": "Seconds without a holder before an eviction; of every "
    "64th block.",
    "kv_block_reuse_gap_seconds": "Seconds between two prompts that used the same content; of "
    "every 64th block.",
}

BLOCK_TIMES = (
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
)


class _Group:
    """The n sequences of one request of the user."""

    __slots__ = ("left", "max_tokens", "most_generated", "n")

    def __init__(self, n: int, max_tokens: int | None) -> None:
        self.left = n
        self.n = n
        self.max_tokens = max_tokens
        self.most_generated = 0


class _Sequence:
    """What is known of a running engine request."""

    __slots__ = (
        "arrival",
        "first_token",
        "group",
        "is_fork",
        "last_token",
        "num_cached",
        "num_generated",
        "num_prompt",
        "scheduled",
    )

    def __init__(self, request: EngineRequest, group: _Group) -> None:
        self.arrival = request.arrival_time
        self.num_prompt = len(request.prompt_token_ids)
        self.group = group
        self.is_fork = request.fork_of is not None
        self.num_cached = 0
        self.num_generated = 0
        self.scheduled: float | None = None
        self.first_token = 0.0
        self.last_token = 0.0

    def finished(self, request_id: str, reason: FinishReason) -> FinishedSequence:
        return FinishedSequence(
            request_id=request_id,
            reason=reason,
            num_prompt_tokens=self.num_prompt,
            num_generated_tokens=self.num_generated,
            num_cached_tokens=0 if self.is_fork else self.num_cached,
            arrival=self.arrival,
            scheduled=self.scheduled,
            first_token=self.first_token if self.num_generated else None,
            last_token=self.last_token if self.num_generated else None,
        )


@dataclass(frozen=True, kw_only=True)
class CacheInfo:
    """The KV cache's fixed facts, the labels of `octavo:cache_config_info`."""

    block_size: int
    num_blocks: int
    dtype: str
    enable_prefix_caching: bool


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """What was measured of an engine request that has ended.

    Attributes:
        num_prompt_tokens, num_generated_tokens: of this sequence; of n completions each has the
            prompt.
        scheduled, first_token, last_token: None where it did not come so far.
        num_cached_tokens: prompt tokens that came from the prefix cache; 0 where the prompt is
            shared with another completion, which counts them.
    """

    request_id: str
    reason: FinishReason
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int
    arrival: float
    scheduled: float | None
    first_token: float | None
    last_token: float | None


class EngineMetrics:
    """The recorder of one engine, fed by its front end.

    The front end calls `add_requests` for all engine requests that it sends to the core,
    `record_outputs` for every batch that comes back, and `finish_request` for those that end
    otherwise: by a stop string, by an abort, by the core's death.

    Args:
        max_model_len: sizes the buckets of token counts.

    Attributes:
        stats: the scheduler's, as last heard.
        finished, aborted: engine requests that ended, by reason.
        prompt_tokens_by_source: prompt tokens computed, and found in the prefix cache.
        on_started: called once with the id of every engine request, at its first token or at its
            end without one: it no longer waits.
        on_finished: called once for every engine request, at its end.
    """

    def __init__(self, *, max_model_len: int, cache: CacheInfo | None = None) -> None:
        self.cache = cache
        self.on_started: Callable[[str], None] | None = None
        self.on_finished: Callable[[FinishedSequence], None] | None = None
        self.stats = SchedulerStats()
        self.finished = {str(reason): 0 for reason in FinishReason}
        self.aborted = dict.fromkeys(ABORT_REASONS, 0)
        self.prompt_tokens_by_source = {"local_compute": 0, "local_cache_hit": 0}
        tokens = buckets_1_2_5(max_model_len)
        self.histograms = {name: Histogram(_bounds_of(name, tokens)) for name in HISTOGRAMS}
        self._time_to_first = self.histograms["time_to_first_token_seconds"]
        self._inter_token = self.histograms["inter_token_latency_seconds"]
        self._sequences: dict[str, _Sequence] = {}

    @property
    def num_tracked(self) -> int:
        """Engine requests that have not ended."""
        return len(self._sequences)

    def add_requests(self, requests: Sequence[EngineRequest]) -> None:
        """The n engine requests of one request of the user are on their way to the core."""
        params = requests[0].sampling_params
        group = _Group(len(requests), params.max_tokens if params else None)
        for request in requests:
            self._sequences[request.request_id] = _Sequence(request, group)

    def record_outputs(self, outputs: EngineOutputs, now: float | None = None) -> None:
        """A batch came from the core. Outputs of unknown (ended) requests are passed over."""
        now = time.monotonic() if now is None else now
        sequences, inter_token = self._sequences, self._inter_token
        for output in outputs.outputs:
            sequence = sequences.get(output.request_id)
            if sequence is None:
                continue
            if output.queue_time is not None:
                sequence.scheduled = sequence.arrival + output.queue_time
                sequence.num_cached = output.num_cached_tokens
                self._count_prompt(sequence)
            if output.new_token_ids:
                if sequence.num_generated:
                    inter_token.observe(now - sequence.last_token)
                else:
                    sequence.first_token = now
                    self._time_to_first.observe(now - sequence.arrival)
                    if self.on_started is not None:
                        self.on_started(output.request_id)
                sequence.last_token = now
                sequence.num_generated += len(output.new_token_ids)
            if output.finish_reason is not None:
                self._observe("request_num_preemptions", output.num_preemptions)
                self.finish_request(output.request_id, output.finish_reason, now=now)
        if outputs.stats is not None:
            if outputs.stats.num_steps != self.stats.num_steps:
                self.histograms["iteration_tokens_total"].observe(outputs.stats.step_tokens)
            self.stats = outputs.stats
        if outputs.block_times is not None:
            self._observe_blocks(outputs.block_times)

    def _observe_blocks(self, times: BlockTimes) -> None:
        for name, seconds in zip(BLOCK_TIMES, (times.lifetimes, times.idle, times.reuse_gaps)):
            for value in seconds:
                self._observe(name, value)

    def _count_prompt(self, sequence: _Sequence) -> None:
        """A sequence was scheduled first. Those that share another's prompt do not count it."""
        if not sequence.is_fork:
            computed = sequence.num_prompt - sequence.num_cached
            self.prompt_tokens_by_source["local_compute"] += computed
            self.prompt_tokens_by_source["local_cache_hit"] += sequence.num_cached

    def finish_request(
        self,
        request_id: str,
        reason: FinishReason,
        *,
        abort_reason: str = "api",
        now: float | None = None,
    ) -> None:
        """An engine request ended. Unknown ids (ended already) are passed over.

        Args:
            abort_reason: one of ABORT_REASONS; counts where `reason` is ABORT.
        """
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return
        if not sequence.num_generated and self.on_started is not None:
            self.on_started(request_id)
        now = time.monotonic() if now is None else now
        self.finished[str(reason)] += 1
        if reason is FinishReason.ABORT:
            self.aborted[abort_reason] += 1
        observe = self._observe
        observe("e2e_request_latency_seconds", now - sequence.arrival)
        observe("request_prompt_tokens", sequence.num_prompt)
        observe("request_generation_tokens", sequence.num_generated)
        if sequence.scheduled is not None and sequence.num_generated:
            observe("request_queue_time_seconds", sequence.scheduled - sequence.arrival)
            observe("request_prefill_time_seconds", sequence.first_token - sequence.scheduled)
            observe("request_inference_time_seconds", sequence.last_token - sequence.scheduled)
            computed = sequence.num_prompt - sequence.num_cached
            observe("request_prefill_kv_computed_tokens", computed)
        if sequence.num_generated:
            decode = sequence.last_token - sequence.first_token
            observe("request_decode_time_seconds", decode)
            if sequence.num_generated > 1:
                per_token = decode / (sequence.num_generated - 1)
                observe("request_time_per_output_token_seconds", per_token)
        self._end_in_group(sequence)
        if self.on_finished is not None:
            self.on_finished(sequence.finished(request_id, reason))

    def _end_in_group(self, sequence: _Sequence) -> None:
        group = sequence.group
        group.most_generated = max(group.most_generated, sequence.num_generated)
        group.left -= 1
        if group.left == 0:
            self._observe("request_params_n", group.n)
            self._observe("request_max_num_generation_tokens", group.most_generated)
            if group.max_tokens is not None:
                self._observe("request_params_max_tokens", group.max_tokens)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)


def _bounds_of(name: str, tokens: tuple[float, ...]) -> tuple[float, ...]:
    special = {
        "time_to_first_token_seconds": _TTFT_BUCKETS,
        "inter_token_latency_seconds": _TOKEN_TIME_BUCKETS,
        "request_time_per_output_token_seconds": _TOKEN_TIME_BUCKETS,
        "request_params_n": _N_BUCKETS,
        "request_num_preemptions": _PREEMPTION_BUCKETS,
        "iteration_tokens_total": _STEP_BUCKETS,
        **dict.fromkeys(BLOCK_TIMES, _BLOCK_TIME_BUCKETS),
    }
    return special.get(name, _LATENCY_BUCKETS if name.endswith("_seconds") else tokens)
