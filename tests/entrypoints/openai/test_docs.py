"""docs/server.md says what the server does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from octavo.engine.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, parser_names
from octavo.entrypoints.openai import generate, pooling_protocol, protocol
from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.state import MAX_BODIES, MAX_CHOICES
from octavo.entrypoints.openai.unsupported_routes import UNSUPPORTED_ROUTES
from octavo.entrypoints.openai.vectors import MAX_INPUTS
from tests.entrypoints.openai.harness import all_routes

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under a heading."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def words(text: str) -> set[str]:
    """What is in backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


async def test_routes() -> None:
    there = set()
    for method, path in all_routes():
        named = re.sub(r"{(\w+)}", lambda name: name[1].upper(), path)
        there.add(f"{method} {named}")
    assert words(section("Routes")) & there == there
    assert {
        w for w in words(section("Routes")) if w.startswith(("GET ", "POST ", "DELETE "))
    } == there


def test_routes_of_other_servers() -> None:
    rows = re.findall(r"^\| (`/.*?`) \| (.*) \|$", section("Routes"), re.MULTILINE)
    table = {path: why for paths, why in rows for path in words(paths)}
    assert table == UNSUPPORTED_ROUTES


def test_request_fields() -> None:
    kinds = (
        protocol.ChatCompletionRequest,
        protocol.CompletionRequest,
        protocol.TokenizeRequest,
        protocol.DetokenizeRequest,
    )
    known = {name for kind in kinds for name in kind.__struct_fields__}
    refused = {
        *protocol.CHAT_UNSUPPORTED,
        *protocol.COMPLETION_UNSUPPORTED,
        *protocol.TOKENIZE_UNSUPPORTED,
    }
    taken, _, not_taken = section("Request fields").partition("Known from elsewhere")
    assert known <= words(taken)
    assert words(not_taken) == refused - known
    options = {f"stream_options.{name}" for name in protocol.StreamOptions.__struct_fields__}
    assert options <= words(section("Streams"))


def test_fields_of_tokens() -> None:
    text = section("Tokens")
    assert {*generate.GenerateRequest.__struct_fields__, *generate.UNSUPPORTED} <= words(text)
    choice = set(generate.GenerateChoice.__struct_fields__) - {"index"}
    answer = set(generate.GenerateAnswer.__struct_fields__) - {"choices"}
    assert choice | answer <= words(text)


def test_fields_of_vectors() -> None:
    kinds = (
        pooling_protocol.EmbeddingRequest,
        pooling_protocol.PoolingRequest,
        pooling_protocol.ScoreRequest,
        pooling_protocol.RerankRequest,
    )
    known = {name for kind in kinds for name in kind.__struct_fields__}
    taken, _, not_taken = section("Vectors").partition("Refused unless")
    assert known <= words(taken)
    assert words(not_taken) == set(pooling_protocol.UNSUPPORTED)
    assert f"At most {MAX_INPUTS:,} texts" in taken


def test_parsers() -> None:
    text = section("Tool calls and reasoning")
    for flag, table in (
        ("tool-call-parser", TOOL_FORMATS),
        ("reasoning-parser", REASONING_FORMATS),
    ):
        (row,) = re.findall(rf"^\| `--{flag}` \|(.*)\|$", text, re.MULTILINE)
        assert words(row) == set(parser_names(table))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    num_families = len(set(map(id, TOOL_FORMATS.values()))) + 1  # some have two names; harmony
    assert f"tool calls of {num_families} template families" in readme


def test_error_codes() -> None:
    """Every code in the source is in the table, and the table has no others."""
    folders = [
        ROOT / "octavo" / "entrypoints" / name for name in ("openai", "responses", "batches")
    ]
    sources = [path for folder in folders for path in folder.glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    codes = set(re.findall(r'code="(\w+)"', text))
    codes |= set(re.findall(r'unavailable\([^()]*?"(\w+)"\)', text))
    codes |= set(re.findall(r'unavailable\(str\(error\), "(\w+)"\)', text))
    rows = re.findall(r"^\| [\d, ]+ \| `(\w+)` \|", section("Errors"), re.MULTILINE)
    assert set(rows) == codes


def test_flags() -> None:
    table = {
        flag: default.strip(" `")
        for flag, default in re.findall(r"^\| `(--[\w-]+)` \|([^|]*)\|", section("Flags"), re.M)
    }
    expected = {}
    for f in fields(ServerConfig):
        is_off = f.default is None or f.default is False
        expected[f"--{f.name.replace('_', '-')}"] = "" if is_off else str(f.default)
    assert table == expected
    assert f"{MAX_CHOICES:,} completions per request" in section("Flags")
    assert f"or {MAX_BODIES} largest bodies" in section("Errors")
