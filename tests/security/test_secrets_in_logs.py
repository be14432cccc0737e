"""Keys, headers and bodies are never logged, at no level, and in no error."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo.entrypoints.openai.config import ServerConfig
from octavo.entrypoints.openai.keys import KeyRing
from octavo.log import JsonFormatter, TextFormatter
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, Running, serving

KEY = "sk-0123456789-the-key"
PROMPT = "my-very-private-words"
COOKIE = "session=do-not-log"
SECRETS = (KEY, PROMPT, COOKIE, "wrong-key-of-somebody")


@contextmanager
def everything_logged(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """All that any logger says, in one of our formats."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter)
    loggers = [logging.getLogger(n) for n in ("", "octavo", "uvicorn", "asyncio", "starlette")]
    before = [(log.level, log.handlers) for log in loggers]
    for log in loggers:
        log.setLevel(logging.DEBUG)
        log.handlers = [handler] if log.name in ("root", "uvicorn") else []
    try:
        yield text
    finally:
        for log, (level, handlers) in zip(loggers, before):
            log.setLevel(level)
            log.handlers = handlers


async def all_kinds_of_requests(s: Running) -> None:
    auth = {"authorization": f"Bearer {KEY}", "cookie": COOKIE}
    bodies: list[Any] = [
        {"model": MODEL, "prompt": f"SAY:{PROMPT}"},
        {"model": MODEL, "prompt": f"SAY:{PROMPT}", "stream": True},
        {"model": MODEL, "prompt": f"FAIL:{PROMPT}"},
        {"model": MODEL, "prompt": f"FAIL:{PROMPT}", "stream": True},
        {"model": MODEL, "prompt": f"SAY:{PROMPT}", "temperature": -1},
        {"model": MODEL, "prompt": "SAY:x", "stop": PROMPT, "user": PROMPT},
        {"model": MODEL, "prompt": "SAY:x", PROMPT: PROMPT},
        {"model": MODEL, "prompt": {PROMPT: PROMPT}},
        f'{{"prompt": "{PROMPT}'.encode(),
        PROMPT.encode(),
    ]
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        for body in bodies:
            await s.post(path, body, **auth)
    chat = {"messages": [{"role": "user", "content": f"RAISE SAY:{PROMPT}"}]}
    await s.post("/v1/chat/completions", chat, **auth)
    await s.get(f"/v1/models?key={KEY}", **auth)
    await s.get("/v1/models", authorization="Bearer wrong-key-of-somebody")
    await s.get("/v1/models", x_api_key="wrong-key-of-somebody")
    await s.get("/v1/models", x_api_key=KEY, x_request_id=f"{PROMPT} {KEY}")
    await s.raw(f"GET / HTTP/1.1\r\nhost: x\r\nbroken {KEY}\r\n\r\n".encode())


class BrokenEngine(FakeEngine):
    """Fails on every prompt with a message that quotes it."""

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise KeyError(f"{text} {KEY}")

    async def render_chat(self, messages: Any, **options: Any) -> list[int]:
        raise RuntimeError(f"{messages}") from ValueError(KEY)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
@pytest.mark.parametrize("kind", [FakeEngine, BrokenEngine])
async def test_nothing_that_was_sent(
    formatter: logging.Formatter, kind: type[FakeEngine], tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"name": "alice", "key": KEY}]}))
    with everything_logged(formatter) as log:
        async with serving(kind(), keys=KeyRing(path=str(file))) as s:
            await all_kinds_of_requests(s)
    text = log.getvalue()
    assert text.count("/v1/completions") >= 10
    assert "alice" in text
    for secret in SECRETS:
        assert secret not in text
    if kind is BrokenEngine:
        assert "KeyError" in text  # what is needed to mend it remains
        assert "test_secrets_in_logs.py" in text
    if isinstance(formatter, JsonFormatter):
        assert all(isinstance(json.loads(line), dict) for line in text.splitlines())


async def test_nothing_in_answers_of_our_own_bugs() -> None:
    async with serving(BrokenEngine()) as s:
        reply = await s.completion(PROMPT)
        assert reply.status == 500
        assert PROMPT.encode() not in reply.body
        assert KEY.encode() not in reply.body


async def test_only_who_asks_for_it_logs_prompts() -> None:
    with everything_logged(JsonFormatter()) as log:
        async with serving(enable_log_requests=True, max_log_len=7, api_key=[KEY]) as s:
            body = {"model": MODEL, "prompt": "abcdefgh" + PROMPT, "max_tokens": 3}
            await s.post("/v1/completions", body, authorization=f"Bearer {KEY}")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (line,) = [line for line in lines if "prompt" in line]
    assert line["prompt"] == "abcdefg"
    assert "max_tokens=3" in line["params"]
    assert KEY not in log.getvalue()


def test_the_configuration_does_not_show_its_keys() -> None:
    assert KEY not in repr(ServerConfig(api_key=[KEY]))
