"""Servers side by side, over real sockets: two of ours around the fake executor."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.side_by_side.contestants import ROOT
from benchmarks.side_by_side.driver_process import DriverError
from benchmarks.side_by_side.online import (
    INPUT_LEN,
    HTTPServer,
    OnlineRun,
    free_port,
    prompts,
    run_round,
    summary,
    table,
    to_json,
)
from tests.tiny_model import write_tiny_llama


def serve(name: str, folder: Path, *arguments: str) -> HTTPServer:
    port = free_port()
    command = [sys.executable, "-m", "octavo", "serve", *arguments, f"--port={port}"]
    return HTTPServer(name, command, {"PYTHONPATH": str(ROOT)}, folder / f"{name}.log", port)


@pytest.mark.slow
def test_a_round(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    options = [str(write_tiny_llama(model)), "--load-format=dummy"]
    options.append("--distributed-executor-backend=fake")
    prompt_file = tmp_path / "prompts.txt"
    prompt_file.write_text("".join(f"{p}\n" for p in prompts(8, "seed")))
    with serve("a", tmp_path, *options) as a, serve("b", tmp_path, *options) as b:
        for server in (a, b):
            server.wait_ready(60)
            server.pause()
        runs = run_round(0, 2, {"a": a, "b": b}, prompt_file)
        runs += run_round(1, 2, {"a": a, "b": b}, prompt_file)
    assert [(r.round, r.server) for r in runs] == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]
    assert all(r.tokens_per_second > 0 and r.ttft_ms > 0 for r in runs)


def test_one_that_ends_is_told(tmp_path: Path) -> None:
    with (
        serve("gone", tmp_path, str(tmp_path / "no-such-model")) as server,
        pytest.raises(DriverError, match="no-such-model"),
    ):
        server.wait_ready(60)


def run(number: int, server: str, speed: float, ttft: float) -> OnlineRun:
    return OnlineRun(
        round=number,
        server=server,
        concurrency=8,
        tokens_per_second=speed,
        ttft_ms=ttft,
        client_cpu_s=0.1,
    )


RUNS = [
    *(run(0, "a", 30.0, 5.0), run(0, "b", 10.0, 50.0)),
    *(run(1, "a", 4.0, 6.0), run(1, "b", 2.0, 70.0)),
    *(run(2, "a", 50.0, 7.0), run(2, "b", 10.0, 60.0)),
]


def test_ratios_are_within_rounds() -> None:
    a, b = summary(RUNS)
    assert (a["server"], a["tokens_per_second"], a["ttft_p50_ms"]) == ("a", 30.0, 6.0)
    assert (b["server"], b["tokens_per_second"], b["a is faster"]) == ("b", 10.0, 3.0)
    assert table(RUNS).splitlines()[2] == "| 8 | a | 30.00 | 6.00 | 0.10 | 1.00 |"


def test_json() -> None:
    data = json.loads(to_json(RUNS, machine={"cpu": "c"}))
    assert data["summary"] == summary(RUNS)
    assert len(data["runs"]) == 6
    assert data["machine"] == {"cpu": "c"}


def test_prompts() -> None:
    texts = prompts(3, "seed")
    assert [len(t.split()) for t in texts] == [INPUT_LEN] * 3
    assert texts == prompts(3, "seed")
    assert len({*texts, *prompts(3, "other")}) == 6
