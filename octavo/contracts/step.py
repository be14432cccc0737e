"""The step contract: all that scheduler and workers say to each other.

The scheduler sends a request whole once (`NewRequestData`), then only diffs: new block ids and
counts (`CachedRequestData`). A preempted request is dropped by the worker and comes back whole. The
worker keeps each request's tokens, the last sampled one included, so that the next step can be
scheduled before the scheduler knows it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from octavo.contracts.kv_spec import BlockCopy
from octavo.contracts.messages import LogprobRows, Thinking
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams

BlockIds = tuple[list[int], ...]
"""Block ids per KV group, in order of position."""


class NewRequestData(msgspec.Struct, kw_only=True):
    """A request as the worker first (or again, after a preemption) meets it.

    Attributes:
        token_ids: prompt, then the output tokens known so far (after a preemption).
        num_prompt_tokens: how many of them are prompt.
        block_ids: per KV group, all blocks it has.
        num_computed_tokens: tokens whose KV is already in those blocks.
        stop_ids: ids to mask while fewer than `min_tokens` are out.
        bad_words_token_ids, thinking: see `EngineRequest`.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: BlockIds
    num_computed_tokens: int
    sampling_params: SamplingParams | None = None
    pooling_params: PoolingParams | None = None
    sample_index: int = 0
    stop_ids: list[int] = []
    bad_words_token_ids: list[list[int]] = []
    thinking: Thinking | None = None
    lora_name: str | None = None
    extras: dict[str, Any] = {}


class CachedRequestData(msgspec.Struct, kw_only=True):
    """Diffs of requests the worker knows.

    Attributes:
        num_computed_tokens: of each of `request_ids`, as of the start of this step.
        new_block_ids: request id → ids appended to its tables, where there are any.
    """

    request_ids: list[str] = []
    num_computed_tokens: list[int] = []
    new_block_ids: dict[str, BlockIds] = {}


class SchedulerOutput(msgspec.Struct, kw_only=True):
    """One step.

    Attributes:
        step_id: counts from 0.
        num_scheduled_tokens: request id → tokens to compute now (drafts included); its order is
            the batch's order.
        scheduled_drafts: request id → draft token ids at the end of its scheduled tokens.
        scheduled_encoder_inputs: request id → which of its inputs to encode now; empty until there
            are images.
        samples: ids of the requests whose last scheduled token is their last known one: they get
            a token sampled in this step.
        finished_request_ids: ended since the last step; each id is sent once. A worker may not
            hold it (any more).
        preempted_request_ids: to be dropped; they come back as new. These and the finished ones go
            before the new ones come: an id that ended may be that of a new request.
        block_copies: done before the forward, in order.
        blocks_to_clear: pages to zero before the forward (groups whose kernels need it).
        grammar_request_ids: requests whose sampling needs a token mask.
        extras: per-feature step data, keyed by feature.
    """

    step_id: int
    new_requests: list[NewRequestData] = []
    cached_requests: CachedRequestData = msgspec.field(default_factory=CachedRequestData)
    num_scheduled_tokens: dict[str, int] = {}
    total_num_scheduled_tokens: int = 0
    scheduled_drafts: dict[str, list[int]] = {}
    scheduled_encoder_inputs: dict[str, list[int]] = {}
    samples: list[str] = []
    finished_request_ids: list[str] = []
    preempted_request_ids: list[str] = []
    block_copies: list[BlockCopy] = []
    blocks_to_clear: list[int] = []
    grammar_request_ids: list[str] = []
    extras: dict[str, Any] = {}


class GrammarOutput(msgspec.Struct, kw_only=True):
    """Token masks for sampling.

    Attributes:
        request_ids: in the order of the step's `samples`.
        bitmask: [n, ceil(vocab / 32)] int32, 1 allows; the logits rows of the first request (one
            per draft and one more), then those of the next.
    """

    request_ids: list[str]
    bitmask: np.ndarray


class RunnerOutput(msgspec.Struct, kw_only=True):
    """What a step brought; the lists run in parallel, one entry per scheduled request.

    Attributes:
        sampled_token_ids: ragged; empty where nothing was to be sampled.
        logprobs: request id → rows for its sampled tokens.
        prompt_logprobs: request id → rows for the prompt tokens computed in this step: row i is
            about the token that follows the i-th of them, as long as it is one of the prompt.
        pooler_outputs: request id → vector.
        errors: request id → why this request alone failed.
        error_params: request id → its field that is at fault, where the request contradicts itself;
            what it computed is sound.
        forward_seconds: that the forward took.
        extras: per-feature results, keyed by feature.
    """

    step_id: int
    request_ids: list[str] = []
    sampled_token_ids: list[list[int]] = []
    logprobs: dict[str, LogprobRows] = {}
    prompt_logprobs: dict[str, LogprobRows] = {}
    pooler_outputs: dict[str, np.ndarray] = {}
    errors: dict[str, str] = {}
    error_params: dict[str, str] = {}
    forward_seconds: float = 0.0
    extras: dict[str, Any] = {}
