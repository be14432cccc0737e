from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.batches import stored_batches, stored_files
from octavo.entrypoints.batches.errors import StorageFullError
from octavo.entrypoints.batches.lines import LineResult
from octavo.entrypoints.batches.objects import Batch
from octavo.entrypoints.batches.store import Store
from octavo.entrypoints.openai.errors import APIError
from octavo.errors import ConfigError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    made = Store(tmp_path, max_bytes=1000, clock=clock)
    yield made
    made.close()


def upload(store: Store, owner: str = "me", data: bytes = b"{}\n", **options: Any) -> str:
    file_id = store.files.begin_upload(owner, len(data))
    store.files.path_of(file_id).write_bytes(data)
    store.files.finish_upload(file_id, "name", len(data), options.get("expires_after"))
    return file_id


def batch(store: Store, owner: str = "me", total: int = 3, **options: Any) -> Batch:
    made = store.batches.create(
        owner,
        **{
            "endpoint": "/v1/completions",
            "input_file_id": options.get("input_file_id") or upload(store, owner),
            "completion_window": "1h",
            "window_seconds": 3600,
            "metadata": None,
            "output_expires_after": None,
            **options,
        },
    )
    if total:
        store.jobs.start(made.id, total)
    return store.batches.get(owner, made.id)


def result(number: int, data: bytes = b"ok\n", *, is_error: bool = False) -> LineResult:
    return LineResult(number, is_error, data)


def test_an_upload_is_seen_when_it_is_finished(store: Store) -> None:
    file_id = store.files.begin_upload("me", 10)
    with pytest.raises(APIError):
        store.files.get("me", file_id)
    assert store.files.page("me", purpose=None, limit=9, order="desc", after=None) == ([], False)
    store.files.remove_upload(file_id)
    store.files.remove_upload(file_id)


def test_a_line_is_stored_once(store: Store) -> None:
    made = batch(store)
    store.jobs.add_results(made.id, [result(1), result(2, b"bad\n", is_error=True)])
    with pytest.raises(sqlite3.IntegrityError):
        store.jobs.add_results(made.id, [result(3), result(1)])
    assert store.jobs.done_lines(made.id) == {1, 2}
    store.jobs.add_results(made.id, [result(3, b"last\n")])
    assert store.jobs.finalize(made.id)
    store.jobs.end(made.id, "completed")
    over = store.batches.get("me", made.id)
    assert over.output_file_id
    assert over.error_file_id
    assert store.files.path_of(over.output_file_id).read_bytes() == b"ok\nlast\n"
    assert store.files.path_of(over.error_file_id).read_bytes() == b"bad\n"
    assert store.files.get("me", over.output_file_id).bytes == 8
    assert (over.request_counts.completed, over.request_counts.failed) == (2, 1)
    assert store.jobs.done_lines(made.id) == set()


def test_what_was_not_committed_is_overwritten(store: Store, tmp_path: Path) -> None:
    made = batch(store)
    store.jobs.add_results(made.id, [result(1)])
    (output,) = (p for p in (tmp_path / "contents").iterdir() if p.read_bytes() == b"ok\n")
    with output.open("ab") as file:
        file.write(b"torn and very long indeed")
    store.close()
    again = Store(tmp_path, max_bytes=1000)
    again.jobs.add_results(made.id, [result(2)])
    assert output.read_bytes() == b"ok\nok\n"
    again.close()


def test_the_quota_counts_results_and_uploads(store: Store) -> None:
    made = batch(store, owner="")
    store.files.begin_upload("other", 500)
    store.jobs.add_results(made.id, [result(1, b"x" * 400)])
    with pytest.raises(StorageFullError, match="903 bytes are stored"):
        store.jobs.add_results(made.id, [result(2, b"x" * 98)])
    assert store.jobs.done_lines(made.id) == {1}
    store.jobs.add_results(made.id, [result(2, b"x" * 97)])
    with pytest.raises(StorageFullError):
        store.files.begin_upload("me", 1)


