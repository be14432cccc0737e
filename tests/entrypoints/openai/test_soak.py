"""The server on the default model for minutes: what only numbers show."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from octavo import LLM, SamplingParams
from tests.entrypoints.openai.harness import close, request_bytes
from tests.entrypoints.openai.live import MODEL_OPTIONS, Live, live

pytestmark = [pytest.mark.model, pytest.mark.slow]

PIECES = [
    *(
        "Zoë ",
        "你好",
        "日本語の",
        "👨\u200d👩\u200d👧\u200d👦",
        "🇫🇷",
        "e\u0301",
        "🌶\ufe0f",
        "\u200d",
    ),
    *("a\u0300\u0316", "नमस्ते", "한국어", "שלום", "\U0010ffff", "Repeat: 😀😀😀 "),
    *("the ", "of ", "quick brown ", "\n", "1, 2, 3, ", "def f(x):\n"),
]

LONG = {"prompt": "Once", "max_tokens": 30, "ignore_eos": True}


@pytest.fixture(params=[1, 2], ids=["depth1", "depth2"])
def server(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[Live]:
    # A small KV cache: its memory is touched for the first time in the first rounds.
    options = ("--pipeline-depth", str(request.param), "--kv-cache-memory-bytes", str(2**27))
    with live(*options) as server:
        yield server


def client_of(server: Live) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


# -------------------------------------------------------------------- streamed = not streamed


async def test_streams_join_to_the_whole(server: Live) -> None:
    """100 random prompts for each depth, stop strings cut at every place of what is said."""
    rng = random.Random(2)
    limit = asyncio.Semaphore(8)
    async with client_of(server) as client:

        async def one(number: int) -> None:
            async with limit:
                await _compare(client, number, random.Random(rng.random()))

        await asyncio.gather(*[one(number) for number in range(100)])
    await asyncio.to_thread(server.until_idle)


async def _compare(client: AsyncOpenAI, number: int, rng: random.Random) -> None:
    prompt = "".join(rng.choices(PIECES, k=rng.randrange(1, 8)))
    options: dict[str, Any] = {
        "model": "smollm2-135m",
        "max_tokens": rng.randrange(1, 40),
        "temperature": number % 3 * 0.7,
        "seed": number,
        "extra_body": {"return_token_ids": True, "ignore_eos": number % 5 == 0},
    }
    read = _completion if number % 2 else _chat
    if number % 2:
        options |= {"prompt": prompt, "logprobs": number % 3}
    else:
        messages = [{"role": "user", "content": prompt}]
        options |= {"messages": messages, "logprobs": True, "top_logprobs": number % 3}
    said = (await read(client, False, options))[0]
    if said:
        start = rng.randrange(len(said))
        options["stop"] = said[start : start + rng.randrange(1, 9)]
        options["extra_body"]["include_stop_str_in_output"] = number % 4 == 1
    whole = await read(client, False, options)
    streamed = await read(client, True, options)
    assert streamed == whole, options
    if said:
        at = said.find(options["stop"])
        at += len(options["stop"]) if number % 4 == 1 else 0
        assert (whole[0], whole[3]) == (said[:at], "stop"), options


async def _completion(
    client: AsyncOpenAI, stream: bool, options: dict[str, Any]
) -> tuple[Any, ...]:
    """(text, ids, logprobs, finish reason)"""
    answer: Any = await client.completions.create(stream=stream, **options)
    text, ids, logprobs, reason = "", [], [], None
    async for choice in _choices(answer, stream):
        text += choice.text
        ids += choice.token_ids
        entries = choice.logprobs
        logprobs += zip(entries.tokens, entries.token_logprobs, entries.text_offset)
        logprobs += entries.top_logprobs or []
        reason = choice.finish_reason or reason
    return text, ids, sorted(map(str, logprobs)), reason


async def _chat(client: AsyncOpenAI, stream: bool, options: Any) -> tuple[Any, ...]:
    """(text, ids, logprobs, finish reason)"""
    answer: Any = await client.chat.completions.create(stream=stream, **options)
    text, ids, logprobs, reason = "", [], [], None
    async for choice in _choices(answer, stream):
        text += (choice.delta if stream else choice.message).content or ""
        ids += getattr(choice, "token_ids", None) or []
        logprobs += (choice.logprobs.content or []) if choice.logprobs else []
        reason = choice.finish_reason or reason
    return text, ids, logprobs, reason


async def _choices(answer: Any, stream: bool) -> Any:
    if stream:
        async for chunk in answer:
            for choice in chunk.choices:
                yield choice
    else:
        yield answer.choices[0]


# -------------------------------------------------------------------- the same bits as offline


async def test_answers_are_those_of_the_offline_engine(server: Live, smollm2_path: Path) -> None:
    """Greedy and seeded, under a concurrent mixed load: ids and logprobs bit for bit."""
    rng = random.Random(3)
    prompts = ["".join(rng.choices(PIECES, k=rng.randrange(1, 60))) for _ in range(16)]
    params = [
        SamplingParams(
            temperature=0.9 if i % 2 else 0.0,
            seed=i if i % 2 else None,
            max_tokens=rng.randrange(5, 30),
            logprobs=2,
            ignore_eos=True,
        )
        for i in range(len(prompts))
    ]
    with LLM(str(smollm2_path), **MODEL_OPTIONS) as llm:
        expected = [llm.generate([p], s)[0].outputs[0] for p, s in zip(prompts, params)]

    async with client_of(server) as client:

        async def one(i: int) -> None:
            await asyncio.sleep(i % 5 * 0.2)
            options = {
                "model": "smollm2-135m",
                "prompt": prompts[i],
                "temperature": params[i].temperature,
                "max_tokens": params[i].max_tokens,
                "seed": params[i].seed,
                "logprobs": 2,
                "extra_body": {"return_token_ids": True, "ignore_eos": True},
            }
            answer: Any = await client.completions.create(**options)  # type: ignore[call-overload]
            choice = answer.choices[0]
            assert choice.token_ids == expected[i].token_ids
            rows = expected[i].logprobs
            assert rows is not None
            assert choice.logprobs.token_logprobs == [
                row[token_id].logprob for token_id, row in zip(expected[i].token_ids, rows)
            ]

        await asyncio.gather(*[one(i) for i in range(len(prompts))], _noise(server))
    await asyncio.to_thread(server.until_idle)


async def _noise(server: Live) -> None:
    """Load of another kind: long prompts, many completions, streams that are left."""
    await asyncio.gather(
        _stream(server, {"prompt": "word " * 600, "max_tokens": 8}),
        _stream(server, {"prompt": "a", "n": 8, "seed": 5, "max_tokens": 20}),
        *[_stream(server, LONG, read=700) for _ in range(6)],
    )


# -------------------------------------------------------------------- streams that are dropped


async def _stream(server: Live, fields: dict[str, Any], *, read: int | None = None) -> int:
    """A stream; with `read` it is left after so many bytes. Returns how often it said [DONE]."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    body = {"stream": True, **fields}
    data = request_bytes("POST", "/v1/completions", body, {"connection": "close"})
    writer.write(data)
    answer = await (reader.read(-1) if read is None else reader.readexactly(read))
    await close(writer)
    return answer.count(b"[DONE]")


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


async def test_dropped_streams_leave_nothing(server: Live) -> None:
    """Ten rounds of 64 streams, a third dropped; memory is flat once every KV block has been
    used, and the metrics count what happened."""
    rng = random.Random(4)
    resident = []
    for number in range(10):
        dropped = set(rng.sample(range(64), 21))
        done = await asyncio.gather(
            *[
                _stream(server, LONG, read=rng.randrange(1, 3000) if i in dropped else None)
                for i in range(64)
            ]
        )
        assert [n for i, n in enumerate(done) if i not in dropped] == [1] * 43
        await asyncio.to_thread(server.until_idle)
        resident.append((_resident(server.process.pid), _resident(server.core)))
        print(number, *(f"{r / 2**20:.1f} MiB" for r in resident[-1]))
    for before, after in zip(resident[5], resident[-1]):
        assert after - before < 2 * 2**20
    await asyncio.to_thread(_check_counts, server)


def _check_counts(server: Live) -> None:
    assert server.metric("request_aborts_total", reason="disconnect") == 210
    assert server.metric("request_success_total", finished_reason="length") == 430
    assert server.metric("prompt_tokens_total") == 640
