from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.errors import ModelError, WeightsError
from octavo.models.mapping import map_file, read_json_object, read_text


def test_maps_are_read_only(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    mapped = map_file(path)
    assert mapped[:] == b"abc"
    with pytest.raises(TypeError):
        mapped[0] = 0


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WeightsError, match="not a regular file"):
        map_file(tmp_path / "pipe")


@pytest.mark.parametrize("content", [b"", None])
def test_files_that_cannot_be_mapped(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "f"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=f"{path} cannot be read"):
        map_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1]", "holds list"),
        (b"\xff\xfe", "cannot be read"),
        (b"9" * 10_000, "not valid JSON"),
    ],
)
def test_json_that_is_none(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_json_object(path)


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ModelError, match="1099511627776 bytes"):
        read_text(path)