def test_a_key_stores_no_more_than_it_leaves_free(store: Store) -> None:
    made = batch(store, owner="alice")
    store.jobs.add_results(made.id, [result(1, b"x" * 297)])
    for refused in (
        lambda: store.files.begin_upload("alice", 401),
        lambda: store.jobs.add_results(made.id, [result(2, b"x" * 401)]),
    ):
        with pytest.raises(StorageFullError, match=r"300 bytes of this API key .* the 700"):
            refused()
    store.files.begin_upload("bob", 350)  # of the 700
    with pytest.raises(StorageFullError, match="the 350 that are free"):
        store.files.begin_upload("alice", 51)
    store.files.begin_upload("carol", 350)


def test_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = batch(store)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        store.jobs.add_results(made.id, [result(1)])
    monkeypatch.undo()
    store.jobs.add_results(made.id, [result(1)])
    assert store.jobs.done_lines(made.id) == {1}


def test_a_database_that_can_grow_no_more(store: Store) -> None:
    """What does not fit is not there, what is there can be read, and later all goes on."""
    made = batch(store)
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    stored: list[int] = []

    def fill() -> None:
        while True:
            numbers = range(len(stored), len(stored) + 10)
            store.jobs.add_results(made.id, [result(number, b"") for number in numbers])
            stored.extend(numbers)

    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        fill()
    assert store.jobs.done_lines(made.id) == set(stored) != set()
    store._db.execute("PRAGMA max_page_count = 1000")
    store.jobs.add_results(made.id, [result(len(stored))])
    assert len(store.jobs.done_lines(made.id)) == len(stored) + 1


def test_the_journal_is_bounded(store: Store, tmp_path: Path) -> None:
    """SQLite's own bound is 4 MiB, and a transaction's size for ever after a larger one."""
    made = batch(store, total=30_000)
    journal = next(tmp_path.rglob("batches.db-wal"))
    store.jobs.add_results(made.id, [result(number, b"") for number in range(20_000)])
    assert journal.stat().st_size > 200_000
    largest = 0
    for number in range(20_000, 20_100):
        store.jobs.add_results(made.id, [result(number, b"")])
        if number > 20_050:
            largest = max(largest, journal.stat().st_size)
    assert 0 < largest < 200_000


def test_a_content_makes_room_for_the_end_of_its_row(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, half = upload(store), store.files.begin_upload("me", 10)
    store.files.path_of(half).write_bytes(b"half")

    def full(*args: object) -> None:
        assert not store.files.path_of(args[1][0][0]).exists()  # type: ignore[index]
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store._db, "executemany", full)
        with pytest.raises(sqlite3.OperationalError):
            store.files.remove_upload(half)
        with pytest.raises(sqlite3.OperationalError):
            store.files.delete("me", whole)
    store.files.delete("me", whole)
    with pytest.raises(APIError, match="there is no file"):
        store.files.get("me", whole)


def test_an_upload_that_a_jump_of_the_clock_swept_away(store: Store, clock: Clock) -> None:
    file_id = store.files.begin_upload("me", 10)
    clock.now += stored_files.MAX_UPLOAD_SECONDS + 1
    store.files.sweep()
    with pytest.raises(APIError, match="send it again") as caught:
        store.files.finish_upload(file_id, "name", 10, None)
    assert caught.value.status == 503


def test_ends(store: Store) -> None:
    validating = batch(store, total=0)
    assert validating.status == "validating"
    assert store.batches.cancel("me", validating.id).status == "cancelling"
    store.jobs.start(validating.id, 5)  # too late
    assert store.batches.cancel("me", validating.id).status == "cancelling"
    assert not store.jobs.finalize(validating.id)
    store.jobs.end(validating.id, "cancelled")
    with pytest.raises(APIError, match="is cancelled") as caught:
        store.batches.cancel("me", validating.id)
    assert caught.value.status == 409
    finalizing = batch(store)
    assert store.jobs.finalize(finalizing.id)
    with pytest.raises(APIError, match="is finalizing"):
        store.batches.cancel("me", finalizing.id)


