"""Servers side by side: the same prompts over HTTP from the same client, `octavo bench serve`'s."""

from __future__ import annotations

import json
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.side_by_side.contestants import ROOT, VLLM, install, vllm_variables
from benchmarks.side_by_side.driver_process import DriverError, EngineProcess
from benchmarks.side_by_side.environments import build_llama_server
from octavo.entrypoints.bench.serve import ServeOptions, run
from octavo.entrypoints.http_client import Endpoint, HTTPError

READY_SECONDS = 600.0
INPUT_LEN = OUTPUT_LEN = 64
CONCURRENCIES = (1, 8, 32, 64)
_PLACE_LEN = 256
"""Tokens of a place in llama.cpp's server: what is asked for, and room to spare."""
_WORDS = (
    "the of and to in is was that for on with as be at by this from or an it not have which you "
    "were but all one their more about when there can also some time two first may new over would"
)


class HTTPServer(EngineProcess):
    """A server on a port of this machine."""

    def __init__(
        self, name: str, command: list[str], variables: Mapping[str, str], log: Path, port: int
    ) -> None:
        super().__init__(name, command, variables, log, answers=False)
        self.endpoint = Endpoint(f"http://127.0.0.1:{port}")

    def wait_ready(self, timeout: float) -> None:
        """Until it lists its model. Raises DriverError."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                self.endpoint.only_model()
                return
            except HTTPError as error:
                if time.monotonic() > deadline or not self.is_running():
                    raise DriverError(f"{self.name}: {error}{self._last_words()}") from error
            time.sleep(0.5)


def free_port() -> int:
    """A port that nobody listens on now: another's server would be taken for the one started."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def octavo_server(
    cache: Path, weights: Mapping[str, Path], num_threads: int, port: int
) -> HTTPServer:
    """`octavo serve` of this tree."""
    model = weights["bf16 folder"]
    options = [f"--port={port}", f"--num-threads={num_threads}", "--dtype=bfloat16"]
    command = [sys.executable, "-m", "octavo", "serve", str(model), "--max-model-len=2048"]
    variables = {"PYTHONPATH": str(ROOT)}
    log = cache / "logs" / "octavo-serve.log"
    return HTTPServer("Octavo bf16", [*command, *options], variables, log, port)


def vllm_server(
    cache: Path, weights: Mapping[str, Path], num_threads: int, port: int
) -> HTTPServer:
    """vLLM's, with the environment that its documentation asks for. Raises InstallError."""
    model = weights["bf16 folder"]
    python = install(VLLM, cache)
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    options = ["--dtype=bfloat16", "--max-model-len=2048", f"--port={port}"]
    variables = vllm_variables(python, cache, num_threads) | {
        "OMP_NUM_THREADS": str(num_threads),
        "HF_HUB_OFFLINE": "1",
    }
    log = cache / "logs" / "vllm-serve.log"
    return HTTPServer("vLLM bf16", [*command, *options], variables, log, port)


def llama_cpp_server(
    cache: Path, weights: Mapping[str, Path], num_threads: int, port: int
) -> HTTPServer:
    """llama.cpp's, with a place for each request of the largest load. Raises InstallError."""
    places = max(CONCURRENCIES)
    command = [str(build_llama_server(cache)), "-m", str(weights["bf16 gguf"])]
    options = [
        *("--port", str(port), "--threads", str(num_threads), "--flash-attn", "on"),
        *("--parallel", str(places), "--ctx-size", str(places * _PLACE_LEN)),
    ]
    log = cache / "logs" / "llama-server.log"
    return HTTPServer("llama.cpp bf16", [*command, *options], {}, log, port)


SERVERS: Mapping[str, Callable[[Path, Mapping[str, Path], int, int], HTTPServer]] = {
    "Octavo bf16": octavo_server,
    "vLLM bf16": vllm_server,
    "llama.cpp bf16": llama_cpp_server,
}


@dataclass(frozen=True, kw_only=True)
class OnlineRun:
    """One server under one load, once.

    Attributes:
        concurrency: requests in progress; twice as many are sent.
        ttft_ms: median time to the first token.
        client_cpu_s: CPU time of the client, which shares the cores.
    """

    round: int
    server: str
    concurrency: int
    tokens_per_second: float
    ttft_ms: float
    client_cpu_s: float


def run_round(
    number: int, concurrency: int, servers: Mapping[str, HTTPServer], prompt_file: Path
) -> list[OnlineRun]:
    """Every server gets the load once; who begins changes with the round.

    Raises:
        DriverError: a request failed.
    """
    names = list(servers)
    shift = number % len(names)
    runs = []
    for name in names[shift:] + names[:shift]:
        server = servers[name]
        options = ServeOptions(
            num_prompts=2 * concurrency,
            output_len=OUTPUT_LEN,
            prompt_file=prompt_file,
            max_concurrency=concurrency,
            seed=number + 1,  # of the warm-up, 0
        )
        server.resume()
        try:
            results = run(server.endpoint, options).results
        finally:
            server.pause()
        if results["failed"]:
            raise DriverError(f"{name}: {results['failed']} failed: {results['first_error']}")
        runs.append(
            OnlineRun(
                round=number,
                server=name,
                concurrency=concurrency,
                tokens_per_second=results["output_throughput"],
                ttft_ms=results["median_ttft_ms"],
                client_cpu_s=results["client_cpu_s"],
            )
        )
    return runs


def prompts(count: int, seed: str) -> list[str]:
    """Texts of `INPUT_LEN` common words, about a token each. Every load has its own, so that
    nobody's prefix cache knows them."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(_WORDS.split(), k=INPUT_LEN)) for _ in range(count)]


def summary(runs: Sequence[OnlineRun]) -> list[dict[str, Any]]:
    """A row per concurrency and server: medians over rounds, and how many times as fast as it the
    first server is (median of the ratios within rounds)."""
    first = runs[0].server
    rows = []
    for concurrency, name in sorted({(r.concurrency, r.server) for r in runs}):
        own = [r for r in runs if (r.concurrency, r.server) == (concurrency, name)]
        base = {r.round: r for r in runs if (r.concurrency, r.server) == (concurrency, first)}
        pairs = [(base[r.round], r) for r in own if r.round in base]
        rows.append(
            {
                "concurrency": concurrency,
                "server": name,
                "tokens_per_second": statistics.median(r.tokens_per_second for r in own),
                "ttft_p50_ms": statistics.median(r.ttft_ms for r in own),
                "client_cpu_s": statistics.median(r.client_cpu_s for r in own),
                f"{first} is faster": statistics.median(
                    b.tokens_per_second / r.tokens_per_second for b, r in pairs
                ),
            }
        )
    return rows


def table(runs: Sequence[OnlineRun]) -> str:
    """The summary in Markdown."""
    rows = summary(runs)
    lines = [f"| {' | '.join(rows[0])} |", f"| {' | '.join(['---'] * len(rows[0]))} |"]
    for row in rows:
        cells = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def to_json(runs: Sequence[OnlineRun], **about: Any) -> str:
    """Everything, and the summary."""
    data = {**about, "summary": summary(runs), "runs": [asdict(r) for r in runs]}
    return json.dumps({"benchmark": "peers online", **data}, indent=1)
