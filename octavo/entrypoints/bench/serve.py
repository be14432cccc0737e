"""A server under load: latencies and throughput as its clients see them, and what a token costs.

The numbers are those of vLLM's `bench serve`. TTFT is the time to the first token, TPOT the mean
time per token after the first of one request, ITL each single time between two events of a stream,
E2EL the whole time of a request.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.entrypoints.bench.report import Report, machine
from octavo.entrypoints.bench.streams import Connections, StreamResult, request_bytes
from octavo.entrypoints.http_client import Endpoint, HTTPError
from octavo.errors import ConfigError, OctavoError, shown

CpuSeconds = Callable[[], "dict[str, float] | None"]

_PATH = "/v1/completions"
_MAX_PROMPT_FILE_BYTES = 256 << 20
_WORDS = (
    "the of and to in is was that for on are with as be at by this from or an it not have which "
    "you were but all one their more about when there can also other some time two first may new "
    "over would people only many than most used into between such after year world city water "
    "school house family music power system light number state history river mountain language "
    "science market theory island winter summer garden letter window engine paper silver 0 1 2 3"
)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The load.

    Attributes:
        input_len: tokens of a random prompt.
        output_len: tokens to generate; the model's end of text is ignored.
        prompt_file: prompts from a file, one per line, in place of random ones: text, or JSON
            with a "prompt".
        request_rate: requests per second, arriving as a Poisson process; inf sends all at once.
        max_concurrency: most requests in progress; None is no limit.
    """

    num_prompts: int = 256
    input_len: int = 128
    output_len: int = 128
    prompt_file: Path | None = None
    request_rate: float = math.inf
    max_concurrency: int | None = None
    temperature: float = 0.0
    seed: int = 0


def run(
    endpoint: Endpoint, options: ServeOptions, *, cpu_seconds: CpuSeconds = lambda: None
) -> ServeReport:
    """Send the load and measure. One short request goes before, not measured.

    Args:
        cpu_seconds: CPU time so far of the server's processes by name, if it can be had.

    Raises:
        HTTPError: the server cannot be reached, or refuses the first request.
        ConfigError: the options or the prompt file are wrong.
    """
    if not options.request_rate > 0:
        raise ConfigError(f"request_rate={options.request_rate} must be more than 0")
    rng = np.random.default_rng(options.seed)
    model = endpoint.only_model()
    prompts = _prompts(endpoint, model, options, rng)
    bodies = [_body(model, prompt, options) for prompt in prompts]
    endpoint.post(_PATH, _body(model, prompts[0], options) | {"max_tokens": 1, **_NO_STREAM})
    requests = [request_bytes(endpoint, _PATH, body) for body in bodies]
    gaps = rng.exponential(1 / options.request_rate, len(requests))
    gaps[0] = 0.0
    cpu_before, own_before = cpu_seconds(), time.process_time()
    start = time.perf_counter()
    results = _run_loop(_send_all(endpoint, requests, np.cumsum(gaps), options.max_concurrency))
    duration = time.perf_counter() - start
    own, cpu_after = time.process_time() - own_before, cpu_seconds()
    measured = _summary(results, duration)
    if cpu_before is not None and cpu_after is not None:
        spent = {name: cpu_after[name] - cpu_before[name] for name in cpu_after}
        measured |= _cpu_summary(spent, measured["total_output_tokens"])
    measured["client_cpu_s"] = own
    config = {"model": model, "url": endpoint.url, **_plain(options)}
    return ServeReport(benchmark="serve", config=config, results=measured, machine=machine())


# -------------------------------------------------------------------- the load

_NO_STREAM = {"stream": False, "stream_options": None}


