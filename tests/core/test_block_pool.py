from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.block_pool import Block, BlockPool
from octavo.core.block_times import SAMPLE_EVERY, BlockSampler


def ids(blocks: list[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def hold(pool: BlockPool, *names: bytes) -> list[Block]:
    """Blocks with these hashes; b"" for none."""
    blocks = pool.get_new_blocks(len(names))
    for block, name in zip(blocks, names):
        if name:
            pool.cache(block, 0, name)
    return blocks


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(5, 1)
    assert pool.num_usable_blocks == pool.num_free_blocks == 4
    assert ids(pool.get_new_blocks(4)) == [1, 2, 3, 4]
    assert pool.null_block.is_null
    with pytest.raises(ValueError, match="1 blocks wanted, 0 are free"):
        pool.get_new_blocks(1)


def test_blocks_nobody_can_find_go_first_then_the_least_recently_used() -> None:
    pool = BlockPool(7, 1)
    a, b, c, d = hold(pool, b"a", b"b", b"", b"")
    pool.free([b, a])  # tail before head
    pool.free([d, c])
    assert pool.num_cached_blocks == 2
    # d and c are worthless; 5 and 6 were never used; a is the head: lost last.
    assert ids(pool.get_new_blocks(6)) == [*ids([d, c]), 5, 6, *ids([b, a])]


def test_a_hit_leaves_the_queue_wherever_it_is() -> None:
    pool = BlockPool(5, 1)
    a, b, c = hold(pool, b"a", b"b", b"c")
    pool.free([c, b, a])
    found = pool.lookup(0, b"b")
    assert found is b
    pool.touch(b)
    pool.touch(b)
    assert (b.ref_cnt, pool.num_free_blocks, pool.num_cached_blocks) == (2, 3, 2)
    pool.check_integrity({b.block_id: 2})
    pool.free([b, b])
    assert ids(pool.get_new_blocks(4)) == [4, *ids([c, a, b])]


def test_times_of_sampled_blocks() -> None:
    clock = iter(range(0, 1000, 10)).__next__
    pool = BlockPool(2 + SAMPLE_EVERY, 1)
    pool.sampler = BlockSampler(clock)
    names = [b"%d" % i for i in range(pool.num_usable_blocks)]
    blocks = hold(pool, *names)  # 0: ids 1 and 1 + SAMPLE_EVERY are watched: 0, 10
    pool.free(blocks)  # 20, 30
    for block in blocks[:2]:  # the second one is not watched
        pool.touch(block)
        pool.sampler.used(block.block_id)  # 40
    pool.free(blocks[:2])  # 50
    times = pool.sampler.take()
    assert times is not None
    assert (times.lifetimes, times.idle, times.reuse_gaps) == ([], [], [40])
    assert pool.sampler.take() is None
    pool.get_new_blocks(pool.num_usable_blocks)  # 60: the last one goes first; 70
    times = pool.sampler.take()
    assert times is not None
    assert (times.lifetimes, times.idle, times.reuse_gaps) == ([50, 70], [30, 20], [])


def test_a_dropped_hash_is_no_eviction() -> None:
    pool = BlockPool(3, 1)
    blocks = hold(pool, b"a", b"b")
    pool.free(blocks)
    pool.reset_hashes()
    new = hold(pool, b"c", b"d")
    assert pool.sampler.take() is None
    pool.drop_hash(new[0])
    pool.sampler.used(new[0].block_id)
    assert pool.sampler.take() is None, "what was there is not watched any more"


def test_eviction_is_dropping_the_hash_at_hand_out() -> None:
    pool = BlockPool(3, 1)
    a, b = hold(pool, b"a", b"b")
    pool.free([b, a])
    generation = b.generation
    assert pool.lookup(0, b"b") is b
    assert pool.get_new_blocks(1) == [b]
    assert pool.lookup(0, b"b") is None
    assert pool.lookup(0, b"a") is a
    assert b.generation == generation + 1
    assert pool.num_cached_blocks == 1


def test_groups_have_name_spaces_of_their_own() -> None:
    pool = BlockPool(4, 2)
    a, b = pool.get_new_blocks(2)
    pool.cache(a, 0, b"x")
    pool.cache(b, 1, b"x")
    assert (pool.lookup(0, b"x"), pool.lookup(1, b"x")) == (a, b)


def test_equal_blocks_are_kept_side_by_side_while_held_and_once_when_free() -> None:
    pool = BlockPool(6, 1)
    a, b, c = hold(pool, b"x", b"x", b"x")
    pool.check_integrity(dict.fromkeys(ids([a, b, c]), 1))
    pool.free([a])
    assert a.block_hash is None
    assert pool.num_cached_blocks == 0
    pool.check_integrity(dict.fromkeys(ids([b, c]), 1))
    pool.free([c])
    assert pool.lookup(0, b"x") is b
    pool.free([b])
    assert pool.lookup(0, b"x") is b
    assert pool.num_cached_blocks == 1
    pool.check_integrity({})


def test_dropped_and_reset_hashes() -> None:
    pool = BlockPool(5, 1)
    a, b, c = hold(pool, b"a", b"b", b"c")
    pool.free([b])
    pool.drop_hash(b)
    pool.drop_hash(b)
    assert pool.num_cached_blocks == 0
    assert pool.take_hashed() == [a, b, c]
    assert pool.take_hashed() == []
    pool.reset_hashes()
    assert pool.lookup(0, b"a") is pool.lookup(0, b"c") is None
    pool.check_integrity(dict.fromkeys(ids([a, c]), 1))


def test_misuse_is_noticed() -> None:
    pool = BlockPool(4, 1)
    (a,) = hold(pool, b"a")
    with pytest.raises(ValueError, match="cannot take a hash"):
        pool.cache(a, 0, b"other")
    pool.free([a])
    with pytest.raises(ValueError, match="freed more often"):
        pool.free([a])
    with pytest.raises(ValueError, match="cannot take a hash"):
        pool.cache(pool.blocks[2], 0, b"free")


def _lose_a_block(pool: BlockPool) -> None:
    pool._free.popleft()


def _count_wrongly(pool: BlockPool) -> None:
    pool._num_cached += 1


def _hold_the_null_block(pool: BlockPool) -> None:
    pool.null_block.ref_cnt = 1


def _forget_to_unmap(pool: BlockPool) -> None:
    pool.blocks[1].block_hash = None


def _map_wrongly(pool: BlockPool) -> None:
    pool._by_hash[0][b"b"] = pool._by_hash[0].pop(b"a")


def _free_a_held_block(pool: BlockPool) -> None:
    pool._free.append(pool.blocks[1])


@pytest.mark.parametrize(
    "harm",
    [
        _lose_a_block,
        _count_wrongly,
        _hold_the_null_block,
        _forget_to_unmap,
        _map_wrongly,
        _free_a_held_block,
    ],
)
def test_the_check_sees_harm(harm: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(4, 1)
    hold(pool, b"a")
    pool.check_integrity({1: 1})
    harm(pool)
    with pytest.raises(AssertionError):
        pool.check_integrity({1: 1})


@settings(max_examples=100)
@given(st.data())
def test_against_a_plain_model(data: st.DataObject) -> None:
    """The queue as a list, the hashes as a dict of sets."""
    pool = BlockPool(8, 1)
    queue = list(pool.blocks[1:])
    held: list[Block] = []
    hashes: dict[Block, bytes] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["take", "free", "cache", "touch", "drop"]))
        if action == "take":
            count = data.draw(st.integers(0, len(queue)))
            taken, queue = queue[:count], queue[count:]
            assert pool.get_new_blocks(count) == taken
            held += taken
            for block in taken:
                hashes.pop(block, None)
        elif action == "free" and held:
            chosen = data.draw(st.permutations(held))[: data.draw(st.integers(1, len(held)))]
            pool.free(chosen)
            front = []
            for block in chosen:
                held.remove(block)
                if block in held:
                    continue
                name = hashes.get(block)
                if name is not None and list(hashes.values()).count(name) > 1:
                    del hashes[block]
                if block in hashes:
                    queue.append(block)
                else:
                    front.append(block)
            queue = front + queue
        elif action == "cache" and held:
            block = data.draw(st.sampled_from(held))
            if block not in hashes:
                hashes[block] = data.draw(st.sampled_from([b"a", b"b", b"c"]))
                pool.cache(block, 0, hashes[block])
        elif action == "touch":
            block = data.draw(st.sampled_from(held + queue))
            pool.touch(block)
            held.append(block)
            if block in queue:
                queue.remove(block)
        elif action == "drop":
            block = data.draw(st.sampled_from(pool.blocks[1:]))
            pool.drop_hash(block)
            hashes.pop(block, None)
        assert list(pool._free) == queue
        assert pool.num_cached_blocks == sum(block in hashes for block in queue)
        for name in (b"a", b"b", b"c"):
            found = pool.lookup(0, name)
            assert (found is None) == (name not in hashes.values())
            assert found is None or hashes[found] == name
        pool.check_integrity({b.block_id: held.count(b) for b in held})
