from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from octavo.entrypoints.batches.line_runner import (
    GroupCommit,
    LineRunner,
    LineSlots,
    NotNowError,
)
from octavo.entrypoints.batches.lines import Line, LineResult
from tests.entrypoints.openai.harness import eventually


def lines(count: int, size: int = 1) -> list[Line]:
    return [Line(i, b"x" * size) for i in range(1, count + 1)]


def result_of(line: Line) -> LineResult:
    return LineResult(line.number, False, b"%d\n" % line.number)


async def test_slots_are_bounded_and_handed_out_in_turn() -> None:
    slots = LineSlots(2, max_bytes=10)
    order: list[str] = []

    async def use(name: str, num_bytes: int) -> None:
        await slots.acquire(num_bytes)
        order.append(name)

    await use("a", 4)
    await use("b", 6)
    tasks = [asyncio.create_task(use(name, n)) for name, n in (("c", 9), ("d", 1), ("e", 50))]
    await asyncio.sleep(0)
    assert order == ["a", "b"]
    slots.release(6)
    await asyncio.sleep(0)
    assert order == ["a", "b"]  # c has too many bytes, and d does not pass it
    slots.release(4)
    await asyncio.sleep(0)
    assert order == ["a", "b", "c", "d"]
    slots.release(9)
    await asyncio.sleep(0)
    assert slots.num_running == 1
    slots.release(1)
    await asyncio.sleep(0)
    assert order[-1] == "e"  # alone, it may have more
    slots.release(50)
    await asyncio.gather(*tasks)
    assert slots.num_running == 0


async def test_a_wait_that_is_cancelled_holds_nothing() -> None:
    slots = LineSlots(1)
    await slots.acquire(1)
    waiting, given = (asyncio.create_task(slots.acquire(1)) for _ in range(2))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    slots.release(1)
    given.cancel()  # when it has just been given
    await asyncio.gather(waiting, given, return_exceptions=True)
    assert slots.num_running == 0
    await asyncio.wait_for(slots.acquire(1), 1)


async def test_who_comes_later_does_not_pass() -> None:
    slots = LineSlots(3, max_bytes=10)
    await slots.acquire(6)
    large = asyncio.create_task(slots.acquire(8))
    await asyncio.sleep(0)
    small = asyncio.create_task(slots.acquire(1))
    await asyncio.sleep(0)
    assert (large.done(), small.done()) == (False, False)
    large.cancel()  # it was in the way
    await asyncio.wait_for(small, 1)
    assert slots.num_running == 2


