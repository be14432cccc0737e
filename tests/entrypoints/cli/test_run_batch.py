"""`octavo run-batch` as a process, on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.openai.live import COMMAND, ROOT
from tests.tiny_model import write_tiny_llama

ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def command(model: Path, source: Path, target: Path, *args: str) -> list[str]:
    return [
        *(sys.executable, "-c", COMMAND, "run-batch", "-i", str(source), "-o", str(target)),
        *("--model", str(model), "--served-model-name", "tiny", "--num-threads", "1", *args),
    ]


def run(*args: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), cwd=ROOT, env=ENV, capture_output=True, text=True, timeout=120, check=False
    )


def line(custom_id: str, prompt: str, url: str = "/v1/completions", **fields: Any) -> bytes:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
    request = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(request).encode()


def test_one_bad_line_ends_and_hides_nothing(model: Path, tmp_path: Path) -> None:
    """One line of output per line of input that is not blank, in the order of the input (user
    case 39)."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        b"\xef\xbb\xbf" + line("good", "Hello") + b"\r",
        b"{bad",
        b"",
        line("good", "again"),
        line("nope", "x", "/v1/nope"),
        line("negative", "x", max_tokens=-1),
        line("stream", "x", stream=True),
        line("long", "x" * 600),
        line("last", "Hello"),
    ]
    source.write_bytes(b"\n".join(lines))
    done = run(model, source, target)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "8 lines done" in done.stderr
    assert "6 lines have an error" in done.stderr
    results = [json.loads(text) for text in target.read_bytes().splitlines()]
    assert [(r["custom_id"], r["response"]["status_code"]) for r in results] == [
        ("good", 200),
        (None, 400),
        ("good", 400),
        ("nope", 404),
        ("negative", 400),
        ("stream", 400),
        ("long", 400),
        ("last", 200),
    ]
    assert "custom_id" in results[2]["response"]["body"]["error"]["message"]
    texts = [results[i]["response"]["body"]["choices"][0]["text"] for i in (0, -1)]
    assert texts[0] == texts[1] != ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_killed_it_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\n".join(line(f"r{i}", "x" * (i + 1)) for i in range(100)))
    part = tmp_path / "out.jsonl.part"
    slow = ("--distributed-executor-backend", "fake", "--fake-step-time", "0.02")
    options = (*slow, "--max-num-seqs", "4", "--max-lines-in-flight", "4")
    process = subprocess.Popen(
        command(model, source, target, *options), cwd=ROOT, env=ENV, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not part.exists() or part.read_bytes().count(b"\n") < 20:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    assert not target.exists()
    with part.open("ab") as file:
        file.write(b'100 {"torn')
    kept = part.read_bytes().splitlines()[1:15]
    done = run(model, source, target, *slow[:2])
    assert done.returncode == 0, done.stderr
    results = target.read_bytes().splitlines()
    assert [json.loads(r)["custom_id"] for r in results] == [f"r{i}" for i in range(100)]
    assert {r.partition(b" ")[2] for r in kept} <= set(results)  # they did not run again
    assert not part.exists()


def test_what_cannot_be_used(model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line("a", "x"))
    (tmp_path / "out.jsonl.part").write_bytes(b"0" * 64 + b"\n")
    for given, output, words in (
        ("http://example.com/in.jsonl", target, "a path, not a URL"),
        (source, tmp_path / "none" / "out", "cannot be written"),
        (source, target, "results of another input"),
    ):
        done = run(model, given, output)
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
        assert "Traceback" not in done.stderr
    assert source.read_bytes() == line("a", "x")
