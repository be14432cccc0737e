"""The pool of KV blocks: who holds which, which are free, and which free ones are still worth
something.

A block without holders is in the free queue. It may keep its hash there, and so be found again,
until it is handed out: eviction is nothing but dropping the hash at that moment. The queue is a
doubly linked list through the blocks themselves, so that a block found by its hash leaves it in
O(1). It is handed out from the front: first blocks that nobody can find again, then the least
recently used of those that can be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from octavo.contracts.kv_spec import NULL_BLOCK_ID
from octavo.core.block_times import BlockSampler


class Block:
    """One block of the pool.

    Attributes:
        ref_cnt: block tables (and pending copies) that hold it.
        block_hash: what it can be found by, in `group_id`; None if it cannot.
        generation: grows whenever it is handed out anew: whoever remembers a block that it does
            not hold can tell whether the content is still the one it remembers.
    """

    __slots__ = (
        "block_hash",
        "block_id",
        "generation",
        "group_id",
        "next_free",
        "next_same",
        "prev_free",
        "prev_same",
        "ref_cnt",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.group_id = 0
        self.generation = 0
        self.prev_free: Block | None = None
        self.next_free: Block | None = None
        self.prev_same: Block | None = None
        self.next_same: Block | None = None

    @property
    def is_null(self) -> bool:
        return self.block_id == NULL_BLOCK_ID

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_cnt={self.ref_cnt}, hashed={bool(self.block_hash)})"


class FreeQueue:
    """Blocks without holders, linked through `prev_free` and `next_free`."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self._size = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Block]:
        """From the next one handed out to the last."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: Block) -> None:
        """Put a block at the back: it is handed out last."""
        self._insert(block, after=self._tail.prev_free)

    def prepend_all(self, blocks: Iterable[Block]) -> None:
        """Put blocks at the front; the first of them is handed out first."""
        at: Block | None = self._head
        for block in blocks:
            self._insert(block, after=at)
            at = block

    def popleft(self) -> Block:
        """Take the front block; there must be one."""
        block = self._head.next_free
        if block is None or block is self._tail:
            raise IndexError("the free queue is empty")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Take a block out, wherever it is."""
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise ValueError(f"{block} is not in the free queue")
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self._size -= 1

    def _insert(self, block: Block, after: Block | None) -> None:
        if after is None or after.next_free is None or block.next_free is not None:
            raise ValueError(f"{block} is in the free queue already")
        following = after.next_free
        after.next_free = block
        block.prev_free = after
        block.next_free = following
        following.prev_free = block
        self._size += 1


