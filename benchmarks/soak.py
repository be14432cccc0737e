"""Many streams of every kind for minutes: is each answer right, is memory flat, what does it cost?

    python benchmarks/soak.py [--seconds 300] [--streams 256] [--output FILE]

A set of requests (greedy, seeded, penalties, logprobs, n = 2, stop strings, JSON schemas, regexes;
completions and chats) is answered offline first, as fast as the engine can. Then as many clients as
there are streams send them to `octavo serve` again and again in random order; some leave in the
middle. Every stream that is read to its end must say what the offline engine said. Nothing comes
from the prefix cache: each request has a salt of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from octavo import LLM
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.entrypoints.bench.report import machine
from octavo.entrypoints.bench.server_process import ServerProcess
from octavo.entrypoints.bench.streams import request_bytes
from octavo.entrypoints.http_client import Endpoint
from octavo.version import __version__

NUM_REQUESTS = 384
KV_CACHE_BYTES = 3 << 29
"""Small enough to be touched, all of it, in the first minute: memory that grows later is a leak."""
_OK = b"HTTP/1.1 200"
LEAVES = 0.1
"""Share of the streams whose client goes in the middle."""
_WORDS = (
    "the of and to in is was that for on with as be at by this from or an it not have which you "
    "were but all one their more about when there can also some time two first may new over would"
)
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "size", "count"],
    "additionalProperties": False,
}
_KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 50},
    {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
    {"temperature": 0.7, "logprobs": 2},
    {"temperature": 0.9, "n": 2},
    {"temperature": 0.5, "stop": ["the", "\n"]},
    {"temperature": 0.8, "structured_outputs": {"json": _SCHEMA}},
    {"temperature": 1.0, "structured_outputs": {"regex": "[a-z]{3,9}( [a-z]{2,9}){4,20}\\."}},
)


@dataclass(frozen=True)
class Work:
    """A request, and what is right.

    Attributes:
        path, body: for the server.
        expected: text by index.
    """

    path: str
    body: dict[str, Any]
    expected: dict[int, str]


def offline(model: str, options: dict[str, Any], seed: int) -> tuple[list[Work], dict[str, float]]:
    """The requests with their answers, and how fast those came."""
    draw = random.Random(seed)
    bodies, prompts, params = [], [], []
    with LLM(model, **options) as llm:
        tokenizer = llm.get_tokenizer()
        for i in range(NUM_REQUESTS):
            text = " ".join(draw.choices(_WORDS.split(), k=draw.randrange(8, 120)))
            fields = {
                **_KINDS[i % len(_KINDS)],
                "max_tokens": draw.randrange(16, 96),
                "seed": i,
            }
            is_chat = draw.random() < 0.3 and "logprobs" not in fields
            messages = [{"role": "user", "content": text}]
            bodies.append({**fields, **({"messages": messages} if is_chat else {"prompt": text})})
            prompts.append(
                {"prompt_token_ids": tokenizer.apply_chat_template(messages)} if is_chat else text
            )
            if "structured_outputs" in fields:
                structured = StructuredOutputsParams(**fields["structured_outputs"])
                fields["structured_outputs"] = structured
            params.append(llm.get_default_sampling_params(**fields))
        llm.generate(prompts[:16], params[:16])  # first touches, compiled grammars
        llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
    works = [
        Work(
            path="/v1/chat/completions" if "messages" in body else "/v1/completions",
            body=body,
            expected={c.index: c.text for c in output.outputs},
        )
        for body, output in zip(bodies, outputs)
    ]
    made = sum(len(c.token_ids) for o in outputs for c in o.outputs)
    return works, {"seconds": seconds, "output_tokens": made, "tokens_per_second": made / seconds}


@dataclass
class Tally:
    """What the streams brought."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def client(
    endpoint: Endpoint, works: Sequence[Work], number: int, until: float, tally: Tally
) -> None:
    """One stream after another until the time is over."""
    draw = random.Random(number)
    while time.perf_counter() < until:
        work = draw.choice(works)
        leave_after = draw.randrange(1, 4000) if draw.random() < LEAVES else None
        salt = f"{number}-{draw.getrandbits(64):x}"
        body = {**work.body, "stream": True, "cache_salt": salt}
        try:
            data = await _read(endpoint, request_bytes(endpoint, work.path, body), leave_after)
        except OSError as error:
            tally.counts["lost"] += 1
            tally.wrong.append(f"{work.body}: {error}")
            continue
        if data is None:
            tally.counts["left"] += 1
            continue
        said = _texts(data)
        if said == work.expected:
            tally.counts["right"] += 1
        else:
            tally.counts["wrong"] += 1
            tally.wrong.append(f"{work.body}: {said} instead of {work.expected}")


