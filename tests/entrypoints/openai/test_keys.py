from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.engine.input_processor import CheckedRequest
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.keys import MAX_KEYS, KeyRing
from octavo.entrypoints.openai.ledger import Ledger
from octavo.errors import ConfigError
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import MODEL, Reply, Running, eventually, serving

ALICE = {"authorization": "Bearer alices-secret"}
BOB = {"authorization": "Bearer bobs-secret"}
USER = [{"role": "user", "content": "SAY:abc"}]


def key_file(path: Path, *keys: dict[str, Any]) -> str:
    file = path / "keys.json"
    file.write_text(json.dumps({"keys": keys}))
    file.chmod(0o600)
    return str(file)


def alice(**limits: int) -> dict[str, Any]:
    return {"name": "alice", "key": "alices-secret", **limits}


def bob(**limits: int) -> dict[str, Any]:
    digest = hashlib.sha256(b"bobs-secret").hexdigest()
    return {"name": "bob", "sha256": digest.upper(), **limits}


def test_keys_and_digests(tmp_path: Path) -> None:
    ring = KeyRing(["x"], key_file(tmp_path, alice(), bob()))
    named = {token: ring.find(token) for token in (b"alices-secret", b"bobs-secret", b"x")}
    assert [key and key.name for key in named.values()] == ["alice", "bob", "key-2d711642"]
    digest = hashlib.sha256(b"bobs-secret").hexdigest().encode()
    for wrong in (b"", b"alice", b"alices-secre", b"ALICES-SECRET", digest, b"\xff"):
        assert ring.find(wrong) is None
    assert not any("secret" in repr(vars(key)) for key in ring)


def test_a_key_without_a_name_has_the_same_one_after_a_restart() -> None:
    (one,), (two,) = KeyRing(["abc", "abc"]), KeyRing(["abc"])
    assert one.name == two.name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], "has no keys"),
        ([{"name": "a"}], "'a' must be given as 'key' or as 'sha256'"),
        ([{**alice(), "sha256": "0" * 64}], "must be given as 'key' or as 'sha256'"),
        ([{"name": "a", "sha256": "12"}], "64 hexadecimal digits"),
        ([{"name": "a", "sha256": "g" * 64}], "64 hexadecimal digits"),
        ([{"name": "a", "key": ""}], "is empty"),
        ([{"name": "a", "sha256": hashlib.sha256().hexdigest()}], "SHA-256 of nothing"),
        ([{"name": "a", "key": " s"}], "white space"),
        ([{"name": "a b", "key": "s"}], "name 'a b' must be 1…64"),
        ([{"name": "", "key": "s"}], "must be 1…64"),
        ([{"name": "x" * 65, "key": "s"}], "must be 1…64"),
        ([alice(), {**bob(), "name": "alice"}], "have the same name"),
        ([alice(), {**alice(), "name": "b"}], "'alice' and 'b' have the same key"),
        ([alice(requests_per_minute=0)], "requests_per_minute=0; it must be at least 1"),
        ([alice(tokens_per_minute=-5)], "tokens_per_minute=-5"),
        ([alice(max_concurrent_requests=0)], "max_concurrent_requests=0"),
        ([alice(requests_per_hour=1)], "requests_per_hour"),
        ([{**alice(), "tokens_per_minute": "many"}], "tokens_per_minute"),
        ([{**alice(), "tokens_per_minute": 1.5}], "tokens_per_minute"),
        ([alice(priority=1)], "--scheduling-policy priority"),
        ([{"name": f"k{i}", "key": f"k{i}"} for i in range(MAX_KEYS + 1)], "remove some"),
        ([{"name": 1, "key": "alices-secret"}], "must be JSON like"),
    ],
)
def test_wrong_files(tmp_path: Path, keys: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KeyRing(path=key_file(tmp_path, *keys))
    assert message in str(raised.value)
    assert "alices-secret" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"keys": {}}', "\x00", '{"key": []}'])
def test_files_that_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="must be JSON like"):
        KeyRing(path=str(path))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            KeyRing(path=str(path))


def test_a_readable_file_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = key_file(tmp_path, alice())
    with caplog.at_level(logging.WARNING, "octavo"):
        KeyRing(path=path)
        assert not caplog.messages
        os.chmod(path, 0o644)
        KeyRing(path=path)
    assert "chmod 600" in caplog.text
    caplog.clear()
    os.chmod(key_file(tmp_path, bob()), 0o644)
    KeyRing(path=path)
    assert not caplog.messages  # digests are no secret


def test_reload(tmp_path: Path) -> None:
    path = key_file(tmp_path, alice(requests_per_minute=5), bob())
    ring = KeyRing(["x"], path)
    account = ring.find(b"alices-secret").account  # type: ignore[union-attr]
    account.enter()
    key_file(tmp_path, {"name": "alice", "key": "new", "requests_per_minute": 2})
    ring.reload()
    assert ring.find(b"alices-secret") is None
    assert ring.find(b"bobs-secret") is None
    assert ring.find(b"x") is not None
    assert ring.find(b"new").account is account  # type: ignore[union-attr]
    assert dict(account.headers())[b"x-ratelimit-remaining-requests"] == b"1"
    Path(path).write_text("{")
    with pytest.raises(ConfigError):
        ring.reload()
    assert ring.find(b"new") is not None


