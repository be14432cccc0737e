"""The sixteen invariants of the core, each by itself, at random. (`check_integrity` looks at most
of them after every event of every test here; these look from outside.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.messages import FinishReason
from octavo.contracts.step import BlockIds, SchedulerOutput
from octavo.core.block_pool import Block
from octavo.core.kv_cache_manager import Prefix
from octavo.core.request import Request
from tests.core.fake_worker import POISON, SECRET, FakeCore
from tests.core.hash_twin import chained_hashes

few = settings(max_examples=25)
Watcher = Callable[[FakeCore, SchedulerOutput], None]
STEM = [i % 3 + 1 for i in range(64)]


def run_random(
    data: st.DataObject,
    watch: Watcher,
    before: Callable[[FakeCore], None] = lambda core: None,
    **fixed: Any,
) -> FakeCore:
    """Requests come, get drafts, are aborted, preempted and forked, until all are done."""
    windows = fixed.pop("windows", None) or data.draw(st.sampled_from([(None,), (None, 20), (20,)]))
    config = {
        "windows": windows,
        "depth": data.draw(st.integers(1, 3)),
        "num_blocks": data.draw(st.integers(7, 12)) * len(windows),
        "budget": data.draw(st.sampled_from([5, 30, 100])),
        "max_model_len": 96,
        "max_num_seqs": 5,
        **fixed,
    }
    core = FakeCore(**config)
    core.watch = lambda step: watch(core, step)
    before(core)
    for i in range(data.draw(st.integers(2, 10))):
        stem = STEM[: data.draw(st.sampled_from([0, 16, 31, 32, 50]))]
        core.add_n(
            str(i),
            data.draw(st.sampled_from([1, 1, 3])),
            [*stem, i + 1],
            max_tokens=data.draw(st.integers(1, 25)),
            ignore_eos=True,
            prompt_logprobs=data.draw(st.sampled_from([None, None, None, 0])),
        )
        for _ in range(data.draw(st.integers(0, 4))):
            for request_id in list(core.scheduler._requests)[: data.draw(st.integers(0, 2))]:
                known = len(core.scheduler._requests[request_id].output_token_ids)
                drafts = core.expected(request_id)[0][known : known + 4]
                drafts[2:] = [39] * len(drafts[2:])
                core.scheduler.update_draft_token_ids({request_id: drafts})
            core.step()
        if data.draw(st.integers(0, 4)) == 0 and core.scheduler._requests:
            core.finish(data.draw(st.sampled_from(list(core.scheduler._requests))))
    core.run()
    core.check_answers()
    return core


def running(core: FakeCore) -> list[Request]:
    return core.scheduler._running.requests


@few
@given(st.data())
def test_1_only_verified_tokens_are_hashed(data: st.DataObject) -> None:
    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        for request in running(core):
            right = chained_hashes(SECRET, request.token_ids[: request.num_tokens])
            for table in request.block_tables:
                found = [block.block_hash for block in table]
                for i, block_hash in enumerate(found):
                    assert block_hash is None or (i < len(right) and block_hash == right[i])

    run_random(data, watch)


@few
@given(st.data())
def test_2_tables_only_grow_and_windows_only_null(data: st.DataObject) -> None:
    last: dict[tuple[Request, int], list[list[int]]] = {}

    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        for request in running(core):
            key = (request, request.epoch)
            tables = [[b.block_id for b in table] for table in request.block_tables]
            for window, old, new in zip(
                core.worker.windows, last.get(key, [[]] * len(tables)), tables
            ):
                same = [n == o or (n == 0 and window is not None) for o, n in zip(old, new)]
                assert len(new) >= len(old)
                assert all(same)
            last[key] = tables

    run_random(data, watch)


@few
@given(st.data())
def test_3_a_free_block_keeps_its_hash_until_it_is_handed_out(data: st.DataObject) -> None:
    cached: dict[int, tuple[bytes, int]] = {}

    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        pool = core.scheduler._kv.pool
        free = list(pool._free)
        assert set(free) == {block for block in pool.blocks[1:] if block.ref_cnt == 0}
        for block_id, (block_hash, generation) in cached.items():
            block = pool.blocks[block_id]
            was_replaced = pool.lookup(block.group_id, block_hash) is not None
            assert block.block_hash or block.generation > generation or was_replaced
        cached.clear()
        for block in free:
            if block.block_hash is not None:
                assert pool.lookup(block.group_id, block.block_hash) is not None
                cached[block.block_id] = (block.block_hash, block.generation)

    run_random(data, watch)


@few
@given(st.data())
def test_4_allocation_is_all_or_nothing(data: st.DataObject) -> None:
    def before(core: FakeCore) -> None:
        kv = core.scheduler._kv
        allocate = kv.allocate_slots

        def checked(request: Request, count: int, prefix: Prefix | None = None) -> BlockIds | None:
            old = [len(table) for table in request.block_tables]
            free = kv.num_free_blocks
            ids = allocate(request, count, prefix)
            start = prefix.num_tokens if prefix else request.num_computed_tokens
            new = [len(table) for table in request.block_tables]
            if ids is None:
                assert new == old
                assert kv.num_free_blocks >= free  # more, where a window moved on
            else:
                assert min(new) * 16 >= start + count
                assert [n - o for n, o in zip(new, old)] == [len(i) for i in ids]
            return ids

        kv.allocate_slots = checked  # type: ignore[method-assign]

    run_random(data, lambda core, step: None, before)


@few
@given(st.data())
def test_5_tails_are_freed_before_heads(data: st.DataObject) -> None:
    """So of the blocks that one request frees and that can be found again, those further back in
    its tokens are lost first; and so are, before all, those that cannot."""

    def before(core: FakeCore) -> None:
        kv = core.scheduler._kv
        free = kv.free

        def checked(request: Request) -> None:
            place = {b: i for table in request.block_tables for i, b in enumerate(table)}
            free(request)
            queue = list(kv.pool._free)
            freed = [block for block in queue if block in place]
            for group in range(len(kv.groups)):
                found = [place[b] for b in freed if b.block_hash and b.group_id == group]
                assert found == sorted(found, reverse=True)
            hashed = [bool(block.block_hash) for block in queue]
            lost = [h for block, h in zip(queue, hashed) if block in place or h]
            assert lost == sorted(lost)

        kv.free = checked  # type: ignore[method-assign]

    run_random(data, lambda core, step: None, before)


@few
@given(st.data())
def test_6_at_least_one_token_is_computed_however_much_is_cached(data: st.DataObject) -> None:
    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        for new in step.new_requests:
            assert new.num_computed_tokens < len(new.token_ids)
            assert step.num_scheduled_tokens[new.request_id] >= 1

    core = run_random(data, watch)
    if core.scheduler.stats().prefix_queries == 0:
        return
    for n in (16, 17, 32):
        for _ in range(2):
            core.add(f"full {n}", [5] * n, max_tokens=1)
            core.run()
        assert core.answers[f"full {n}"].num_cached_tokens <= n - 1


@settings(max_examples=40)
@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.sampled_from([(None, None), ("a", None), (None, "a"), ("a", "a"), ("b", None)]),
    st.sampled_from([(None, None), ("a", None), (None, "a"), ("a", "a"), ("b", None)]),
)
def test_7_all_that_changes_kv_is_in_the_hash(
    num_tokens: int,
    differs_at: int,
    a: tuple[str | None, str | None],
    b: tuple[str | None, str | None],
) -> None:
    core = FakeCore()
    prompt = [i % 5 + 1 for i in range(num_tokens)]
    core.add("a", prompt, max_tokens=1, cache_salt=a[0], lora_name=a[1])
    core.run()
    other = [t + (i == differs_at) for i, t in enumerate(prompt)]
    core.add("b", other, max_tokens=1, cache_salt=b[0], lora_name=b[1])
    core.run()
    common = min(num_tokens - 1, differs_at) // 16 * 16 if a == b else 0
    assert core.answers["b"].num_cached_tokens == common


@few
@given(st.data())
def test_8_nothing_is_admitted_in_a_step_that_preempted(data: st.DataObject) -> None:
    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        assert not (step.preempted_request_ids and step.new_requests)

    run_random(data, watch, num_blocks=8, windows=(None,))


@few
@given(st.data())
def test_9_computed_less_placeholders_is_known(data: st.DataObject) -> None:
    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        for request in core.scheduler._requests.values():
            assert request.num_output_placeholders >= 0
            known = request.num_computed_tokens - request.num_output_placeholders
            assert known <= request.num_tokens

    run_random(data, watch)


@few
@given(st.data())
def test_10_a_block_in_flight_is_not_reused_before_its_step_ends(data: st.DataObject) -> None:
    """Workers run steps in order, so the rule is: whoever holds a block next appears in later
    steps only than whoever held it last, copies out of it included."""
    used: dict[Block, tuple[int, int]] = {}  # the generation, and the last step that uses it
    sources: dict[int, int] = {}

    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        pool = core.scheduler._kv.pool
        for copy in step.block_copies:
            # Held while the step was built: nobody fills the source in the step that copies it.
            sources[copy.src] = step.step_id
        if not step.num_scheduled_tokens:
            return
        for request, *_ in core.scheduler._in_flight[-1].scheduled:
            for table in request.block_tables:
                for block in table:
                    generation, last = used.get(block, (block.generation, -1))
                    if generation != block.generation:
                        assert step.step_id > last
                        assert step.step_id > sources.get(block.block_id, -1)
                    used[block] = (block.generation, step.step_id)
        assert {c.src for c in step.block_copies}.isdisjoint(c.dst for c in step.block_copies)
        assert all(pool.blocks[c.dst].ref_cnt == 1 for c in step.block_copies)

    run_random(data, watch)


@few
@given(st.data())
def test_11_a_finished_id_reaches_workers_once(data: st.DataObject) -> None:
    core = run_random(data, lambda core, step: None)
    assert sorted(core.worker.finished) == sorted(core.answers)


@few
@given(st.data())
def test_12_a_step_keeps_to_its_budget(data: st.DataObject) -> None:
    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        assert sum(step.num_scheduled_tokens.values()) == step.total_num_scheduled_tokens
        assert step.total_num_scheduled_tokens <= core.budget
        assert all(count > 0 for count in step.num_scheduled_tokens.values())

    run_random(data, watch)


@few
@given(st.data())
def test_13_nobody_writes_to_a_shared_block(data: st.DataObject) -> None:
    """A block with several holders is filled by the one it was handed to; no other holder ever
    computes a token of it. A copy goes to a block with one holder."""

    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        writers: dict[Block, Request] = {}
        record = core.scheduler._in_flight[-1].scheduled if step.num_scheduled_tokens else []
        for request, _, start, count, *_ in record:
            for table in request.block_tables:
                for block in table[start // 16 : (start + count - 1) // 16 + 1]:
                    assert writers.setdefault(block, request) is request
        for request in running(core):
            for table in request.block_tables:
                for i, block in enumerate(table):
                    if block.ref_cnt > 1 and writers.get(block, request) is not request:
                        assert (i + 1) * 16 <= request.num_computed_tokens

    run_random(data, watch)


@few
@given(st.data())
def test_14_prompt_logprobs_do_not_read_the_cache(data: st.DataObject) -> None:
    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        for new in step.new_requests:
            assert new.sampling_params is not None
            if new.sampling_params.prompt_logprobs is not None:
                assert new.num_computed_tokens == 0

    core = run_random(data, watch)
    for request_id, answer in core.answers.items():
        wire = core.sent[request_id]
        if answer.finish_reason is FinishReason.LENGTH and wire.sampling_params is not None:
            rows = [o.prompt_logprobs for o in answer.outputs if o.prompt_logprobs is not None]
            wanted = wire.sampling_params.prompt_logprobs is not None
            assert sum(map(len, rows)) == wanted * (len(wire.prompt_token_ids) - 1)


@few
@given(st.data())
def test_15_windows_are_freed_by_processed_tokens(data: st.DataObject) -> None:
    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        for request in running(core):
            for window, table in zip(core.worker.windows, request.block_tables):
                # The first token of the oldest step in flight may yet be computed, or come again.
                processed = request.num_computed_tokens - request.num_in_flight_tokens
                first = 0 if window is None else max(0, processed - window + 1) // 16
                assert not any(block.is_null for block in table[first:])

    run_random(data, watch, windows=(20, None))


@few
@given(st.data())
def test_16_what_a_block_held_before_reaches_nobody(data: st.DataObject) -> None:
    """Every block is full of rubbish when it is handed out; nobody ever reads a slot that was not
    stored to since. So the kernels' mask (own position and before) is enough, without clearing."""
    generations: dict[Block, int] = {}
    fresh: dict[int, list[int]] = {}

    def watch(core: FakeCore, step: SchedulerOutput) -> None:
        changed = []
        for block in core.scheduler._kv.pool.blocks[1:]:
            if generations.get(block, 0) != block.generation:
                generations[block] = block.generation
                changed.append(block.block_id)
        fresh[step.step_id] = changed

    def before(core: FakeCore) -> None:
        execute = core.worker.execute

        def spoiled(step: SchedulerOutput) -> Any:
            for block_id in fresh.pop(step.step_id):
                core.worker.pages[block_id] = dict.fromkeys(range(16), (POISON, POISON))
            return execute(step)

        core.worker.execute = spoiled  # type: ignore[method-assign]

    core = run_random(data, watch, before)
    assert not any(step.blocks_to_clear for step in core.steps)


def test_the_random_runs_are_worth_something() -> None:
    """They preempt, hit the cache, fork, verify drafts and abort."""
    seen = dict.fromkeys(["preempted", "hits", "copies", "drafts", "aborted", "windows"], 0)

    @settings(max_examples=40, database=None)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        core = run_random(data, lambda core, step: None)
        stats = core.scheduler.stats()
        seen["preempted"] += stats.num_preemptions > 0
        seen["hits"] += stats.prefix_hits > 0
        seen["copies"] += any(step.block_copies for step in core.steps)
        seen["drafts"] += any(step.scheduled_drafts for step in core.steps)
        seen["aborted"] += any(a.finish_reason is FinishReason.ABORT for a in core.answers.values())
        seen["windows"] += any(w is not None for w in core.worker.windows)

    run()
    assert min(seen.values()) >= 5, seen
