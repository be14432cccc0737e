"""The memory plan: what goes to weights, activations and KV cache, decided before it is taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.config.sections import CacheConfig
from octavo.contracts.kv_spec import (
    KVCacheConfig,
    KVCacheGroup,
    MemoryPlan,
    blocks_per_request,
    longest_request,
)
from octavo.errors import ConfigError, MemoryPlanError

_BYTES_PER_POSITION = 4096
"""More than rope tables and the state of a request take per position, for any model that is known:
two tables of cos and sin for heads of 256 dims are 4 KiB."""
_ALWAYS_PLANNABLE = 2**17

DEFAULT_SHARE = 0.5
"""Of the free memory on a CPU, where `gpu_memory_utilization` is not given: others live there."""


@dataclass(frozen=True, kw_only=True)
class MemoryNeeds:
    """What is known when the plan is made.

    Attributes:
        available: bytes free before the weights were loaded.
        weights, activations: bytes that these take.
        groups: the model's KV groups.
        max_model_len: the user's, or the model's.
        is_max_model_len_given: by the user; otherwise it may be lowered.
        tokens_in_flight: most tokens scheduled and not yet processed.
    """

    available: int
    weights: int
    activations: int
    groups: tuple[KVCacheGroup, ...]
    max_num_seqs: int
    max_model_len: int
    is_max_model_len_given: bool
    tokens_in_flight: int

    @property
    def block_bytes(self) -> int:
        return KVCacheConfig(num_blocks=0, groups=self.groups).block_bytes

    def blocks(self, num_tokens: int) -> int:
        """Blocks that one request of `num_tokens` tokens holds at most."""
        return blocks_per_request(self.groups, num_tokens, num_in_flight=self.tokens_in_flight)


def check_weights_fit(weights: int, available: int) -> None:
    """Refuse before loading what cannot be loaded. Raises MemoryPlanError."""
    if weights > available:
        raise MemoryPlanError(
            f"the model's weights take {human(weights)}, but only {human(available)} are free; "
            "use a smaller model or dtype, or free some memory"
        )


def plannable_length(available: int, max_model_len: int, *, is_given: bool) -> int:
    """The most tokens, at most `max_model_len`, that are worth planning for: what is allocated per
    position before the plan is made (rope tables, for one) must not end the process.

    Raises:
        MemoryPlanError: the user gave `max_model_len`, and it is more.
    """
    length = min(max_model_len, max(_ALWAYS_PLANNABLE, available // _BYTES_PER_POSITION))
    if is_given and length < max_model_len:
        raise MemoryPlanError(
            f"max_model_len={max_model_len} does not fit: the {human(available)} that are free "
            f"hold the tables of at most {length} positions; lower it, or leave it out"
        )
    return length


def plan_memory(needs: MemoryNeeds, cache: CacheConfig) -> MemoryPlan:
    """Size the KV cache.

    Without an explicit size it takes what weights and activations leave of the share of free
    memory, but not more than `max_num_seqs` requests of `max_model_len` can hold. In every case
    one request of `max_model_len` must fit; where the user did not give it, it is lowered.

    Raises:
        ConfigError: two sizes were given.
        MemoryPlanError: it cannot fit; the message says what would.
    """
    if cache.num_gpu_blocks_override is not None and cache.kv_cache_memory_bytes is not None:
        raise ConfigError(
            f"num_gpu_blocks_override={cache.num_gpu_blocks_override} and kv_cache_memory_bytes="
            f"{cache.kv_cache_memory_bytes} both size the KV cache; give one of them"
        )
    num_blocks = _num_blocks(needs, cache)
    max_model_len = needs.max_model_len
    notes: tuple[str, ...] = ()
    # Block 0 is the null block.
    fits = longest_request(
        needs.groups,
        num_blocks - 1,
        max_model_len,
        num_in_flight=needs.tokens_in_flight,
    )
    if fits < max_model_len:
        if needs.is_max_model_len_given or fits == 0:
            raise MemoryPlanError(_does_not_fit(needs, cache, num_blocks, fits))
        notes = (
            f"max_model_len lowered from {max_model_len} to {fits}: "
            f"the {num_blocks - 1} KV blocks that fit hold no longer request",
        )
        max_model_len = fits
    return MemoryPlan(
        available=needs.available,
        weights=needs.weights,
        activations=needs.activations,
        kv_cache=num_blocks * needs.block_bytes,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=needs.max_num_seqs,
        notes=notes,
    )


def _num_blocks(needs: MemoryNeeds, cache: CacheConfig) -> int:
    """Blocks of the pool, the null block included; may be too few."""
    room = _room(needs, cache)
    if cache.num_gpu_blocks_override is not None:
        size = cache.num_gpu_blocks_override * needs.block_bytes
        option = f"num_gpu_blocks_override={cache.num_gpu_blocks_override}"
    elif cache.kv_cache_memory_bytes is not None:
        size = cache.kv_cache_memory_bytes
        option = f"kv_cache_memory_bytes={cache.kv_cache_memory_bytes}"
    else:
        enough = needs.max_num_seqs * needs.blocks(needs.max_model_len) + 1
        return min(max(room, 0) // needs.block_bytes, enough)
    if size > room:
        raise MemoryPlanError(
            f"{option} asks for {human(size)} of KV cache, but {human(max(room, 0))} "
            f"({max(room, 0) // needs.block_bytes} blocks) fit: {_where_it_goes(needs, cache)}"
        )
    return size // needs.block_bytes


def _share(cache: CacheConfig) -> float:
    """Of the free memory. An explicit size is a decision: only what is there limits it."""
    if cache.gpu_memory_utilization is not None:
        return cache.gpu_memory_utilization
    sized = cache.num_gpu_blocks_override or cache.kv_cache_memory_bytes
    return 1.0 if sized else DEFAULT_SHARE


def _room(needs: MemoryNeeds, cache: CacheConfig) -> int:
    """Bytes left for the KV cache; negative where the rest alone does not fit."""
    return int(_share(cache) * needs.available) - needs.weights - needs.activations


def _where_it_goes(needs: MemoryNeeds, cache: CacheConfig) -> str:
    share = _share(cache)
    usable = f", {human(int(share * needs.available))} of them for the engine (share {share:g})"
    return (
        f"{human(needs.available)} are free{usable if share < 1 else ''}; "
        f"weights take {human(needs.weights)}, activations {human(needs.activations)}"
    )


def _does_not_fit(needs: MemoryNeeds, cache: CacheConfig, num_blocks: int, fits: int) -> str:
    blocks = needs.blocks(needs.max_model_len) + 1
    size = blocks * needs.block_bytes
    remedies = [f"lower max_model_len to at most {fits}"] if fits else []
    total = size + needs.weights + needs.activations
    if cache.num_gpu_blocks_override is not None:
        remedies.append(f"raise num_gpu_blocks_override to at least {blocks}")
    elif cache.kv_cache_memory_bytes is not None:
        remedies.append(f"raise kv_cache_memory_bytes to at least {size}")
    elif total <= needs.available:
        share = math.ceil(total / needs.available * 100) / 100
        remedies.append(f"raise gpu_memory_utilization to at least {share:g}")
    if not remedies:
        remedies.append("lower max_num_batched_tokens or max_num_seqs, or use a smaller model")
    return (
        f"max_model_len={needs.max_model_len} needs {blocks} KV blocks ({human(size)}) for one "
        f"request, but {num_blocks} ({human(num_blocks * needs.block_bytes)}) fit: "
        f"{_where_it_goes(needs, cache)}. To make it fit, {' or '.join(remedies)}"
    )


def format_plan(plan: MemoryPlan) -> str:
    """The plan as a small table, for printing."""
    rest = plan.available - plan.weights - plan.activations - plan.kv_cache
    rows = [
        ("free at start", plan.available, ""),
        ("weights", plan.weights, ""),
        ("activations", plan.activations, ""),
        ("KV cache", plan.kv_cache, f"{plan.num_blocks} blocks"),
        ("left", rest, ""),
    ]
    lines = ["memory plan"]
    lines += [f"  {name:<14}{human(size):>11}  {text}".rstrip() for name, size, text in rows]
    lines.append(f"  max_num_seqs {plan.max_num_seqs}, max_model_len {plan.max_model_len}")
    lines += [f"  note: {note}" for note in plan.notes]
    return "\n".join(lines)


def human(num_bytes: int) -> str:
    """Bytes for people: 1536 → "1.5 KiB"."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
