"""A chat's answer as its text, reasoning and calls, from a stream or from a whole message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Joined:
    """What a stream's deltas add up to."""

    content: str
    reasoning: str
    calls: list[dict[str, str]]
    finish_reasons: list[str]
    ids: list[str] = field(default_factory=list, compare=False)  # of the calls
    num_pieces: int = field(default=0, compare=False)  # in which the calls came


def join(events: list[Any], index: int = 0) -> Joined:
    """The deltas of one choice, as a client adds them up."""
    joined = Joined("", "", [], [])
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            joined.content += delta.get("content") or ""
            joined.reasoning += delta.get("reasoning") or ""
            for call in delta.get("tool_calls", ()):
                joined.num_pieces += 1
                assert call["index"] <= len(joined.calls)
                if call["index"] == len(joined.calls):
                    assert call["type"] == "function"
                    joined.ids.append(call["id"])
                    joined.calls.append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert set(call) == {"index", "function"}
                    assert set(call["function"]) == {"arguments"}
                joined.calls[call["index"]]["arguments"] += call["function"]["arguments"]
            joined.finish_reasons += filter(None, [choice["finish_reason"]])
    return joined


def join_message(choice: Any) -> Joined:
    """The same of a choice that was not streamed."""
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert all(set(c) == {"id", "type", "function"} for c in calls)
    assert all(set(c["function"]) == {"name", "arguments"} for c in calls)
    return Joined(
        message["content"] or "",
        message.get("reasoning", ""),
        [c["function"] for c in calls],
        [choice["finish_reason"]],
        [c["id"] for c in calls],
    )