class BlockPool:
    """All blocks, shared by all KV groups. Block 0 is the null block: never handed out.

    A hash may belong to several blocks of a group at once (two requests computed the same tokens
    side by side; tables are append-only, so neither changes). They are linked through `prev_same`
    and `next_same`. Only while held: freeing one of several drops its hash, as one copy is enough.

    Args:
        num_blocks: the null block included, at least 2.
        num_groups: KV groups, each with a name space of hashes of its own.

    Attributes:
        sampler: watches how long contents of some blocks are kept, for the metrics.
    """

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.sampler = BlockSampler()
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self._free = FreeQueue(self.blocks[1:])
        self._by_hash: list[dict[bytes, Block]] = [{} for _ in range(num_groups)]
        self._num_cached = 0
        self._hashed: list[Block] = []

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can be held: all but the null block."""
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks without holders, cached ones included."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        return self.num_usable_blocks - len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks without holders that keep a hash."""
        return self._num_cached

    def get_new_blocks(self, count: int) -> list[Block]:
        """Hand out `count` blocks, which must be free. What they held is forgotten."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} are free")
        taken = []
        for _ in range(count):
            block = self._free.popleft()
            if block.block_hash is not None:
                self._num_cached -= 1
                self.sampler.evicted(block.block_id)
                self._forget_hash(block)
            block.ref_cnt = 1
            block.generation += 1
            taken.append(block)
        return taken

    def touch(self, block: Block) -> None:
        """One more holder; a free block leaves the queue with its content."""
        if block.ref_cnt == 0:
            self._free.remove(block)
            if block.block_hash is not None:
                self._num_cached -= 1
        block.ref_cnt += 1

    def free(self, blocks: Iterable[Block], *, keeps_unhashed: bool = False) -> None:
        """One holder less for each of `blocks`, given in the order in which they may be lost:
        the tail of a table before its head.

        Args:
            keeps_unhashed: whether blocks without a hash, which are else the first to be handed
                out anew, may be wanted again as those with one.
        """
        worthless = []
        for block in blocks:
            if block.ref_cnt <= 0:
                raise ValueError(f"{block} is freed more often than it was taken")
            block.ref_cnt -= 1
            if block.ref_cnt:
                continue
            if block.prev_same is not None or block.next_same is not None:
                self._forget_hash(block)
            if block.block_hash is not None:
                self._free.append(block)
                self._num_cached += 1
                self.sampler.freed(block.block_id)
            elif keeps_unhashed:
                self._free.append(block)
            else:
                worthless.append(block)
        self._free.prepend_all(worthless)

    # ---------------------------------------------------------------- hashes

    def lookup(self, group_id: int, block_hash: bytes) -> Block | None:
        """The oldest block of the group with this hash."""
        return self._by_hash[group_id].get(block_hash)

    def cache(self, block: Block, group_id: int, block_hash: bytes) -> None:
        """Let a held block be found by its hash."""
        if block.block_hash is not None or block.ref_cnt == 0:
            raise ValueError(f"{block} cannot take a hash")
        block.block_hash = block_hash
        block.group_id = group_id
        first = self._by_hash[group_id].setdefault(block_hash, block)
        if first is not block:
            second = first.next_same
            first.next_same = block
            block.prev_same = first
            block.next_same = second
            if second is not None:
                second.prev_same = block
        self._hashed.append(block)
        self.sampler.cached(block.block_id)

    def drop_hash(self, block: Block) -> None:
        """Let a block not be found any more. Nothing happens if it has no hash."""
        if block.block_hash is not None:
            if block.ref_cnt == 0:
                self._num_cached -= 1
            self._forget_hash(block)

    def take_hashed(self) -> list[Block]:
        """The blocks that got a hash since the last call."""
        taken, self._hashed = self._hashed, []
        return taken

    def reset_hashes(self) -> None:
        """Forget every hash."""
        for block in self.blocks:
            self.drop_hash(block)

    def _forget_hash(self, block: Block) -> None:
        before, after = block.prev_same, block.next_same
        if before is not None:
            before.next_same = after
        elif block.block_hash is not None:
            by_hash = self._by_hash[block.group_id]
            if after is not None:
                by_hash[block.block_hash] = after
            else:
                del by_hash[block.block_hash]
        if after is not None:
            after.prev_same = before
        block.block_hash = block.prev_same = block.next_same = None
        self.sampler.forgotten(block.block_id)

    # ---------------------------------------------------------------- checking

    def check_integrity(self, holders: Mapping[int, int]) -> None:
        """Raise AssertionError unless queue, counts and hash map agree.

        Args:
            holders: block id → how many tables hold it; absent means none.
        """
        free = list(self._free)
        in_queue = {block.block_id for block in free}
        _require(len(free) == len(self._free), "the free queue has lost count")
        _require(len(in_queue) == len(free), "a block is in the free queue twice")
        _require(not self.null_block.ref_cnt, "the null block is held")
        _require(NULL_BLOCK_ID not in in_queue, "the null block is free")
        held = {block.block_id: block.ref_cnt for block in self.blocks if block.ref_cnt}
        if held != holders:
            wrong = min(i for i, _ in held.items() ^ holders.items())
            _require(False, f"{self.blocks[wrong]} is in {holders.get(wrong, 0)} tables")
        _require(in_queue.isdisjoint(held), "a held block is in the free queue")
        _require(len(in_queue) + len(held) == self.num_usable_blocks, "a free block is in no queue")
        num_cached = len([None for block in free if block.block_hash is not None])
        _require(num_cached == self._num_cached, "the cached blocks are miscounted")
        self._check_hash_map()

    def _check_hash_map(self) -> None:
        linked = set()
        for group_id, by_hash in enumerate(self._by_hash):
            for block_hash, first in by_hash.items():
                _require(first.prev_same is None, "a block is not the first of its hash")
                at: Block | None = first
                while at is not None:
                    _require(at.block_hash == block_hash, "a block is under a wrong hash")
                    _require(at.group_id == group_id, "a block is in a wrong group")
                    _require(at.next_same is None or at.next_same.prev_same is at, "links")
                    linked.add(at.block_id)
                    at = at.next_same
        hashed = {block.block_id for block in self.blocks if block.block_hash is not None}
        _require(linked == hashed, "not all blocks with a hash can be found by it")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
