"""Which blocks a request holds: prefix hits, forks, allocation, windows, freeing.

When is a freed block safe to hand out, with steps in flight that still use it (invariant 10)?
At once, because workers run steps one after the other, each as: clears and copies, then the
forward. Say steps up to k have been scheduled and a block is freed now. Its next owner appears in
step k+1 at the earliest. All reads and writes by its last owner are in steps ≤ k: that owner is in
no later step, or its window has left the block behind for every token not processed yet. Copies out
of the block are in steps ≤ k as well. So all is over before step k+1 touches it. For the same
reason a block may be shared while the step that fills it is in flight. Two things would break this,
and are excluded:
  * Within a step, copies run before the forward. So the source of a copy is held until the step
    is built: it cannot become the target of another copy, or be filled, in that same step.
  * Reads that outlive their step (a connector that saves KV in the background). The hook that
    starts them either delays the freeing (`on_finish`) or waits for them in its worker half before
    the forward of the step that names the request as preempted.

A block of known tokens gets its hash when it is allocated, before the step that fills it has run,
so that a request admitted later in the same step shares it. Within every layer a step stores all
its KV before it attends, and the request that fills a block never waits for its sharers. Should
that step fail, the scheduler drops the hashes and restarts the sharers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from octavo.contracts.kv_spec import (
    BlockCopy,
    KVCacheConfig,
    blocks_per_request,
    longest_request,
)
from octavo.contracts.step import BlockIds
from octavo.core.block_hash import BlockHasher
from octavo.core.block_pool import Block, BlockPool
from octavo.core.kv_groups import longest_common_hit, make_group_managers
from octavo.core.request import BlockTable, ForkSource, Request


@dataclass(frozen=True, slots=True)
class Prefix:
    """Computed tokens that a request can begin with. Nothing is held yet.

    Attributes:
        blocks: per KV group, blocks to share, all full; null where none is needed.
        num_tokens: tokens they stand for, those in `copy_from` included.
        copy_from: per KV group, the block that holds the last tokens, which do not fill one: it is
            to be copied. Empty where the tokens end with a block.
        is_fork: whether it comes from another request, not from the prefix cache.
    """

    blocks: tuple[BlockTable, ...]
    num_tokens: int = 0
    copy_from: tuple[Block, ...] = ()
    is_fork: bool = False


class KVCacheManager:
    """The KV cache as the scheduler sees it.

    Args:
        hasher: computes block hashes; None turns prefix caching off.
        max_in_flight_tokens: most tokens of one request scheduled and not processed at once.

    Raises:
        ConfigError: a kind of KV group that is not supported.
    """

    def __init__(
        self, config: KVCacheConfig, *, hasher: BlockHasher | None, max_in_flight_tokens: int
    ) -> None:
        self.pool = BlockPool(config.num_blocks, len(config.groups))
        self._specs = config.groups
        self.groups = make_group_managers(config, self.pool)
        self.block_size = self.groups[0].block_size
        self._hasher = hasher
        self._max_in_flight = max_in_flight_tokens
        self._copies: list[tuple[Block, Block]] = []
        self._no_prefix = Prefix(tuple([] for _ in self.groups))

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free_blocks

    # ---------------------------------------------------------------- how much fits

    def max_blocks(self, num_tokens: int) -> int:
        """Most blocks, over all groups, that a request of `num_tokens` tokens holds at once."""
        return blocks_per_request(self._specs, num_tokens, num_in_flight=self._max_in_flight)

    def longest_request(self, limit: int) -> int:
        """The most tokens, up to `limit`, of a request that the whole pool can hold."""
        num_blocks = self.pool.num_usable_blocks
        return longest_request(self._specs, num_blocks, limit, num_in_flight=self._max_in_flight)

    def num_missing_blocks(self, request: Request) -> int:
        """Blocks that a running request may still take for the tokens it knows."""
        null = self.pool.null_block
        held = sum(len(table) - table.count(null) for table in request.block_tables)
        return max(0, self.max_blocks(request.num_tokens) - held)

    def num_to_free(
        self, requests: Sequence[Request], num_blocks: int, *, without: Prefix
    ) -> int | None:
        """How many of these requests, from the front, must lose their blocks so that `num_blocks`
        become free, those of a prefix apart; None if all of them have too few. The blocks are
        counted one by one only as far as is needed."""
        num_held = sum(len(table) for request in requests for table in request.block_tables)
        if num_held < num_blocks:
            return None
        needed = set(chain(*without.blocks))
        holds: Counter[Block] = Counter()  # of shared blocks
        num_freed = 0
        for count, request in enumerate(requests, start=1):
            for block in chain(*request.block_tables):
                if block.is_null or block in needed:
                    continue
                if block.ref_cnt > 1:
                    holds[block] += 1
                    if holds[block] < block.ref_cnt:
                        continue
                num_freed += 1
            if num_freed >= num_blocks:
                return count
        return None

    def num_blocks_to_admit(self, request: Request, prefix: Prefix) -> int:
        """Free blocks that a waiting request takes for all tokens it knows, beginning with
        `prefix`. Never more than `max_blocks` of them, but for the source of a copy."""
        needed = self.max_blocks(request.num_tokens)
        for table in prefix.blocks:
            needed -= sum(1 for block in table if block.ref_cnt)
        return needed + sum(1 for block in prefix.copy_from if not block.ref_cnt)

    # ---------------------------------------------------------------- where a request can begin

    def get_computed_blocks(self, request: Request) -> Prefix:
        """The longest cached prefix of its known tokens, in whole blocks; at least one token is
        left to compute, because only a computed token has logits."""
        if self._hasher is None or request.skips_prefix_cache:
            return self._no_prefix
        self._hasher.extend(request)
        limit = (request.num_tokens - 1) // self.block_size
        blocks = longest_common_hit(self.groups, request.block_hashes, limit)
        return Prefix(blocks, len(blocks[0]) * self.block_size)

    def fork(self, parent: Request, num_tokens: int) -> Prefix | None:
        """The parent's first `num_tokens` tokens as the beginning of another request: full blocks
        to share, the partly filled one to copy.

        The parent runs and has computed them in an earlier step, or it left a `fork_source`.
        None where blocks are gone: handed out anew, or slid out of the parent's window.
        """
        source = parent.fork_source
        if source is not None and not source.is_intact:
            return None
        tables = parent.block_tables if source is None else source.blocks
        num_full, num_rest = divmod(num_tokens, self.block_size)
        shared, copy_from = [], []
        for group, table in zip(self.groups, tables):
            first = group.first_needed_block(num_tokens)
            needed = table[first : num_full + bool(num_rest)]
            if any(block.is_null for block in needed):
                return None
            shared.append([self.pool.null_block] * min(first, num_full) + table[first:num_full])
            if num_rest:
                copy_from.append(table[num_full])
        return Prefix(tuple(shared), num_tokens, tuple(copy_from), is_fork=True)

    def fork_source_of(self, request: Request, num_tokens: int) -> ForkSource:
        """What a request that is about to be freed leaves to those that wait to fork its first
        `num_tokens` tokens."""
        num_blocks = -(-num_tokens // self.block_size)
        tables = tuple(table[:num_blocks] for table in request.block_tables)
        return ForkSource(tables, tuple([b.generation for b in table] for table in tables))

    # ---------------------------------------------------------------- taking and giving back

    def allocate_slots(
        self, request: Request, num_new_tokens: int, prefix: Prefix | None = None
    ) -> BlockIds | None:
        """Take the blocks for `num_new_tokens` more tokens, all of them or none. Nothing is to be
        done, and the call may be saved, up to `request.num_roomy_tokens` tokens.

        Args:
            prefix: for a request that holds no blocks, what it begins with.

        Returns:
            The ids appended to its tables, the prefix's included; None if not enough are free.
        """
        if prefix is None:
            self._free_out_of_window(request)
            start, tables = request.num_computed_tokens, request.block_tables
        else:
            start, tables = prefix.num_tokens, prefix.blocks
        num_blocks = -(-(start + num_new_tokens) // self.block_size)
        num_new = max(0, num_blocks - len(tables[0]))
        num_taken = num_new * len(self.groups)
        if prefix is not None:
            num_taken += self._num_revived(prefix)
        if num_taken > self.pool.num_free_blocks:
            return None
        if prefix is not None:
            self._begin_with(request, prefix)
        new_ids: list[list[int]] = []
        for table in request.block_tables:
            known = 0 if prefix is not None else len(table)
            table += self.pool.get_new_blocks(num_new)
            new_ids.append([block.block_id for block in table[known:]])
        if prefix is not None:
            for source, table in zip(prefix.copy_from, request.block_tables):
                self._copies.append((source, table[prefix.num_tokens // self.block_size]))
        self.cache_blocks(request, min(start + num_new_tokens, request.num_tokens))
        request.num_roomy_tokens = self.block_size * len(request.block_tables[0])
        if self._hasher is not None and request.num_cached_blocks < len(request.block_tables[0]):
            request.num_roomy_tokens = self.block_size * (request.num_cached_blocks + 1) - 1
        return tuple(new_ids)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Give the full blocks of its first `num_tokens` tokens their hash. These must be known
        (never drafts), and computed, or scheduled in the step being built."""
        num_full = num_tokens // self.block_size
        if num_full > request.num_cached_blocks and self._hasher is not None:
            self._hasher.extend(request)
            for group_id, table in enumerate(request.block_tables):
                for i in range(request.num_cached_blocks, num_full):
                    if not table[i].is_null and table[i].block_hash is None:
                        self.pool.cache(table[i], group_id, request.block_hashes[i])
            request.num_cached_blocks = num_full

    def free(self, request: Request) -> None:
        """Give back all its blocks, tail before head. They can still be found by their hash, and
        those of a fork source by those who fork it."""
        is_source = request.fork_source is not None
        for table in request.block_tables:
            blocks = (block for block in reversed(table) if not block.is_null)
            self.pool.free(blocks, keeps_unhashed=is_source)
            table.clear()
        request.num_cached_blocks = request.num_roomy_tokens = 0

    def take_block_copies(self) -> list[BlockCopy]:
        """The copies of the step being built, in order; their sources are held no longer."""
        if not self._copies:
            return []
        copies = [BlockCopy(src=src.block_id, dst=dst.block_id) for src, dst in self._copies]
        self.pool.free(src for src, _ in self._copies)
        self._copies.clear()
        return copies

    def reset_prefix_cache(self) -> bool:
        """Forget all hashes; False, and nothing done, while any block is held."""
        if self.pool.num_used_blocks:
            return False
        self.pool.reset_hashes()
        return True

    # ---------------------------------------------------------------- inside

    def _num_revived(self, prefix: Prefix) -> int:
        """Blocks of a prefix that are free now."""
        shared = sum(1 for t in prefix.blocks for b in t if not b.is_null and not b.ref_cnt)
        return shared + sum(1 for block in prefix.copy_from if not block.ref_cnt)

    def _begin_with(self, request: Request, prefix: Prefix) -> None:
        for table, shared in zip(request.block_tables, prefix.blocks):
            for block in shared:
                if not block.is_null:
                    self.pool.touch(block)
                    if not prefix.is_fork:  # the n sequences of a request have one prompt
                        self.pool.sampler.used(block.block_id)
            table += shared
        for source in prefix.copy_from:
            self.pool.touch(source)  # until `take_block_copies`
        request.num_cached_blocks = len(prefix.blocks[0])

    def _free_out_of_window(self, request: Request) -> None:
        """Null the blocks that no token will read any more. By processed tokens: those in flight
        still read theirs, and drafts among them may be taken back."""
        for group, table in zip(self.groups, request.block_tables):
            end = min(group.first_needed_block(request.num_processed_tokens), len(table))
            gone = []
            for i in range(end - 1, -1, -1):
                if table[i].is_null:
                    break
                gone.append(table[i])
                table[i] = self.pool.null_block
            self.pool.free(gone)