def test_front_ends_share_the_limits(tmp_path: Path) -> None:
    path = key_file(tmp_path, alice(requests_per_minute=2), bob(requests_per_minute=1))
    rings = [
        KeyRing(path=path, ledger=Ledger(tmp_path / "ledger", front_end=i, num_front_ends=2))
        for i in range(2)
    ]
    (one, bobs), (two, _) = rings
    one.account.enter()
    two.account.enter()
    bobs.account.enter()
    for ring in rings:
        ring.reload()
        with pytest.raises(APIError, match="2 requests per minute"):
            ring.find(b"alices-secret").account.enter()  # type: ignore[union-attr]


def ring(tmp_path: Path, *keys: dict[str, Any], **options: Any) -> KeyRing:
    return KeyRing(path=key_file(tmp_path, *keys), **options)


async def complete(s: Running, who: dict[str, str], prompt: str = "SAY:ok", **body: Any) -> Reply:
    body = {"model": MODEL, "prompt": prompt, **body}
    return await s.post("/v1/completions", body, **who)


async def test_requests_over_the_limit(tmp_path: Path) -> None:
    keys = ring(tmp_path, alice(requests_per_minute=2), bob())
    async with serving(keys=keys) as s:
        assert (await complete(s, ALICE)).headers["x-ratelimit-remaining-requests"] == "1"
        assert (await s.get("/v1/models", **ALICE)).status == 200
        for path in ("/v1/models", "/metrics", "/nope", "/version"):  # whatever the route
            reply = await s.get(path, **ALICE)
            assert reply.status == 429
            assert reply.error["code"] == "rate_limit_exceeded"
            assert reply.error["type"] == "rate_limit_error"
            assert 1 <= int(reply.headers["retry-after"]) <= 30
            assert reply.headers["x-ratelimit-limit-requests"] == "2"
            assert reply.headers["x-ratelimit-remaining-requests"] == "0"
        reply = await complete(s, BOB)
        assert reply.status == 200
        assert not any(name.startswith("x-ratelimit") for name in reply.headers)
        assert (await s.get("/health", **ALICE)).status == 200


async def test_tokens_over_the_limit(tmp_path: Path) -> None:
    """The prompt counts when it comes, the output at its end; a debt has to be paid."""
    keys = ring(tmp_path, alice(tokens_per_minute=100))
    async with serving(keys=keys) as s:
        reply = await complete(s, ALICE, "x" * 40, max_tokens=10)
        assert reply.headers["x-ratelimit-remaining-tokens"] == "50"
        reply = await complete(s, ALICE, "x" * 60, max_tokens=1)
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(reply.headers["retry-after"]) <= 6
        assert (await complete(s, ALICE, "x" * 40, max_tokens=500)).status == 200
        assert (await s.get("/v1/models", **ALICE)).status == 200  # which needs none
        reply = await complete(s, ALICE, "x", max_tokens=1)
        assert reply.status == 429  # -490 now
        assert int(reply.headers["retry-after"]) > 200
        assert s.server.admission.rejections["queued_tokens"] == 0


async def test_all_that_is_generated_counts(tmp_path: Path) -> None:
    """Completions that share a prompt, those that are not returned, and those nobody waited for."""
    keys = ring(tmp_path, alice())
    (key,) = keys
    engine = FakeEngine(step_seconds=0.001)
    async with serving(engine, keys=keys) as s:
        await complete(s, ALICE, "x" * 10, max_tokens=5, n=2)
        assert (key.account.prompt_tokens, key.account.generation_tokens) == (10, 10)
        await complete(s, ALICE, "x" * 10, max_tokens=5, n=1, best_of=3)
        assert (key.account.prompt_tokens, key.account.generation_tokens) == (20, 25)
        task = asyncio.ensure_future(complete(s, ALICE, "x" * 10, max_tokens=4000))
        await eventually(lambda: s.engine.stats().generation_tokens > 40)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: s.engine.is_idle and s.server.in_flight == 0)
        assert key.account.generation_tokens == s.engine.stats().generation_tokens > 40
        assert key.account.num_concurrent == 0


async def test_requests_at_a_time(tmp_path: Path) -> None:
    keys = ring(tmp_path, alice(max_concurrent_requests=2), bob())
    engine = FakeEngine(step_seconds=0.001)
    engine.gate.clear()
    async with serving(engine, keys=keys) as s:
        running = [
            asyncio.ensure_future(complete(s, ALICE, "x", stream=stream, max_tokens=3))
            for stream in (False, True)
        ]
        await eventually(lambda: s.server.in_flight == 2)
        assert (await complete(s, ALICE)).status == 429
        assert (await s.get("/v1/models", **BOB)).status == 200
        engine.gate.set()
        assert [reply.status for reply in await asyncio.gather(*running)] == [200, 200]
        await eventually(lambda: s.server.in_flight == 0)
        assert (await complete(s, ALICE)).status == 200


