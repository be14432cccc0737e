"""The scheduler's view of one request.

There is no prefill phase and no decode phase. A request has tokens it knows (prompt and outputs),
perhaps drafts behind them, and placeholders for tokens that steps in flight will sample. It is
scheduled for as many tokens as bring `num_computed_tokens` up to all of these.

    token_ids        p p p p p p p o o o            known
    placeholders                         _ _        sampled by steps in flight, not known yet
    drafts                               d d d      guesses, only where there are no placeholders
    num_computed     ─────────────────────►         scheduled: KV is there, or in flight
    in flight                        ──────         of these, not processed yet
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.contracts.messages import EngineRequest, FinishReason
from octavo.core.repetition import RepetitionDetector
from octavo.errors import PromptTooLongError, RequestError, shown

if TYPE_CHECKING:
    from octavo.core.block_pool import Block

_MAX_TOKEN_ID = 2**31 - 1
_LARGEST_VOCABULARY = 2**18  # where all log probabilities are asked for, at most so many

Ending = tuple[FinishReason, "int | None"]
"""(why a request ends, the stop token id if one ended it)."""

BlockTable = list["Block"]
"""The blocks of one request in one KV group, in order of position."""


class RequestStatus(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again, without blocks
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class ForkSource:
    """What a finished request leaves to those that wait to fork it: its blocks, not held.

    A block handed out since then has another generation, and is lost.

    Attributes:
        blocks: per KV group, the blocks of its prompt.
        generations: the generation of each at that time.
    """

    blocks: tuple[BlockTable, ...]
    generations: tuple[list[int], ...]

    @property
    def is_intact(self) -> bool:
        """Whether all blocks still hold what they held."""
        return all(
            block.generation == generation
            for table, known in zip(self.blocks, self.generations)
            for block, generation in zip(table, known)
        )


class Request:
    """One request in the core. Also the `contracts.features.HookRequest` that hooks read.

    Attributes:
        engine_request: what came over the wire.
        arrival_index: counts requests in the order they came.
        service_class: whom it serves (`policy`).
        status: see `RequestStatus`.
        token_ids: all known tokens: prompt, then outputs.
        output_token_ids: the outputs alone.
        spec_token_ids: drafts for the next step; never in the prefix cache.
        num_computed_tokens: tokens with KV, those of steps in flight included.
        num_output_placeholders: tokens that steps in flight will at most sample.
        num_in_flight_tokens: computed tokens whose step has not been processed.
        num_drafts_in_flight: drafts under verification. The request rests until the verdict,
            because its next position depends on it.
        max_num_tokens: where `max_tokens` or the model's length ends it.
        min_num_tokens: with fewer, no repetition ends it.
        block_tables: per KV group; empty unless it runs. All of the same length.
        num_cached_blocks: how many leading blocks of the tables have been given their hash.
        num_roomy_tokens: up to how many tokens it can grow before a block must be taken or hashed.
        block_hashes: hashes of the full blocks of `token_ids`, as far as computed.
        epoch: grows when the request is preempted or ends; results of steps that were scheduled
            in an earlier epoch are dropped.
        last_admitted_step: id of the step that admitted it last; -1 before the first time.
        is_sharing: whether it began, at that time, on blocks that others computed.
        has_output: whether its user has heard of it.
        has_failed: whether a step of it failed: what it computed is not to be trusted.
        num_cached_tokens: prompt tokens that the prefix cache held when it was first admitted.
        logprobs_per_prompt_token: how many log probabilities come of every token of its prompt.
        num_preemptions: how often it lost its blocks.
        num_overtaken: requests behind it that were admitted while it did not fit.
        first_prompt_logprob: position of the first prompt token that has logprobs.
        num_prompt_logprobs_sent: up to which prompt token the user has them.
        repetition: notices that the output repeats itself; None where nobody asked.
        parent: the request whose prompt KV it waits for (n > 1).
        num_waiting_children: requests that wait for this one's prompt KV.
        fork_source: what it left to them.
    """

    __slots__ = (
        "all_stop_token_ids",
        "arrival_index",
        "block_hashes",
        "block_tables",
        "engine_request",
        "eos_token_ids",
        "epoch",
        "first_prompt_logprob",
        "fork_source",
        "has_failed",
        "has_output",
        "is_pooling",
        "is_sharing",
        "last_admitted_step",
        "logprobs_per_prompt_token",
        "max_num_tokens",
        "min_num_tokens",
        "num_cached_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_drafts_in_flight",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_overtaken",
        "num_preemptions",
        "num_prompt_logprobs_sent",
        "num_prompt_tokens",
        "num_roomy_tokens",
        "num_waiting_children",
        "output_token_ids",
        "parent",
        "repetition",
        "request_id",
        "service_class",
        "skips_prefix_cache",
        "spec_token_ids",
        "status",
        "token_ids",
    )

    def __init__(
        self, engine_request: EngineRequest, *, arrival_index: int, num_groups: int, max_len: int
    ) -> None:
        params = engine_request.sampling_params
        self.engine_request = engine_request
        self.request_id = engine_request.request_id
        self.arrival_index = arrival_index
        self.service_class = engine_request.service_class
        self.status = RequestStatus.WAITING

        self.token_ids = list(engine_request.prompt_token_ids)
        self.output_token_ids: list[int] = []
        self.spec_token_ids: list[int] = []
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_in_flight_tokens = 0
        self.num_drafts_in_flight = 0

        self.is_pooling = params is None
        max_tokens = None if params is None else params.max_tokens
        ends = max_len if max_tokens is None else self.num_prompt_tokens + max_tokens
        self.max_num_tokens = min(ends, max_len)
        self.min_num_tokens = self.num_prompt_tokens + (params.min_tokens if params else 0)
        # Where a grammar allows only the end, nothing could follow.
        ignores_eos = params is None or (params.ignore_eos and engine_request.grammar is None)
        self.eos_token_ids = frozenset(() if ignores_eos else engine_request.eos_token_ids)
        stop_ids = (params.stop_token_ids if params is not None else None) or ()
        self.all_stop_token_ids = self.eos_token_ids.union(stop_ids)
        # KV holds no logits, so cached tokens would lack their logprobs.
        prompt_logprobs = None if params is None else params.prompt_logprobs
        self.skips_prefix_cache = prompt_logprobs is not None
        # Nor hidden states: all pooling but the last token's needs those of the whole prompt.
        pooling = engine_request.pooling_params
        if pooling is not None:
            self.skips_prefix_cache = pooling.pooling_type != "LAST"
        self.logprobs_per_prompt_token = 0
        self.first_prompt_logprob = 1
        self.repetition: RepetitionDetector | None = None
        if params is not None:
            self.skips_prefix_cache |= params.skip_reading_prefix_cache is True
            self.first_prompt_logprob = max(1, params.prompt_logprob_start)
            if params.repetition_detection is not None:
                self.repetition = RepetitionDetector(params.repetition_detection)
            if prompt_logprobs is not None:
                k = _LARGEST_VOCABULARY if prompt_logprobs == -1 else prompt_logprobs
                listed = params.prompt_logprob_token_ids or ()
                self.logprobs_per_prompt_token = 1 + k + len(listed)

        self.block_tables: tuple[BlockTable, ...] = tuple([] for _ in range(num_groups))
        self.num_cached_blocks = 0
        self.num_roomy_tokens = 0
        self.block_hashes: list[bytes] = []

        self.epoch = 0
        self.last_admitted_step = -1
        self.is_sharing = False
        self.num_cached_tokens = 0
        self.has_output = False
        self.has_failed = False
        self.num_preemptions = 0
        self.num_overtaken = 0
        self.num_prompt_logprobs_sent = 0

        self.parent: Request | None = None
        self.num_waiting_children = 0
        self.fork_source: ForkSource | None = None

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, {self.num_tokens} tokens, "
            f"{self.num_computed_tokens} computed)"
        )

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return len(self.token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        """Known tokens and drafts."""
        return len(self.token_ids) + len(self.spec_token_ids)

    @property
    def num_processed_tokens(self) -> int:
        """Computed tokens whose steps have ended."""
        return self.num_computed_tokens - self.num_in_flight_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    def num_wanted_tokens(self) -> int:
        """Tokens, drafts apart, that could be computed now; 0 where it has to wait for results."""
        num_tokens = len(self.token_ids) + self.num_output_placeholders
        if self.num_output_placeholders and (
            self.num_drafts_in_flight or num_tokens >= self.max_num_tokens
        ):
            return 0
        return num_tokens - self.num_computed_tokens

    def usable_drafts(self) -> list[int]:
        """The drafts that may lead to a token the request still wants."""
        if not self.spec_token_ids or self.num_output_placeholders:
            return []
        # One more token than drafts is sampled.
        return self.spec_token_ids[: self.max_num_tokens - len(self.token_ids) - 1]

    def forget_progress(self) -> None:
        """Back to the start, known tokens apart. The blocks must have been freed."""
        self.epoch += 1
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_in_flight_tokens = 0
        self.num_drafts_in_flight = 0
        self.spec_token_ids = []
        self.is_sharing = False

    def append_output(self, token_id: int) -> Ending | None:
        """One more token; whether it ends the request: (why, the stop token id).

        In this order: an end-of-sequence id, a stop id, the length, a repetition. Before
        `min_tokens` the worker masks the former two.
        """
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)
        is_stuck = self.repetition is not None and self.repetition.push((token_id,)) is not None
        if token_id in self.all_stop_token_ids:
            is_eos = token_id in self.eos_token_ids
            return FinishReason.STOP, None if is_eos else token_id
        if len(self.token_ids) >= self.max_num_tokens:
            return FinishReason.LENGTH, None
        if is_stuck and len(self.token_ids) >= self.min_num_tokens:
            return FinishReason.REPETITION, None
        return None


def check_request(request: EngineRequest, max_model_len: int, max_len: int) -> None:
    """Refuse what can never run.

    Args:
        max_len: most tokens of one request, by the model's length and by the whole pool.

    Raises:
        RequestError: what is wrong with it, and what would do.
    """
    prompt = request.prompt_token_ids
    if (request.sampling_params is None) == (request.pooling_params is None):
        raise RequestError("a request needs either sampling_params or pooling_params")
    if not prompt:
        raise RequestError("the prompt is empty; it needs at least one token", param="prompt")
    low, high = min(prompt), max(prompt)
    if low < 0 or high > _MAX_TOKEN_ID:
        raise RequestError(
            f"token id {shown(low if low < 0 else high)} must be in 0…{_MAX_TOKEN_ID}",
            param="prompt",
        )
    num_more = 0 if request.sampling_params is None else 1
    also = " and one more token" if num_more else ""
    if len(prompt) + num_more > max_model_len:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens; max_model_len={max_model_len} fits one of at "
            f"most {max_model_len - num_more}{also}",
            param="prompt",
        )
    if len(prompt) + num_more > max_len:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens; the KV cache, when empty, fits one of at most "
            f"{max_len - num_more}{also}: shorten it, or give the KV cache more blocks",
            param="prompt",
        )
