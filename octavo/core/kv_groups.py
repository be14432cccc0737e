"""What differs between kinds of KV groups: which blocks a token still reads, and so which prefix
is a cache hit, and which blocks may go.

All groups have blocks of one size, so a request's tables are of one length in all groups; where a
group needs no block any more (or never did), its table holds the null block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo.contracts.kv_spec import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLASpec,
    SlidingWindowSpec,
)
from octavo.core.block_pool import Block, BlockPool
from octavo.errors import ConfigError


class GroupManager(ABC):
    """One KV group."""

    def __init__(self, group_id: int, spec: KVCacheSpec, pool: BlockPool) -> None:
        self.group_id = group_id
        self.block_size = spec.block_size
        self.pool = pool

    @abstractmethod
    def first_needed_block(self, num_tokens: int) -> int:
        """Index of the first block that any token at position `num_tokens` or later reads."""

    @abstractmethod
    def longest_hit(self, block_hashes: Sequence[bytes], num_blocks: int) -> list[Block]:
        """The blocks of the longest cached prefix of at most `num_blocks` blocks, from which the
        next token can go on; the null block where that token needs none."""


class FullAttentionManager(GroupManager):
    """Every token reads all earlier ones (full attention, MLA)."""

    def first_needed_block(self, num_tokens: int) -> int:
        return 0

    def longest_hit(self, block_hashes: Sequence[bytes], num_blocks: int) -> list[Block]:
        hit = []
        for block_hash in block_hashes[:num_blocks]:
            block = self.pool.lookup(self.group_id, block_hash)
            if block is None:
                break
            hit.append(block)
        return hit


class SlidingWindowManager(GroupManager):
    """The token at position p reads positions p - window + 1 … p."""

    def __init__(self, group_id: int, spec: SlidingWindowSpec, pool: BlockPool) -> None:
        super().__init__(group_id, spec, pool)
        self.window = spec.sliding_window

    def first_needed_block(self, num_tokens: int) -> int:
        return max(0, num_tokens - self.window + 1) // self.block_size

    def longest_hit(self, block_hashes: Sequence[bytes], num_blocks: int) -> list[Block]:
        # A prefix ends at a block's end, so its last window - 1 tokens are these blocks, whole.
        num_needed = -(-(self.window - 1) // self.block_size)
        end = start = min(num_blocks, len(block_hashes))
        found: list[Block] = []
        while start > 0 and end - start < num_needed:
            start -= 1
            block = self.pool.lookup(self.group_id, block_hashes[start])
            if block is None:
                end = start
                found = []
            else:
                found.append(block)
        return [self.pool.null_block] * start + found[::-1]


def make_group_managers(config: KVCacheConfig, pool: BlockPool) -> tuple[GroupManager, ...]:
    """A manager for every group.

    Raises:
        ConfigError: a kind of group that has no manager yet, or groups of different block sizes.
    """
    sizes = sorted({group.spec.block_size for group in config.groups})
    if len(sizes) != 1:
        raise ConfigError(f"KV groups must share one block size; these have {sizes}")
    managers: list[GroupManager] = []
    for group_id, group in enumerate(config.groups):
        spec = group.spec
        if isinstance(spec, SlidingWindowSpec):
            managers.append(SlidingWindowManager(group_id, spec, pool))
        elif isinstance(spec, (FullAttentionSpec, MLASpec)):
            managers.append(FullAttentionManager(group_id, spec, pool))
        else:
            raise ConfigError(
                f"KV groups of {type(spec).__name__} are not supported yet; "
                "supported: FullAttentionSpec, SlidingWindowSpec, MLASpec"
            )
    return tuple(managers)


def longest_common_hit(
    managers: Sequence[GroupManager], block_hashes: Sequence[bytes], num_blocks: int
) -> tuple[list[Block], ...]:
    """The longest prefix of at most `num_blocks` blocks that every group has cached.

    A fixpoint: each group in turn cuts the length to what it can serve, until none cuts any more.
    A window group may serve a length and not a shorter one, so one round need not do.

    Returns:
        Per group, the blocks of the prefix: lists of one length.
    """
    hits: list[list[Block]] = [[] for _ in managers]
    length = min(num_blocks, len(block_hashes))
    agreed = 0
    while agreed < len(managers):
        for i, manager in enumerate(managers):
            if agreed == len(managers):
                break
            hits[i] = manager.longest_hit(block_hashes, length)
            agreed = agreed + 1 if len(hits[i]) == length else 1
            length = len(hits[i])
    return tuple(hits)
