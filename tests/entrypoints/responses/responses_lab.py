"""Requests for /v1/responses with OpenAI's client, and what must hold of any answer."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI

from octavo.entrypoints.responses.protocol import Response
from tests.entrypoints.openai.harness import MODEL


def said(text: str, /, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "SAY:" + text, **fields}


def without_ids(value: Any) -> Any:
    """A response but for what differs from one making to the next."""
    changing = {"id", "call_id", "created_at", "completed_at", "input_tokens_details"}
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in changing}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


async def both(client: AsyncOpenAI, body: dict[str, Any]) -> Any:
    """A whole response, which its stream must add up to."""
    whole = await client.responses.create(**body)
    stream = await client.responses.create(**body, stream=True)
    events = [event async for event in stream]
    check_events(events)
    assert without_ids(events[-1].response.model_dump()) == without_ids(whole.model_dump())
    return whole


def check_events(events: list[Any]) -> None:
    """The order of a stream's events, and that the pieces add up to what is done."""
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[0] == "created"
    assert kinds[1 + (kinds[1] == "queued")] == "in_progress"
    last = events[-1].response
    assert kinds[-1] == last.status
    open_item: Any = None
    text = ""
    done = []
    for event in events:
        kind = event.type.removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            assert event.output_index == len(done)
            assert event.item.status == "in_progress"
            assert not (
                event.item.arguments if event.item.type == "function_call" else event.item.content
            )
            open_item, text = event.item, ""
        elif kind == "content_part.added":
            assert event.part.text == ""
        elif kind.endswith(".delta"):
            assert event.item_id == open_item.id
            text += event.delta
        elif kind.endswith(".done"):
            assert event.output_index == len(done)
            if kind == "output_item.done":
                assert event.item.id == open_item.id
                done.append(event.item)
                open_item = None
            elif kind == "content_part.done":
                assert event.part.text == text
            else:
                assert (event.arguments if "arguments" in kind else event.text) == text
    assert open_item is None
    assert [i.model_dump() for i in done] == [i.model_dump() for i in last.output]


def empty_response(response_id: str, status: str) -> Response:
    """One that has said nothing."""
    return Response(
        id=response_id,
        created_at=0,
        status=status,
        background=False,
        instructions=None,
        max_output_tokens=None,
        metadata={},
        model="m",
        output=[],
        parallel_tool_calls=True,
        previous_response_id=None,
        reasoning={},
        store=True,
        temperature=1.0,
        text={},
        tool_choice="auto",
        tools=[],
        top_logprobs=0,
        top_p=1.0,
    )
