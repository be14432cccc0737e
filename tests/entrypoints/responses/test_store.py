"""What the store of responses keeps, and what it forgets."""

from __future__ import annotations

import asyncio

import pytest

from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.responses.protocol import FunctionCallItem
from octavo.entrypoints.responses.store import ResponseStore, StoredResponse
from tests.entrypoints.responses.responses_lab import empty_response


def entry(response_id: str, *, size: int = 0, key: str | None = None) -> StoredResponse:
    response = empty_response(response_id, "completed")
    return StoredResponse(key=key, response=response, input_items=b"x" * size, earlier_items=b"[]")


def there(store: ResponseStore, *ids: str) -> list[bool]:
    found = []
    for response_id in ids:
        try:
            store.get(response_id, None)
            found.append(True)
        except APIError as error:
            assert error.status == 404
            found.append(False)
    return found


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    store = ResponseStore(max_responses=2)
    for name in ("a", "b", "c"):
        store.put(entry(name))
    assert there(store, "a", "b", "c") == [False, True, True]
    store.put(entry("b"))  # again: it is the newest now
    store.put(entry("d"))
    assert there(store, "b", "c", "d") == [True, False, True]


def test_the_oldest_are_forgotten_when_they_are_too_large() -> None:
    store = ResponseStore(max_bytes=10_000)
    for name in ("a", "b", "c"):
        store.put(entry(name, size=4000))
    assert there(store, "a", "b", "c") == [False, True, True]
    store.put(entry("d", size=20_000))  # larger than all that may be kept
    assert there(store, "b", "c", "d") == [False, False, False]
    assert len(store) == 0


def test_they_are_kept_for_a_time() -> None:
    now = 0.0
    store = ResponseStore(max_seconds=10, clock=lambda: now)
    store.put(entry("a"))
    now = 9.0
    store.put(entry("b"))
    assert there(store, "a", "b") == [True, True]
    now = 11.0
    assert there(store, "a", "b") == [False, True]


def test_another_key_does_not_see_them() -> None:
    store = ResponseStore()
    store.put(entry("a", key="one"))
    for key in (None, "two"):
        with pytest.raises(APIError, match="there is no response 'a'"):
            store.get("a", key)
    assert store.get("a", "one").response.id == "a"


async def test_what_is_being_made_is_kept() -> None:
    store = ResponseStore(max_responses=1)
    making = entry("a")
    making.task = asyncio.ensure_future(asyncio.sleep(60))
    store.put(making)
    store.put(entry("b"))
    store.put(entry("c"))
    assert there(store, "a", "b", "c") == [True, False, False]
    await making.stop()
    store.put(entry("d"))
    assert there(store, "a", "d") == [False, True]


def test_one_key_does_not_displace_anothers() -> None:
    for limits, size in (({"max_responses": 4}, 0), ({"max_bytes": 10_000}, 1500)):
        store = ResponseStore(**limits)
        store.put(entry("mine", size=size, key="alice"))
        for i in range(20):
            store.put(entry(f"other{i}", size=size, key="bob"))
        assert store.get("mine", "alice")
        assert store.get("other19", "bob")
        with pytest.raises(APIError, match="there is no response"):
            store.get("other1", "bob")


def test_a_call_that_was_cut_off_is_no_part_of_the_conversation() -> None:
    made = FunctionCallItem(id="a", call_id="a", name="f", arguments="{}", status="completed")
    cut = FunctionCallItem(id="b", call_id="b", name="f", arguments='{"x', status="incomplete")
    stored = entry("a")
    stored.input_items = b"[]"
    stored.response.output = [made, cut]
    assert [item["id"] for item in stored.conversation()] == ["a"]
