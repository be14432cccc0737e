"""What a model's layers keep per token, and how that becomes one pool of blocks.

A *page* is one block of one layer. Layers with the same spec form a *group*; each group has its
own block table per request. All groups draw block ids from one pool: block id b of a group owns
page b of tensors 0 … len(layers)-1, layer i of the group using tensor i. So groups have the same
number of layers and the same page size (the planner in `worker` splits or pads them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.contracts.tensor import DType

BLOCK_SIZE = 16
NULL_BLOCK_ID = 0
"""Reserved: stands in block tables for blocks that slid out of a window. Never written or read."""


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """What one layer keeps. Specs that compare equal share a group."""

    block_size: int = BLOCK_SIZE

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer."""
        raise NotImplementedError

    def max_blocks(self, num_tokens: int, num_in_flight: int) -> int:
        """Most blocks that a request holds at once on its way to `num_tokens` tokens, of which at
        most `num_in_flight` are scheduled and not processed."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    """Keys and values of every earlier token."""

    num_kv_heads: int
    head_size: int
    head_size_v: int
    dtype: DType

    @property
    def page_bytes(self) -> int:
        per_token = self.num_kv_heads * (self.head_size + self.head_size_v)
        return self.block_size * per_token * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class SlidingWindowSpec(FullAttentionSpec):
    """Keys and values of the last `sliding_window` tokens, the current one included.

    A token at position p attends to positions p - sliding_window + 1 … p.
    """

    sliding_window: int

    def max_blocks(self, num_tokens: int, num_in_flight: int) -> int:
        # Old blocks are freed by processed tokens, so those in flight come on top of the window.
        held = self.sliding_window - 1 + num_in_flight
        # One more: a window need not begin at a block's first token.
        in_window = -(-held // self.block_size) + 1
        return min(-(-num_tokens // self.block_size), in_window)


@dataclass(frozen=True, kw_only=True)
class MLASpec(KVCacheSpec):
    """One latent vector per token (multi-head latent attention), kept for every earlier token."""

    latent_size: int
    dtype: DType

    @property
    def page_bytes(self) -> int:
        return self.block_size * self.latent_size * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    """A recurrent state per request, not per token: one block holds it all."""

    state_bytes: int

    @property
    def page_bytes(self) -> int:
        return self.state_bytes

    def max_blocks(self, num_tokens: int, num_in_flight: int) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class KVCacheGroup:
    """Layers that share a block table. `layer_names[i]` uses tensor i of the pool."""

    layer_names: tuple[str, ...]
    spec: KVCacheSpec


def blocks_per_request(
    groups: Sequence[KVCacheGroup], num_tokens: int, *, num_in_flight: int
) -> int:
    """Most blocks, over all groups, that a request of `num_tokens` tokens holds at once.

    Args:
        num_in_flight: most tokens that are scheduled and not yet processed.
    """
    return sum(group.spec.max_blocks(num_tokens, num_in_flight) for group in groups)


def longest_request(
    groups: Sequence[KVCacheGroup], num_blocks: int, limit: int, *, num_in_flight: int
) -> int:
    """The most tokens, at most `limit`, of a request that `num_blocks` blocks can hold; 0: none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_per_request(groups, middle, num_in_flight=num_in_flight) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, kw_only=True)
class KVCacheConfig:
    """The pool as planned.

    Attributes:
        num_blocks: blocks in the pool, the null block included.
        groups: at least one; all with the same page size and number of layers (the last padded).
    """

    num_blocks: int
    groups: tuple[KVCacheGroup, ...]

    @property
    def num_tensors(self) -> int:
        return max(len(g.layer_names) for g in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes that one block id stands for, over all tensors."""
        return self.num_tensors * max(g.spec.page_bytes for g in self.groups)

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


@dataclass(frozen=True, kw_only=True)
class BlockCopy:
    """Copy page `src` to page `dst` in every tensor, before the step's forward."""

    src: int
    dst: int


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Where the memory goes, in bytes: printed at start, and the reason given when it does not fit.

    `available` is what cgroup and machine had free when planning began (before weights).
    """

    available: int
    weights: int
    activations: int
    kv_cache: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    notes: tuple[str, ...] = field(default_factory=tuple)