def _body(model: str, prompt: str | list[int], options: ServeOptions) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": options.output_len,
        "temperature": options.temperature,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _prompts(
    endpoint: Endpoint, model: str, options: ServeOptions, rng: np.random.Generator
) -> list[str] | list[list[int]]:
    count = options.num_prompts
    if options.prompt_file is not None:
        texts = read_prompts(options.prompt_file)
        return [texts[i % len(texts)] for i in range(count)]
    try:
        tokens = endpoint.post("/tokenize", {"model": model, "prompt": _WORDS})["tokens"]
        ids = sorted(set(map(int, tokens)))
    except (HTTPError, KeyError, TypeError, ValueError):  # a server without this route
        words = _WORDS.split()
        return [" ".join(rng.choice(words, options.input_len)) for _ in range(count)]
    return [rng.choice(ids, options.input_len).tolist() for _ in range(count)]


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file: lines of text, or (*.jsonl) of JSON with a "prompt". Raises
    ConfigError."""
    try:
        if path.stat().st_size > _MAX_PROMPT_FILE_BYTES:
            raise ConfigError(f"{path} has more than {_MAX_PROMPT_FILE_BYTES} bytes")
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    prompts = [_json_prompt(path, line) for line in lines] if path.suffix == ".jsonl" else lines
    if not prompts:
        raise ConfigError(f"{path} holds no prompt")
    return prompts


def _json_prompt(path: Path, line: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str) or not prompt:
        raise ConfigError(f'{path}: {shown(line)} is no JSON object with a text "prompt"')
    return prompt


async def _send_all(
    endpoint: Endpoint, requests: Sequence[bytes], times: np.ndarray, max_concurrency: int | None
) -> list[StreamResult]:
    """Send each request at its time (seconds from now), as far as `max_concurrency` allows."""
    connections = Connections(endpoint)
    slots = asyncio.Semaphore(max_concurrency or len(requests))

    async def send(request: bytes) -> StreamResult:
        async with slots:
            return await connections.stream(request)

    tasks = []
    start = time.perf_counter()
    for request, when in zip(requests, times.tolist()):
        if (delay := start + when - time.perf_counter()) > 0:
            await asyncio.sleep(delay)
        tasks.append(asyncio.ensure_future(send(request)))
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        connections.close()


def _run_loop(work: Any) -> Any:
    import uvloop

    return uvloop.run(work)


# -------------------------------------------------------------------- the numbers


def _summary(results: Sequence[StreamResult], duration: float) -> dict[str, Any]:
    done = [r for r in results if r.error is None]
    failed = [r for r in results if r.error is not None]
    if not done:
        raise OctavoError(f"all {len(results)} requests failed; the first: {failed[0].error}")
    inputs = sum(r.prompt_tokens for r in done)
    outputs = sum(r.output_tokens for r in done)
    first = [r.arrivals[0][0] - r.start for r in done if r.arrivals]
    per_token = [
        (r.end - r.arrivals[0][0]) / (r.output_tokens - 1)
        for r in done
        if r.arrivals and r.output_tokens > 1
    ]
    return {
        "completed": len(done),
        "failed": len(failed),
        **({"first_error": failed[0].error} if failed else {}),
        "duration_s": duration,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "events_per_token": sum(r.num_events for r in done) / max(outputs, 1),
        "request_throughput": len(done) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        **_statistics("ttft", first),
        **_statistics("tpot", per_token),
        **_statistics("itl", [gap for r in done for gap in _gaps(r)]),
        **_statistics("e2el", [r.end - r.start for r in done]),
    }


def _gaps(result: StreamResult) -> list[float]:
    """Seconds between events; those that came in one read have nothing between them."""
    gaps: list[float] = []
    before = None
    for now, count in result.arrivals:
        if before is not None:
            gaps.append(now - before)
        gaps += [0.0] * (count - 1)
        before = now
    return gaps


def _statistics(name: str, seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    median, p99 = np.percentile(seconds, [50, 99])
    return {
        f"mean_{name}_ms": 1e3 * float(np.mean(seconds)),
        f"median_{name}_ms": 1e3 * float(median),
        f"p99_{name}_ms": 1e3 * float(p99),
    }


def _cpu_summary(spent: dict[str, float], num_tokens: int) -> dict[str, float]:
    """CPU µs per generated token, by process and together; what its prompt and request cost is
    in it."""
    each = {f"{name}_cpu_us_per_token": 1e6 * s / num_tokens for name, s in spent.items()}
    return each | {"server_cpu_us_per_token": sum(each.values())}


def _plain(options: ServeOptions) -> dict[str, Any]:
    values = asdict(options)
    values["prompt_file"] = None if options.prompt_file is None else str(options.prompt_file)
    values["request_rate"] = "inf" if math.isinf(options.request_rate) else options.request_rate
    return values


# -------------------------------------------------------------------- the table

_ROWS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "first_error": "First error",
    "duration_s": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
}
_LATENCIES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_CPU_ROWS = {
    "core_cpu_us_per_token": "Core (µs per token)",
    "front_end_cpu_us_per_token": "Front end (µs per token)",
    "server_cpu_us_per_token": "Both (µs per token)",
    "events_per_token": "Events per token",
    "client_cpu_s": "This client, apart (s)",
}
_WIDTH = 56


class ServeReport(Report):
    """Its text is the table that vLLM prints."""

    def to_text(self) -> str:
        """Rows of name and value, in sections."""
        lines = [_title("Serving Benchmark Result", "="), *self._rows(_ROWS)]
        for key, title in _LATENCIES.items():
            rows = {
                f"{s}_{key}_ms": f"{label} {key.upper()} (ms)"
                for s, label in (("mean", "Mean"), ("median", "Median"), ("p99", "P99"))
            }
            if found := self._rows(rows):
                lines += [_title(title, "-"), *found]
        return "\n".join([*lines, _title("CPU Time", "-"), *self._rows(_CPU_ROWS), "=" * _WIDTH])

    def _rows(self, names: dict[str, str]) -> list[str]:
        return [
            f"{label + ':':<40} {_number(self.results[key]):>{_WIDTH - 41}}"
            for key, label in names.items()
            if key in self.results
        ]


def _title(text: str, line: str) -> str:
    return f" {text} ".center(_WIDTH, line)


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