async def _read(endpoint: Endpoint, request: bytes, leave_after: int | None) -> bytes | None:
    """A stream to its end; None where the client has left after so many bytes."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    data = bytearray()
    try:
        writer.write(request)
        while not data.endswith(b"\r\n0\r\n\r\n"):
            piece = await reader.read(1 << 16)
            if not piece:
                raise ConnectionError(f"the stream broke off after {len(data)} bytes")
            data += piece
            if len(data) >= len(_OK) and not data.startswith(_OK):
                raise ConnectionError(f"no stream: {bytes(data[:80])!r}")
            if leave_after is not None and len(data) > leave_after:
                return None
        return bytes(data)
    finally:
        writer.transport.abort()


def _texts(data: bytes) -> dict[int, str]:
    """Text by index. Without a proper end, nothing."""
    texts: dict[int, str] = {}
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
    if not lines or lines.pop().strip() != b"[DONE]":
        return {-1: data.decode("utf-8", "replace")}
    for line in lines:
        for choice in json.loads(line).get("choices", ()):
            said = choice.get("text") or choice.get("delta", {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + said
    return texts


def _generated(endpoint: Endpoint) -> float:
    """Tokens that the engine has made so far."""
    with urlopen(f"{endpoint.url}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("octavo:generation_tokens_total"):
                return float(line.rpartition(" ")[2])
    raise KeyError("generation_tokens_total")


async def online(
    server: ServerProcess, works: Sequence[Work], num_streams: int, seconds: float
) -> dict[str, Any]:
    """The load, and what came of it."""
    endpoint, tally = Endpoint(server.url), Tally()
    before, client_before = _generated(endpoint), time.process_time()
    start = time.perf_counter()
    until = start + seconds
    tasks = [
        asyncio.create_task(client(endpoint, works, i, until, tally)) for i in range(num_streams)
    ]
    memory = []
    while time.perf_counter() < until:
        await asyncio.sleep(min(5.0, max(0.1, until - time.perf_counter())))
        memory.append(server.resident_bytes())
    tokens = await asyncio.to_thread(_generated, endpoint) - before
    measured = time.perf_counter() - start
    client_cpu = time.process_time() - client_before
    await asyncio.gather(*tasks)
    at_first = memory[len(memory) // 5]
    return {
        "seconds": measured,
        **{name: tally.counts[name] for name in ("right", "wrong", "lost", "left")},
        "first_wrong": tally.wrong[:3],
        "tokens_per_second": tokens / measured,
        "client_cpu_share": client_cpu / measured,
        "resident_mib_at_a_fifth": {k: v / 2**20 for k, v in at_first.items()},
        "resident_mib_at_the_end": {k: v / 2**20 for k, v in memory[-1].items()},
    }


def main() -> int:
    """Run it; print and keep the numbers. Returns 1 where an answer was wrong or lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--api-server-count", type=int, default=1)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    engine = {
        "max_num_seqs": arguments.streams,
        "max_model_len": 2048,
        "kv_cache_memory_bytes": KV_CACHE_BYTES,
    }
    works, alone = offline(arguments.model, engine, seed=0)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in engine.items()]
    options += [f"--api-server-count={arguments.api_server_count}"]
    with ServerProcess([arguments.model, *options]) as server:
        served = asyncio.run(online(server, works, arguments.streams, arguments.seconds))
    results = {
        "benchmark": "soak",
        "version": __version__,
        "machine": machine(),
        "settings": {**engine, "streams": arguments.streams, "requests": NUM_REQUESTS},
        "offline": alone,
        "served": served,
        "served_over_offline": served["tokens_per_second"] / alone["tokens_per_second"],
    }
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")
    return 1 if served["wrong"] or served["lost"] or not served["right"] else 0


if __name__ == "__main__":
    sys.exit(main())
