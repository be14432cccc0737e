"""`octavo bench serve` against a made-up server, and around a real one without a model."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config.engine import EngineConfig
from octavo.entrypoints.bench.serve import ServeOptions, read_prompts, run
from octavo.entrypoints.bench.server_process import ServerProcess, engine_arguments
from octavo.entrypoints.http_client import Endpoint, HTTPError
from octavo.errors import ConfigError, OctavoError
from tests.entrypoints.web_server import Request, WebServer, event_stream, json_answer, web_server
from tests.tiny_model import write_tiny_llama

ROOT = Path(__file__).parents[3]


def answer(request: Request) -> Any:
    """A server that generates what it is asked for."""
    if request.path == "/v1/models":
        return json_answer({"data": [{"id": "m"}]})
    if request.path == "/tokenize":
        return json_answer({"tokens": [5, 6, 7, 6]})
    body = request.json
    if not body["stream"]:
        return json_answer({"choices": [{"text": "x"}]})
    count = body["max_tokens"]
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
    return event_stream([*({"choices": [i]} for i in range(count)), {"usage": usage}])


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server(answer) as running:
        yield running


def streamed(server: WebServer) -> list[dict[str, Any]]:
    bodies = [r.json for r in server.requests if r.path == "/v1/completions"]
    return [b for b in bodies if b["stream"]]


def test_report(server: WebServer) -> None:
    options = ServeOptions(num_prompts=6, input_len=9, output_len=4)
    ticks = iter([{"core": 1.0, "front_end": 2.0}, {"core": 1.24, "front_end": 2.48}])
    report = run(Endpoint(server.url), options, cpu_seconds=lambda: next(ticks))
    results = report.results
    assert (results["completed"], results["failed"]) == (6, 0)
    assert (results["total_input_tokens"], results["total_output_tokens"]) == (54, 24)
    assert results["events_per_token"] == 1
    assert results["output_throughput"] == pytest.approx(24 / results["duration_s"])
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert 0 <= results[f"median_{name}_ms"] <= results[f"p99_{name}_ms"]
    assert results["core_cpu_us_per_token"] == pytest.approx(1e4)
    assert results["front_end_cpu_us_per_token"] == pytest.approx(2e4)
    assert results["server_cpu_us_per_token"] == pytest.approx(3e4)
    text = report.to_text()
    for words in ("Successful requests:", "P99 TTFT (ms):", "Both (µs per token):", "30000.00"):
        assert words in text
    assert json.loads(report.to_json())["config"]["request_rate"] == "inf"


def test_random_prompts_are_of_the_server_s_own_ids_and_repeat(server: WebServer) -> None:
    options = ServeOptions(num_prompts=3, input_len=20, output_len=1)
    for _ in range(2):
        run(Endpoint(server.url), options)
    prompts = [b["prompt"] for b in streamed(server)]
    assert sorted(prompts[:3]) == sorted(prompts[3:])
    assert all(len(p) == 20 and set(p) <= {5, 6, 7} for p in prompts)
    assert all(b["ignore_eos"] and b["model"] == "m" for b in streamed(server))


def test_a_server_without_tokenize_gets_words() -> None:
    def without(request: Request) -> Any:
        return json_answer({}, 404) if request.path == "/tokenize" else answer(request)

    with web_server(without) as server:
        run(Endpoint(server.url), ServeOptions(num_prompts=2, input_len=5, output_len=1))
    assert all(len(b["prompt"].split()) == 5 for b in streamed(server))


def test_prompt_file(server: WebServer, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two", "x": 1}\n')
    run(Endpoint(server.url), ServeOptions(num_prompts=3, output_len=1, prompt_file=path))
    assert sorted(b["prompt"] for b in streamed(server)) == ["one", "one", "two"]
    text = tmp_path / "prompts.txt"
    text.write_text("é one\n\n{two}\n", encoding="utf-8")
    assert read_prompts(text) == ["é one", "{two}"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("p.txt", b""),
        ("p.txt", b"\xff"),
        ("p.jsonl", b"{"),
        ("p.jsonl", b"[]"),
        ("p.jsonl", b'{"prompt": 1}'),
        ("p.jsonl", b'{"prompt": ""}'),
        ("p.jsonl", b"[" * 100_000),
    ],
)
def test_wrong_prompt_files(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=name):
        read_prompts(tmp_path / name)
    with pytest.raises(ConfigError, match="absent"):
        read_prompts(tmp_path / "absent")


def test_rate_and_concurrency(server: WebServer) -> None:
    """A Poisson process takes its time; one at a time is one connection at a time."""
    start = time.perf_counter()
    options = ServeOptions(num_prompts=8, input_len=1, output_len=1, request_rate=50.0)
    run(Endpoint(server.url), options)
    assert time.perf_counter() - start > 0.02  # 7 gaps of 20 ms in the mean
    running = most = 0

    def counting(request: Request) -> Any:
        nonlocal running, most
        if request.path != "/v1/completions":
            yield answer(request)
            return
        whole = answer(request)
        whole = [whole] if isinstance(whole, bytes) else whole
        running += 1
        most = max(most, running)
        yield b"".join(whole[:-1])
        time.sleep(0.005)
        running -= 1
        yield whole[-1]

    with web_server(counting) as other:
        options = ServeOptions(num_prompts=12, input_len=1, output_len=2, max_concurrency=2)
        report = run(Endpoint(other.url), options)
    assert report.results["completed"] == 12
    assert most <= 2


def test_failures_are_counted_and_told(server: WebServer) -> None:
    count = 0

    def failing(request: Request) -> Any:
        nonlocal count
        if request.path == "/v1/completions" and request.json["stream"]:
            count += 1
            if count == 2:
                return json_answer({"error": {"message": "no room"}}, 503)
        return answer(request)

    with web_server(failing) as other:
        report = run(Endpoint(other.url), ServeOptions(num_prompts=3, input_len=1, output_len=1))
    assert (report.results["completed"], report.results["failed"]) == (2, 1)
    assert report.results["first_error"] == "no room"
    assert "no room" in report.to_text()


def test_total_failures(server: WebServer) -> None:
    def refusing(request: Request) -> Any:
        if request.path == "/v1/completions" and request.json["stream"]:
            return json_answer({"error": {"message": "never"}}, 500)
        return answer(request)

    with web_server(refusing) as other, pytest.raises(OctavoError, match=r"all 2 .*never"):
        run(Endpoint(other.url), ServeOptions(num_prompts=2, input_len=1, output_len=1))
    for rate in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="request_rate"):
            run(Endpoint(server.url), ServeOptions(request_rate=rate))
    closed = Endpoint("http://127.0.0.1:9")
    with pytest.raises(HTTPError):
        run(closed, ServeOptions())


def test_engine_arguments_make_the_same_engine() -> None:
    assert engine_arguments(EngineConfig.from_flat()) == []
    config = EngineConfig.from_flat(
        model="m", max_num_seqs=3, enable_prefix_caching=False, gpu_memory_utilization=0.5
    )
    assert engine_arguments(config) == [
        *("--model=m", "--no-enable-prefix-caching", "--gpu-memory-utilization=0.5"),
        "--max-num-seqs=3",
    ]


# -------------------------------------------------------------------- the real server


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octavo", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_fake_executor(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path)
    done = octavo(
        *("bench", "serve", "--fake-executor", "--model", str(model), "--json"),
        *("--num-prompts", "20", "--input-len", "8", "--output-len", "8"),
        *("--fake-step-time", "0.02"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    results = json.loads(done.stdout)["results"]
    assert (results["completed"], results["total_output_tokens"]) == (20, 160)
    assert results["median_itl_ms"] >= 20
    if Path("/proc/self/stat").exists():
        assert results["server_cpu_us_per_token"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--base-url", "http://x", "--fake-executor"), "drop --base-url"),
        (("--base-url", "http://x", "--max-num-seqs", "3"), "--max-num-seqs is for a server"),
        (("--base-url", "nonsense"), "must be like"),
        (("--model", "/no/such"), "does not exist"),
    ],
)
def test_wrong_command_lines(arguments: tuple[str, ...], words: str) -> None:
    done = octavo("bench", "serve", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Nope"]}))
    with (
        pytest.raises(OctavoError, match=r"status 1 before it was ready: .*Nope"),
        ServerProcess([f"--model={tmp_path}", "--load-format=dummy"]),
    ):
        pass