async def test_a_refused_request_counts_nothing(tmp_path: Path) -> None:
    keys = ring(tmp_path, alice(tokens_per_minute=50, max_concurrent_requests=1))
    (key,) = keys
    async with serving(keys=keys) as s:
        for _ in range(3):
            assert (await complete(s, ALICE, "x" * 60)).status == 429
        reply = await complete(s, ALICE, "x" * 60)
        assert reply.headers["x-should-retry"] == "false"
        assert reply.headers["x-ratelimit-remaining-tokens"] == "50"
        assert key.account.prompt_tokens == key.account.num_concurrent == 0


async def test_priorities(tmp_path: Path) -> None:
    """Nobody gets before what his key allows."""
    keys = ring(tmp_path, alice(priority=5), bob(), policy="priority")
    engine = FakeEngine(scheduling_policy="priority")
    seen: list[int] = []
    run = engine.run

    def watched(request: CheckedRequest, *args: Any, **options: Any) -> Any:
        seen.append(request.priority)
        return run(request, *args, **options)

    engine.run = watched  # type: ignore[method-assign, assignment]
    async with serving(engine, keys=keys) as s:
        for who in (ALICE, BOB):
            for fields in ({}, {"priority": -3}, {"priority": 7}):
                assert (await complete(s, who, **fields)).status == 200
    assert seen == [5, 5, 7, 0, -3, 7]


async def test_metrics(tmp_path: Path) -> None:
    keys = ring(tmp_path, alice(requests_per_minute=1), bob())
    async with serving(keys=keys) as s:
        await complete(s, ALICE, "x" * 10, max_tokens=5)
        await complete(s, ALICE)
        text = (await s.get("/metrics", **BOB)).body.decode()
        for line in (
            'api_key_requests_total{key="alice"} 1.0',
            'api_key_requests_total{key="bob"} 1.0',
            'api_key_prompt_tokens_total{key="alice"} 10.0',
            'api_key_generation_tokens_total{key="alice"} 5.0',
            'api_key_rejections_total{key="alice",reason="key_requests"} 1.0',
            'admission_rejections_total{reason="key_requests"} 1.0',
        ):
            assert f"octavo:{line}\n" in text
        assert "secret" not in text


async def test_the_official_client_waits_and_comes_again(tmp_path: Path) -> None:
    keys = ring(tmp_path, alice(requests_per_minute=60))
    (key,) = keys
    async with serving(keys=keys) as s:
        for _ in range(60):
            key.account.enter()
            key.account.leave()
        url = f"{s.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="alices-secret") as client:
            with pytest.raises(openai.RateLimitError) as raised:
                await client.with_options(max_retries=0).models.list()
            assert raised.value.code == "rate_limit_exceeded"
            assert len((await client.models.list()).data) == 1  # one a second


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "SAY:abc", "max_tokens": 10**6}),
        ("/v1/completions", {"prompt": [[65, 66], [99_999]]}),
        ("/v1/completions", {"prompt": "SAY:abc", "stop_regex": "(a"}),
        ("/v1/completions", {"prompt": "SAY:abc", "stop_token_ids": [99_999]}),
        ("/v1/completions", {"prompt": "SAY:abc", "cache_salt": ""}),
        ("/v1/completions", {"prompt": "SAY:abc", "vllm_xargs": {"a": 1}}),
        ("/v1/completions", {"prompt": "a", "use_beam_search": True, "n": 128, "max_tokens": 4000}),
        ("/v1/completions", {"prompt": ["a"] * 513, "n": 2}),
        (
            "/v1/chat/completions",
            {
                "messages": USER,
                "response_format": {"type": "structural_tag", "structures": [], "triggers": []},
            },
        ),
        ("/v1/messages", {"messages": USER, "max_tokens": 10**6}),
        ("/v1/responses", {"input": "SAY:abc", "max_output_tokens": 10**6}),
        ("/inference/v1/generate", {"token_ids": [65, 99_999]}),
        ("/v1/embeddings", {"input": ["abc", "x" * 5000]}),
        ("/v1/embeddings", {"input": [[65], [99_999]]}),
        ("/v1/embeddings", {"input": "abc", "dimensions": 10**6}),
        ("/v1/embeddings", {"input": "abc", "cache_salt": "x" * 129}),
        ("/score", {"text_1": "abc", "text_2": ["abc", ""]}),
        ("/rerank", {"query": "abc", "documents": ["abc", "x" * 5000]}),
    ],
    ids=str,
)
async def test_what_is_refused_costs_no_tokens(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    keys = KeyRing(path=key_file(tmp_path, alice(tokens_per_minute=10_000)))
    async with serving(keys=keys) as s:
        (key,) = keys
        reply = await s.post(path, body, **ALICE)
        assert reply.status == 400, reply.body
        assert key.account.prompt_tokens == 0
        assert reply.headers["x-ratelimit-remaining-tokens"] == "10000"
        assert (await s.post("/v1/completions", {"prompt": "SAY:abc"}, **ALICE)).status == 200
        assert key.account.prompt_tokens > 0
