"""n completions of one prompt: children begin on what their parent computed."""

from __future__ import annotations

import pytest

from tests.core.fake_worker import FakeCore


def test_sixteen_completions_of_a_thousand_tokens() -> None:
    core = FakeCore(num_blocks=100, max_num_seqs=16, budget=4096, max_model_len=2048)
    core.add_n("n", 16, [i % 37 + 1 for i in range(1000)], max_tokens=8, ignore_eos=True)
    core.step()
    assert core.worker.num_computed_tokens == 1000
    core.step()
    assert core.scheduler.stats().num_running == 16
    assert core.scheduler.stats().num_used_blocks == 62 + 16
    assert core.worker.num_computed_tokens == 1000 + 1 + 15  # one each
    assert len(core.steps[1].block_copies) == 15
    core.run()
    core.check_complete()
    answers = [core.answers[f"{i}_n"].token_ids for i in range(16)]
    assert len({tuple(answer) for answer in answers}) == 16
    stats = core.scheduler.stats()
    assert (stats.prompt_tokens, stats.prefix_queries) == (1000, 1000)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("prompt", [1, 2, 16, 17, 30, 32, 33])
@pytest.mark.parametrize("depth", [1, 2])
def test_children_of_a_parent_that_ends_with_its_first_token(
    caching: bool, prompt: int, depth: int
) -> None:
    core = FakeCore(prefix_caching=caching, depth=depth)
    core.add_n("n", 4, range(1, prompt + 1), max_tokens=1)
    core.run()
    core.check_complete()
    assert core.worker.num_computed_tokens == prompt + 3


def test_a_child_whose_parents_blocks_are_gone_computes_for_itself() -> None:
    core = FakeCore(num_blocks=6, max_num_seqs=1, prefix_caching=False)
    core.add_n("n", 2, [1] * 40, max_tokens=1)
    core.step()
    assert core.answers["0_n"].finish_reason is not None
    core.scheduler._waiting.requests[0].parent.fork_source.blocks[0][0].generation += 1  # type: ignore[union-attr]
    core.run()
    core.check_complete()
    assert core.worker.num_computed_tokens == 80


def test_a_child_of_an_aborted_parent() -> None:
    for steps in range(4):
        core = FakeCore(budget=16, depth=2)
        core.add_n("n", 3, [1] * 40, max_tokens=5, ignore_eos=True)
        for _ in range(steps):
            core.step()
        core.finish("0_n")
        core.run()
        for child in ("1_n", "2_n"):
            assert core.answers[child].token_ids == core.expected(child)[0]


def test_a_child_of_a_preempted_parent() -> None:
    core = FakeCore(num_blocks=7, budget=16, max_num_seqs=4)
    core.add("old", [9] * 20, max_tokens=60, ignore_eos=True)
    core.add_n("n", 3, [1] * 30, max_tokens=20, ignore_eos=True)
    core.run()
    core.check_complete()
    assert core.scheduler.stats().num_preemptions > 0


def test_a_name_that_is_not_there_or_has_another_prompt() -> None:
    core = FakeCore(budget=200)
    core.add("other", [2] * 40, max_tokens=5)
    for name, parent in (("a", "nobody"), ("b", "other")):
        core.add(name, [1] * 40, max_tokens=5, fork_of=parent)
    core.add("c", [2] * 40, max_tokens=5, fork_of="other", cache_salt="mine")
    assert len(core.schedule().new_requests) == 4
    core.settle()
    core.run()
    core.check_complete()
    assert not any(step.block_copies for step in core.steps)


def test_a_reset_forgets_what_parents_left() -> None:
    core = FakeCore(max_num_seqs=1)
    core.add_n("n", 2, [1] * 40, max_tokens=1)
    core.step()
    assert core.scheduler.reset_prefix_cache()
    core.run()
    core.check_complete()
    assert core.worker.num_computed_tokens == 80


def test_a_window_that_moved_on() -> None:
    """The parent runs ahead while its child has no place; then its blocks are gone."""
    core = FakeCore(windows=(17,), max_num_seqs=2, prefix_caching=False)
    core.add("first", [9] * 5, max_tokens=40, ignore_eos=True)
    core.add_n("n", 2, [1] * 33, max_tokens=60, ignore_eos=True)
    core.run()
    core.check_complete()
    assert not any(step.block_copies for step in core.steps)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 30, 32, 33])
@pytest.mark.parametrize("depth", [1, 2])
def test_children_that_come_after_the_end_of_their_parent(
    caching: bool, prompt: int, depth: int
) -> None:
    """As beams do: each computes its last token only."""
    core = FakeCore(prefix_caching=caching, depth=depth, num_blocks=24)
    ids = list(range(1, prompt + 1))
    core.add("parent", ids, max_tokens=1, leaves_fork_source=True)
    core.run()
    for i in range(4):
        core.add(f"{i}", [*ids, 30 + i], max_tokens=1, fork_of="parent", leaves_fork_source=True)
    core.run()
    for i in range(4):
        core.add(f"{i}b", [*ids, 33, 3 + i], max_tokens=1, fork_of="3")
    core.run()
    core.check_complete()
    assert core.worker.num_computed_tokens == prompt + 4 + 4


def test_what_is_not_the_parents_prompt_and_a_token_is_computed() -> None:
    core = FakeCore(prefix_caching=False)
    core.add("parent", [1] * 20, max_tokens=1, leaves_fork_source=True)
    core.run()
    for name, prompt, more in (
        ("longer", [1] * 22, {}),
        ("other", [1] * 19 + [2, 1], {}),
        ("same", [1] * 20, {}),
        ("salted", [1] * 21, {"cache_salt": "mine"}),
    ):
        core.add(name, prompt, max_tokens=1, fork_of="parent", **more)
    core.run()
    core.check_complete()
    assert core.worker.num_computed_tokens == 20 + 22 + 21 + 20 + 21


def test_ended_parents_hold_nothing_and_are_few() -> None:
    core = FakeCore(num_blocks=6, max_num_seqs=2, prefix_caching=False)
    for i in range(9):
        core.add(f"{i}", [i + 1] * 20, max_tokens=1, leaves_fork_source=True)
        core.run()
    assert core.scheduler.stats().num_used_blocks == 0
    assert list(core.scheduler._forks._left) == ["5", "6", "7", "8"]
    core.add("early", [7] * 21, max_tokens=1, fork_of="6")  # its parent's blocks are others' now
    core.add("late", [9] * 21, max_tokens=1, fork_of="8")
    core.run()
    core.check_complete()
    assert core.worker.num_computed_tokens == 9 * 20 + 21 + 1


def test_a_request_that_does_not_read_the_cache_still_forks() -> None:
    core = FakeCore()
    core.add("before", [1] * 40, max_tokens=1)
    core.run()
    core.add_n("n", 2, [1] * 40, max_tokens=1, skip_reading_prefix_cache=True)
    core.run()
    core.check_complete()
    assert core.worker.num_computed_tokens == 40 + 40 + 1
    core.add("after", [1] * 40, max_tokens=1)  # what was computed is cached for others
    core.run()
    assert core.worker.num_computed_tokens == 40 + 40 + 1 + 8
