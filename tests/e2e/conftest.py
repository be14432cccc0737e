"""Settings and models for the tests of the whole engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.entrypoints.llm import LLM
from tests.e2e.lab import write_tiny


@pytest.fixture(scope="session", autouse=True)
def _check_integrity() -> Iterator[None]:
    """The scheduler's invariants are checked after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_CHECK", "1")
        yield


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path, _check_integrity: None) -> Iterator[LLM]:
    """The default model in float32. A test that uses it is marked `model`."""
    with LLM(str(smollm2_path), dtype="float32", max_model_len=512, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama of 257 ids: one per byte, and the end."""
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_path: Path, _check_integrity: None) -> Iterator[LLM]:
    """`tiny_path`, loaded."""
    with LLM(str(tiny_path), num_threads=1) as llm:
        yield llm
