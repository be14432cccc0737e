"""docs/messages-and-responses.md says what these APIs take."""

from __future__ import annotations

import re
from pathlib import Path

from octavo.entrypoints.anthropic import protocol as anthropic
from octavo.entrypoints.responses import protocol as responses
from octavo.entrypoints.responses import store

PAGE = Path(__file__).parents[2] / "docs" / "messages-and-responses.md"


def words(title: str) -> tuple[set[str], set[str]]:
    """What is in backticks under a heading: before the refused fields, and those."""
    text = PAGE.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    taken, _, rest = section.partition("Refused unless")
    refused = rest.partition("\n\n")[0]
    return set(re.findall(r"`(\w+)`", taken)), set(re.findall(r"`(\w+)`", refused))


def test_messages() -> None:
    taken, refused = words("Messages")
    assert set(anthropic.MessagesRequest.__struct_fields__) <= taken
    assert refused == set(anthropic.UNSUPPORTED)


def test_responses() -> None:
    taken, refused = words("Responses")
    assert set(responses.ResponsesRequest.__struct_fields__) <= taken
    assert refused == set(responses.UNSUPPORTED)
    text = PAGE.read_text(encoding="utf-8")
    mib = 2**20
    assert f"the newest {store.MAX_RESPONSES:,} responses" in text
    assert f"at most {store.MAX_BYTES // mib} MiB together" in text
    assert f"the last {store.MAX_LOG_BYTES // mib} MiB" in text
    assert store.MAX_SECONDS == 3600