async def test_results_are_stored_in_groups() -> None:
    groups: list[list[int]] = []
    gate = asyncio.Event()

    async def commit(results: Sequence[LineResult]) -> None:
        await gate.wait()
        groups.append([r.number for r in results])

    group = GroupCommit(commit)
    tasks = [asyncio.create_task(group.add(result_of(line))) for line in lines(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(group.add(result_of(line))) for line in lines(5)[3:]]
    await asyncio.sleep(0)
    tasks[0].cancel()  # nobody waits for it any more; it is stored all the same
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await group.drain()
    assert sorted(n for numbers in groups for n in numbers) == [1, 2, 3, 4, 5]
    assert len(groups) <= 3


async def test_every_line_runs_once_and_no_more_than_allowed_at_a_time() -> None:
    stored: list[int] = []
    most = 0
    slots = LineSlots(3)

    async def answer(line: Line) -> LineResult:
        nonlocal most
        most = max(most, slots.num_running)
        await asyncio.sleep(0)
        return result_of(line)

    async def commit(results: Sequence[LineResult]) -> None:
        await asyncio.sleep(0)
        stored.extend(r.number for r in results)

    await LineRunner(answer, commit, slots).run(iter(lines(200)))
    assert sorted(stored) == list(range(1, 201))
    assert most == 3
    assert slots.num_running == 0


@pytest.mark.parametrize("where", ["answer", "commit"])
async def test_the_first_failure_ends_it(where: str) -> None:
    slots = LineSlots(2)
    answered: list[int] = []

    async def answer(line: Line) -> LineResult:
        answered.append(line.number)
        if where == "answer" and line.number == 5:
            raise RuntimeError("broken")
        return result_of(line)

    async def commit(results: Sequence[LineResult]) -> None:
        if where == "commit" and any(r.number == 5 for r in results):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await LineRunner(answer, commit, slots).run(iter(lines(1000)))
    assert len(answered) < 20
    assert slots.num_running == 0


async def test_the_failure_that_came_first_is_told_and_nothing_begins_behind_it() -> None:
    answered: list[int] = []

    async def answer(line: Line) -> LineResult:
        answered.append(line.number)
        if line.number < 3:
            await asyncio.sleep(0.01 * line.number)
            raise RuntimeError(f"line {line.number} is broken")
        return result_of(line)

    async def commit(results: Sequence[LineResult]) -> None:
        pass

    slots = LineSlots(2)
    with pytest.raises(RuntimeError, match="line 1 is broken"):
        await LineRunner(answer, commit, slots).run(iter(lines(9)))
    assert answered == [1, 2]
    assert slots.num_running == 0


async def test_files_are_not_read_far_ahead() -> None:
    read: list[int] = []
    gate = asyncio.Event()

    async def answer(line: Line) -> LineResult:
        await gate.wait()
        return result_of(line)

    async def commit(results: Sequence[LineResult]) -> None:
        pass

    large = (read.append(line.number) or line for line in lines(40, size=2**19))
    task = asyncio.create_task(LineRunner(answer, commit, LineSlots(1)).run(large))
    await eventually(lambda: read)
    await asyncio.sleep(0.02)
    assert len(read) == 2  # of half a MiB each
    gate.set()
    await task
    assert len(read) == 40


async def test_who_is_refused_waits_before_trying_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.entrypoints.batches.line_runner.RETRY_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    opens_at = loop.time() + 0.12
    num_tries = 0

    async def answer(line: Line) -> LineResult:
        nonlocal num_tries
        num_tries += 1
        if loop.time() < opens_at:
            raise NotNowError
        return result_of(line)

    async def commit(results: Sequence[LineResult]) -> None:
        pass

    await LineRunner(answer, commit, LineSlots(1)).run(iter(lines(1)))
    assert 2 <= num_tries <= 4, "at 0, 0.05, 0.1 and 0.15 s"


async def test_what_is_being_stored_when_it_is_cancelled_is_stored() -> None:
    stored: list[int] = []
    storing, gate = asyncio.Event(), asyncio.Event()

    async def answer(line: Line) -> LineResult:
        return result_of(line)

    async def commit(results: Sequence[LineResult]) -> None:
        storing.set()
        await gate.wait()
        stored.extend(r.number for r in results)

    task = asyncio.create_task(LineRunner(answer, commit, LineSlots(1)).run(iter(lines(3))))
    await storing.wait()
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stored == [1]


async def test_cancelling_leaves_lines_in_flight_undone() -> None:
    slots = LineSlots(4)
    stored: list[int] = []

    async def answer(line: Line) -> LineResult:
        if line.number > 6:
            await asyncio.Event().wait()
        return result_of(line)

    async def commit(results: Sequence[LineResult]) -> None:
        stored.extend(r.number for r in results)

    task = asyncio.create_task(LineRunner(answer, commit, slots).run(iter(lines(100))))
    await eventually(lambda: len(stored) == 6)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(stored) == [1, 2, 3, 4, 5, 6]
    assert slots.num_running == 0


async def test_lines_that_must_wait_leave_their_slots_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.entrypoints.batches.line_runner.RETRY_SECONDS", 0.001)
    slots = LineSlots(2)
    stored: dict[str, list[int]] = {"may": [], "may not": []}
    is_open = False

    def runner(name: str) -> LineRunner:
        async def answer(line: Line) -> LineResult:
            await asyncio.sleep(0)
            if name == "may not" and not is_open:
                raise NotNowError
            return result_of(line)

        async def commit(results: Sequence[LineResult]) -> None:
            stored[name].extend(r.number for r in results)

        return LineRunner(answer, commit, slots)

    waiting = asyncio.create_task(runner("may not").run(iter(lines(200))))
    await asyncio.sleep(0.01)
    await asyncio.wait_for(runner("may").run(iter(lines(200))), 20)
    assert len(stored["may"]) == 200
    assert stored["may not"] == []
    is_open = True
    await asyncio.wait_for(waiting, 20)
    assert sorted(stored["may not"]) == list(range(1, 201))
    assert slots.num_running == 0
