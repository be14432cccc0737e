"""kill -9 of a server in the middle of a batch, and its next start."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.entrypoints.batches.batch_lab import OVER, jsonl, parsed
from tests.entrypoints.openai.live import serve_process
from tests.tiny_model import write_tiny_llama

NUM_LINES = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@contextmanager
def served(model: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], OpenAI]]:
    """A server whose steps take 10 ms and compute nothing; 6 lines at a time."""
    options = (
        *("--served-model-name", "tiny", "--batch-dir", str(folder)),
        *("--distributed-executor-backend", "fake", "--fake-step-time", "0.01"),
        *("--max-num-seqs", "8", "--max-batch-lines-in-flight", "6"),
    )
    with (
        serve_process(str(model), *options) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield server.process, client


def begin(client: OpenAI) -> str:
    """A batch under way: a third of its lines is done."""
    lines = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": "x" * (i + 1), "max_tokens": 8 + i % 5, "ignore_eos": True},
        }
        for i in range(NUM_LINES)
    ]
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    until(client, batch.id, lambda b: b.request_counts.completed >= NUM_LINES // 3)
    return batch.id


def until(client: OpenAI, batch_id: str, condition: Any) -> Any:
    deadline = time.monotonic() + 60
    while not condition(batch := client.batches.retrieve(batch_id)):
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
    return batch


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL


def results_of(client: OpenAI, file_id: str | None) -> list[Any]:
    return parsed(client.files.content(file_id).content) if file_id else []


def check(client: OpenAI, batch: Any) -> None:
    """Every line is in the results once, and its answer is what the route gives."""
    results = results_of(client, batch.output_file_id)
    assert sorted(r["custom_id"] for r in results) == sorted(f"r{i}" for i in range(NUM_LINES))
    assert batch.error_file_id is None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (NUM_LINES, NUM_LINES, 0)
    for result in results[:: NUM_LINES // 5]:
        i = int(result["custom_id"][1:])
        single = client.completions.create(
            model="tiny",
            prompt="x" * (i + 1),
            max_tokens=8 + i % 5,
            extra_body={"ignore_eos": True},
        )
        assert result["response"]["body"]["choices"][0]["text"] == single.choices[0].text


def test_each_line_exactly_once(model: Path, tmp_path: Path) -> None:
    """Killed twice, with lines in flight each time."""
    with served(model, tmp_path) as (process, client):
        batch_id = begin(client)
        kill(process)
    with served(model, tmp_path) as (process, client):
        before = client.batches.retrieve(batch_id)
        assert before.status == "in_progress"
        more = before.request_counts.completed + NUM_LINES // 4  # type: ignore[union-attr]
        until(client, batch_id, lambda b: b.request_counts.completed >= more)
        kill(process)
    with served(model, tmp_path) as (_, client):
        check(client, until(client, batch_id, lambda b: b.status in OVER))


def test_torn_writes(model: Path, tmp_path: Path) -> None:
    """Whole and half results behind what was committed, as a kill between the two writes (or a
    crash of the machine) leaves them, and a file of the other kind that was never committed."""
    with served(model, tmp_path) as (process, client):
        batch_id = begin(client)
        kill(process)
    with closing(sqlite3.connect(tmp_path / "batches.db")) as db:
        row = db.execute(
            "SELECT output_file_id, error_file_id, output_bytes FROM batches WHERE id = ?",
            (batch_id,),
        ).fetchone()
        done = {n for (n,) in db.execute("SELECT line FROM done WHERE batch_id = ?", (batch_id,))}
    output, error = (tmp_path / "contents" / name for name in row[:2])
    committed = output.read_bytes()[: row[2]]
    assert len(parsed(committed)) == len(done)
    undone = next(i for i in range(NUM_LINES) if i + 1 not in done)
    whole = json.dumps({"custom_id": f"r{undone}", "response": None}).encode() + b"\n"
    output.write_bytes(committed + whole + whole[:20])
    error.write_bytes(whole)
    with served(model, tmp_path) as (_, client):
        check(client, until(client, batch_id, lambda b: b.status in OVER))


@pytest.mark.parametrize("status", ["expired", "cancelled"])
def test_a_batch_whose_time_came_while_nobody_served(
    model: Path, tmp_path: Path, status: str
) -> None:
    with served(model, tmp_path) as (process, client):
        batch_id = begin(client)
        kill(process)
    change = "expires_at = 1" if status == "expired" else "status = 'cancelling'"
    with closing(sqlite3.connect(tmp_path / "batches.db")) as db:
        db.execute(f"UPDATE batches SET {change} WHERE id = ?", (batch_id,))
        db.commit()
    with served(model, tmp_path) as (_, client):
        batch = until(client, batch_id, lambda b: b.status in OVER)
        assert batch.status == status
        results = results_of(client, batch.output_file_id)
        errors = results_of(client, batch.error_file_id)
        assert len(results) >= NUM_LINES // 3
        assert {e["error"]["code"] for e in errors} == {f"batch_{status}"}
        ids = [r["custom_id"] for r in results + errors]
        assert sorted(ids) == sorted(f"r{i}" for i in range(NUM_LINES))
