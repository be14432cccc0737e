"""Pairs that are kept are the pairs that were found, or they are found anew."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.engine import gguf_tokenizer
from octavo.engine.gguf_tokenizer import gguf_tokenizer as build
from octavo.engine.merge_cache import cached_pairs

PAIRS = np.array([[0, 1], [5, 2], [3, 3]], np.int32)


class Finder:
    """Finds the pairs, and counts how often."""

    def __init__(self, pairs: np.ndarray = PAIRS) -> None:
        self.pairs = pairs
        self.calls = 0

    def __call__(self) -> np.ndarray:
        self.calls += 1
        return self.pairs


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    return tmp_path / "tokenizers"


def test_found_once(home: Path) -> None:
    find = Finder()
    for _ in range(3):
        np.testing.assert_array_equal(cached_pairs(b"key", 6, find), PAIRS)
    assert find.calls == 1
    (file,) = home.iterdir()  # and nothing temporary
    assert file.stat().st_size == 16 + 3 * 8


def test_another_key_is_another_file(home: Path) -> None:
    other = Finder(PAIRS[:1])
    cached_pairs(b"key", 6, Finder())
    np.testing.assert_array_equal(cached_pairs(b"other", 6, other), PAIRS[:1])
    assert other.calls == 1


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "longer"])
def test_a_damaged_file_is_made_anew(
    home: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cached_pairs(b"key", 6, Finder())
    (file,) = home.iterdir()
    data = bytearray(file.read_bytes())
    if damage == "bit":
        data[-3] ^= 1
    file.write_bytes({"cut": data[:-4], "bit": data, "empty": b"", "longer": data + b"x"}[damage])
    find = Finder()
    with caplog.at_level(logging.WARNING, "octavo"):
        np.testing.assert_array_equal(cached_pairs(b"key", 6, find), PAIRS)
    assert find.calls == 1
    again = Finder()
    cached_pairs(b"key", 6, again)
    assert again.calls == 0


def test_ids_that_there_are_not_are_not_used(home: Path) -> None:
    cached_pairs(b"key", 6, Finder())
    find = Finder(PAIRS[:1])
    np.testing.assert_array_equal(cached_pairs(b"key", 5, find), PAIRS[:1])


def test_a_folder_that_cannot_be_written(home: Path) -> None:
    home.write_text("in the way")
    find = Finder()
    for _ in range(2):
        np.testing.assert_array_equal(cached_pairs(b"key", 6, find), PAIRS)
    assert find.calls == 2


def test_a_large_vocabulary_encodes_as_before(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokenizer from nothing, found, and kept."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcd"]
    tokens += ["ab", "▁a", "cd", "abcd", "▁ab", "bc"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256, *[1] * 11], np.int32),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    text = "abcd bcd ab cabd"
    plain = build(metadata, "x").core.encode(text).ids
    assert not home.exists()
    monkeypatch.setattr(gguf_tokenizer, "_LARGE_VOCABULARY", 1)
    found = build(metadata, "x").core.encode(text).ids
    assert len(list(home.iterdir())) == 1
    kept = build(metadata, "x").core.encode(text).ids
    assert plain == found == kept
    changed = metadata | {"tokenizer.ggml.scores": np.arange(len(tokens), dtype=np.float32)}
    assert build(changed, "x").core.encode(text).ids != plain
    assert len(list(home.iterdir())) == 2
