"""What a person who watches an engine gets to see: steps, blocks, requests, and why they wait.

The same structs travel from the core to the front end (msgpack) and on to the dashboard (JSON,
where bytes are base64). No tokens and no text are among them. All times are `time.monotonic()`
seconds, the clock of `EngineRequest.arrival_time`.
"""

from __future__ import annotations

import enum

import msgspec

from octavo.contracts.messages import SchedulerStats

MAX_STEPS = 2048
MAX_ENTRIES = 32768
"""Steps that are remembered, and requests in them, all together (some 4 MB; and a `RequestView` of
each request that has ended)."""


class WaitReason(str, enum.Enum):
    """Why a request is not running."""

    PARENT = "parent"  # for the prompt that it shares with another completion (n > 1, beams)
    FEATURE = "feature"  # a feature holds it back: its grammar is being compiled
    PAUSED = "paused"  # the engine is paused, until it is resumed
    PLACES = "places"  # max_num_seqs requests are running
    BLOCKS = "blocks"  # too few KV blocks are free for its tokens
    ORDER = "order"  # requests before it do not fit, and may not be overtaken any more
    TOKENS = "tokens"  # the last step's token budget was spent
    NEXT = "next"  # nothing keeps it: it is in the next step


class StepEntry(msgspec.Struct, array_like=True, gc=False):
    """A request's part of a step; the three counts are all of its tokens.

    Attributes:
        index: of the request, `RequestView.index`.
        num_prefill: of the prompt, or computed again after a preemption.
        num_decode: 1 where the last known token was computed alone, else 0.
        num_drafts: guesses to be verified.
        has_output: whether a token was sampled.
    """

    index: int
    num_prefill: int
    num_decode: int
    num_drafts: int
    has_output: bool


class StepView(msgspec.Struct, array_like=True):
    """One step, when its results were in.

    Attributes:
        planned_at, done_at: when it was scheduled, and settled.
        num_running, num_waiting: requests after it.
        generation_tokens: total since the engine's start.
    """

    step_id: int
    planned_at: float
    done_at: float
    num_running: int
    num_waiting: int
    generation_tokens: int
    entries: list[StepEntry]


class RequestView(msgspec.Struct, kw_only=True):
    """One sequence.

    Attributes:
        index: how many came before it.
        request_id: the engine's; begins with the client's own.
        status: waiting, running, preempted (waits to be computed again) or finished.
        reason: why it waits, where it does.
        max_num_tokens: prompt and output, where `max_tokens` or the model's length ends it.
        num_cached_tokens: of the prompt, from the prefix cache.
        num_blocks: that it holds, in all KV groups.
    """

    index: int
    request_id: str
    status: str
    reason: WaitReason | None = None
    arrival: float
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int
    max_num_tokens: int
    num_cached_tokens: int
    num_blocks: int
    num_preemptions: int
    priority: int


class BlockMap(msgspec.Struct, kw_only=True):
    """The KV pool, block by block, from block 0 (the null block, which nobody gets) on.

    Attributes:
        num_blocks: of the whole pool; the map ends at `core.observe.MAX_SHOWN_BLOCKS`.
        flags: a byte per block: its reference count (127: or more), and 128 if it has a hash, so
            that a prompt can find it.
        owners: a little-endian int32 per block: index of the first request that holds it, or -1.
    """

    num_blocks: int
    flags: bytes
    owners: bytes


class BlockView(msgspec.Struct, kw_only=True):
    """One block.

    Attributes:
        hash_prefix: eight hexadecimal digits; None if it cannot be found by a hash.
        holders: (index of a request, place in its block table) of those that hold it, at most
            `core.observe.MAX_HOLDERS`.
    """

    block_id: int
    ref_cnt: int
    hash_prefix: str | None
    group_id: int
    holders: list[tuple[int, int]]


class EngineView(msgspec.Struct, kw_only=True):
    """What is going on.

    Attributes:
        now: when it was taken.
        steps: since the step that was asked for, as far as they are remembered; the oldest first.
        requests: running, then waiting ones in their order; then ended ones that `steps` name.
        num_hidden_requests: waiting ones that are left out.
        block: the one that was asked for.
    """

    now: float
    stats: SchedulerStats
    steps: list[StepView]
    requests: list[RequestView]
    num_hidden_requests: int
    blocks: BlockMap
    block: BlockView | None = None