def test_inputs_in_use_are_not_deleted(store: Store, clock: Clock) -> None:
    file_id = upload(store, expires_after=3600)
    made = batch(store, input_file_id=file_id)
    with pytest.raises(APIError, match=f"{made.id}, which is in_progress") as caught:
        store.files.delete("me", file_id)
    assert caught.value.status == 409
    clock.now += 4000
    store.files.sweep()
    assert store.files.path_of(file_id).exists()
    store.jobs.end(made.id, "expired")
    store.files.sweep()
    assert not store.files.path_of(file_id).exists()


def test_what_expires_is_gone_at_once_and_swept_later(store: Store, clock: Clock) -> None:
    made = batch(store, output_expires_after=7200)
    store.jobs.add_results(made.id, [result(1)])
    store.jobs.end(made.id, "completed")
    output = store.batches.get("me", made.id).output_file_id
    assert output is not None
    clock.now += 7200
    with pytest.raises(APIError):
        store.files.get("me", output)
    assert store.files.path_of(output).exists()
    store.files.sweep()
    assert not store.files.path_of(output).exists()


def test_crashes_leave_nothing_for_ever(store: Store, clock: Clock, tmp_path: Path) -> None:
    cut_off = store.files.begin_upload("me", 10)
    store.files.path_of(cut_off).write_bytes(b"half")
    orphan = tmp_path / "contents" / "file-of-a-row-that-is-gone"
    orphan.write_bytes(b"x")
    running = batch(store)
    store.jobs.add_results(running.id, [result(1)])
    kept = {p.name for p in (tmp_path / "contents").iterdir()} - {cut_off, orphan.name}
    for path in (tmp_path / "contents").iterdir():
        os.utime(path, (1, 1))
    clock.now += stored_files.MAX_UPLOAD_SECONDS + 1
    assert store.take_lock()
    assert {p.name for p in (tmp_path / "contents").iterdir()} == kept


def test_one_process_runs_the_batches(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path, max_bytes=1000)
    assert store.take_lock()
    assert store.take_lock()
    assert not other.take_lock()
    made = batch(other)  # which may all the same be used
    assert [job.id for job in store.jobs.unfinished(9)] == [made.id]
    store.close()
    assert other.take_lock()
    other.close()


def test_turns(store: Store, clock: Clock) -> None:
    first = [batch(store, "a").id for _ in range(3)]
    second = batch(store, "b").id
    third = [batch(store, "c").id for _ in range(2)]
    assert [j.id for j in store.jobs.unfinished(9)] == [
        *(first[0], second, third[0], first[1], third[1], first[2])
    ]
    store.batches.cancel("a", first[2])
    assert [j.id for j in store.jobs.unfinished(2)] == [first[2], first[0]]
    clock.now += 3600
    late = batch(store, "d").id
    assert [j.id for j in store.jobs.unfinished(9)][-1] == late


def test_counts_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "MAX_FILES", 3)
    monkeypatch.setattr(stored_batches, "MAX_BATCHES", 4)
    monkeypatch.setattr(stored_batches, "MAX_UNFINISHED", 2)
    file_id = upload(store)
    made = [batch(store, input_file_id=file_id).id for _ in range(2)]
    with pytest.raises(APIError, match="2 batches have not ended"):
        batch(store, input_file_id=file_id)
    for _ in range(6):
        store.jobs.end(made[-1], "failed")
        made.append(batch(store, input_file_id=file_id).id)
    kept, _ = store.batches.page("me", limit=99, after=None)
    assert [b.id for b in kept] == [*made[-1:-5:-1], made[0]]  # which has not ended
    upload(store)
    upload(store)
    with pytest.raises(APIError, match="delete some"):
        upload(store)
    upload(store, "other")


def test_a_store_of_another_version(tmp_path: Path) -> None:
    Store(tmp_path, max_bytes=1).close()
    db = sqlite3.connect(tmp_path / "batches.db")
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(ConfigError, match="version 99"):
        Store(tmp_path, max_bytes=1)
