"""What travels between the front end and the engine core, and what the user gets.

    EngineRequest ─► EngineCore ─► EngineOutputs{EngineOutput…} ─► OutputProcessor ─► RequestOutput

The first two cross a process boundary as msgpack (`contracts.codec`); `RequestOutput` does not.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from octavo.contracts.answer_events import Event
from octavo.contracts.logprobs import Logprob as Logprob
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.structured_outputs import GrammarSource


class FinishReason(enum.IntEnum):
    """Why a request ended."""

    STOP = 0  # end-of-sequence id, stop id or stop string
    LENGTH = 1  # max_tokens or max_model_len
    ABORT = 2  # the caller went away
    ERROR = 3  # this request failed; the engine goes on
    REPETITION = 4  # its output repeated itself (`SamplingParams.repetition_detection`)
    TIMEOUT = 5  # `max_time_ms` or `ttft_deadline_ms`

    def __str__(self) -> str:
        return self.name.lower()


class ServiceClass(enum.IntEnum):
    """Whom a request serves: each class goes before all that follow, under every policy."""

    INTERACTIVE = 0  # somebody waits for the answer
    BATCH = 1  # in capacity that the others leave


class LogprobRows(msgspec.Struct, array_like=True, gc=False):
    """Log probabilities of n tokens. Column 0 is the sampled (or given) token, then come the top k,
    then m ids that were listed.

    Attributes:
        token_ids: [n, 1 + k + m] int32.
        logprobs: [n, 1 + k + m] float32, of the raw (unfiltered) distribution, or what else
            `ModelConfig.logprobs_mode` says.
        ranks: [n] int32, rank of the token in column 0, from 1.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    ranks: np.ndarray

    def __len__(self) -> int:
        return len(self.ranks)


class Thinking(msgspec.Struct, array_like=True, gc=False):
    """How a model marks its reasoning. Each at least one id.

    Attributes:
        start_ids, end_ids: the tokens of the mark of its beginning, and of its end.
    """

    start_ids: list[int]
    end_ids: list[int]


class EngineRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One sequence to generate. `n > 1` is n EngineRequests that name the same `fork_of`.

    Attributes:
        request_id: unique among the requests that the core holds (`engine_request_ids`).
        prompt_token_ids: at least one id.
        sampling_params: with `seed` always set (drawn at admission if the user gave none).
        eos_token_ids: the model's end ids; the core stops on them unless `ignore_eos`.
        bad_words_token_ids: each spelling of each of the parameters' `bad_words`, as ids.
        grammar: what the output must be (the parameters' `structured_outputs` do not travel).
        thinking: the model's marks, for `thinking_token_budget`; None where there is none.
        sample_index: which of n completions; part of the key of the random stream.
        fork_of: request id of completion 0, whose prompt KV this one shares; None for itself. Or
            the id of an ended request with `leaves_fork_source`, whose prompt is this one's but
            for the last token.
        leaves_fork_source: remember, as long as they are not handed out anew, where keys and values
            of its prompt are, for those that fork it when it has ended.
        priority: lower runs first within its class (policy "priority").
        service_class: whom it serves.
        cache_salt: requests share cached prefixes only within the same salt.
        lora_name: adapter; part of block hashes. Refused until there is LoRA.
        extras: per-feature payloads, keyed by feature.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams | None = None
    pooling_params: PoolingParams | None = None
    eos_token_ids: list[int] = []
    bad_words_token_ids: list[list[int]] = []
    grammar: GrammarSource | None = None
    thinking: Thinking | None = None
    arrival_time: float = 0.0
    sample_index: int = 0
    fork_of: str | None = None
    leaves_fork_source: bool = False
    priority: int = 0
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    cache_salt: str | None = None
    lora_name: str | None = None
    extras: dict[str, Any] = {}


def engine_request_ids(request_id: str, n: int) -> list[str]:
    """Ids of the engine requests that a request for n completions becomes."""
    return [request_id] if n == 1 else [f"{i}_{request_id}" for i in range(n)]


class PromptProgress(msgspec.Struct, array_like=True, gc=False):
    """How far a request is that has no token yet.

    Attributes:
        num_ahead: requests that wait and go before it; None: it does not wait any more.
        num_computed_tokens: tokens of its prompt that are computed, or came from the prefix cache.
    """

    num_ahead: int | None
    num_computed_tokens: int


class EngineOutput(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What one step brought for one request.

    Attributes:
        stop_reason: the stop token id that ended it (the front end fills in stop strings).
        num_cached_tokens: prompt tokens taken from the prefix cache; sent with the first output.
        num_preemptions: how often it was preempted; sent with the last output.
        queue_time: seconds from `arrival_time` until it was first scheduled; sent with the first
            output. None where nobody measured it.
        error: message for the user when finish_reason is ERROR.
        error_param: the request's field that is at fault, where it is the request's.
        progress: of a request that asked for it, before its first output, and nothing else then.
    """

    request_id: str
    new_token_ids: list[int] = []
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None
    pooling_output: np.ndarray | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_time: float | None = None
    error: str | None = None
    error_param: str | None = None
    progress: PromptProgress | None = None


class SchedulerStats(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A snapshot of the scheduler after a step; counters are totals since the start."""

    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0  # of those, not for want of room: a grammar is compiled, a prompt shared
    num_blocks: int = 0
    num_used_blocks: int = 0  # held by requests
    num_cached_blocks: int = 0  # free, but keeping a hash
    prefix_queries: int = 0  # prompt tokens looked up, once per request
    prefix_hits: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_steps: int = 0
    step_tokens: int = 0  # scheduled in the last step
    forward_seconds: float = 0.0  # of all steps

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that requests hold, 0…1."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0


class BlockTimes(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """Seconds in the lives of some KV blocks' contents (`core.block_times`)."""

    lifetimes: list[float] = []  # from getting a hash to being evicted
    idle: list[float] = []  # from the last holder to being evicted
    reuse_gaps: list[float] = []  # between two prompts that use it


class EngineOutputs(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """All that one step brought."""

    outputs: list[EngineOutput] = []
    stats: SchedulerStats | None = None
    block_times: BlockTimes | None = None


# -------------------------------------------------------------------- what the user gets


@dataclass(slots=True)
class CompletionOutput:
    """One of the n completions of a request (all of it, or the new part of it: `output_kind`).

    Attributes:
        logprobs: per token {token id: Logprob}, the sampled one first; None if not asked for. A
            `FlatLogprobs` reads as such a list (`SamplingParams.flat_logprobs`).
        cumulative_logprob: sum over the sampled tokens so far; None if not asked for.
        finish_reason: "stop", "length", "repetition", "timeout", "abort", "error", or None while it
            runs.
        stop_reason: the stop string or stop token id that ended it; None for EOS and length.
        error, error_param: as in `EngineOutput`.
        events: the text taken apart, where the request came with a parser: `text` is then as the
            model wrote it, and what a stop string cuts off is left out of the events alone.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    error_param: str | None = None
    events: list[Event] | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The answer to one request, with its n completions in order of index.

    Attributes:
        prompt: the text, where the prompt was given as text.
        num_cached_tokens: prompt tokens that came from the prefix cache (completion 0).
        prompt_logprobs: per prompt token {token id: Logprob}, the token itself first; None for the
            first, which nothing comes before, and for those before `prompt_logprob_start`. None if
            not asked for, or if the request ended early.
        pooled: [dimensions] float32, the vector of a pooling request; its one completion has no
            tokens, and tells how it ended. None of other requests, and of one that failed.
        progress: before the first token, where asked for; then `outputs` is empty.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    pooled: np.ndarray | None = None
    progress: PromptProgress | None = None


@dataclass(slots=True)
class PoolingOutput:
    """What a pooling request is answered: `data` [dimensions] float32."""

    data: np.ndarray

    @property
    def embedding(self) -> list[float]:
        """The vector as a list."""
        values: list[float] = self.data.tolist()
        return values


@dataclass(slots=True)
class PoolingRequestOutput:
    """The answer to one pooling request.

    Attributes:
        num_cached_tokens: as in `RequestOutput`.
    """

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class ScoringOutput:
    """How near two texts are: `score`, the cosine of their vectors."""

    score: float


@dataclass(slots=True)
class ScoringRequestOutput:
    """The answer to one pair of texts; `prompt_token_ids` are the first's, then the second's."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
