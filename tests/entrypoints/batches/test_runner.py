"""A batch's input, checked as a whole before anything of it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.entrypoints.batches.runner import InvalidInputError, validate
from tests.entrypoints.batches.batch_lab import CHAT, chat_line, jsonl, say_lines

MAX_LINE_BYTES = 10_000


def errors_of(path: Path) -> list[tuple[str | None, int | None]]:
    """Code and line of each."""
    with pytest.raises(InvalidInputError) as caught:
        validate(path, CHAT, MAX_LINE_BYTES)
    return [(error.code, error.line) for error in caught.value.errors]


def test_as_many_lines_as_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.entrypoints.batches.runner.MAX_LINES", 3)
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl(say_lines(3)))
    assert validate(path, CHAT, MAX_LINE_BYTES) == 3
    path.write_bytes(jsonl(say_lines(4)))
    assert errors_of(path) == [("too_many_requests", None)]


def test_the_first_errors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.entrypoints.batches.runner.MAX_ERRORS", 2)
    path = tmp_path / "in.jsonl"
    path.write_bytes(jsonl([*say_lines(2), *[chat_line("r0", "again")] * 3]))
    assert [line for _, line in errors_of(path)] == [3, 4]


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"")
    assert errors_of(path) == [("empty_file", None)]
