"""What one request leaves behind says nothing to another one: cached prefixes have their tenant's
salt and a secret key (CVE-2025-46570, CVE-2025-25183), rows of the batch keep nothing of who had
them before (GHSA-v97p-wpxp-px84, GHSA-fpch-3xrf-7q96), and nothing piles up on the disk
(CVE-2025-29770)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.entrypoints.llm import LLM
from tests.e2e.lab import write_tiny

PROMPT = list(range(60, 100))
EVERYTHING: dict[str, Any] = {
    "temperature": 1.3,
    "top_p": 0.7,
    "top_k": 9,
    "min_p": 0.05,
    "seed": 5,
    "repetition_penalty": 1.9,
    "presence_penalty": 1.5,
    "frequency_penalty": 1.5,
    "logit_bias": {70: 100.0},
    "bad_words": ["A", "bc"],
    "allowed_token_ids": [*range(65, 100)],
    "min_tokens": 3,
    "stop_token_ids": [66],
    "logprobs": 5,
    "prompt_logprobs": 2,
    "max_tokens": 12,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def llm(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny(tmp_path_factory.mktemp("tiny"))
    with LLM(str(path), dtype="float32", max_model_len=128, max_num_seqs=1, num_threads=1) as llm:
        yield llm


def num_cached(llm: LLM, salt: str | None) -> int:
    prompt: Any = {"prompt_token_ids": PROMPT}
    if salt is not None:
        prompt["cache_salt"] = salt
    (output,) = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
    return output.num_cached_tokens


def test_a_prefix_is_cached_for_its_salt_alone(llm: LLM) -> None:
    llm.reset_prefix_cache()
    for salt in (None, "alice", "bob", "alice\x00", "bo", "none", "None"):
        assert num_cached(llm, salt) == 0, salt
        assert num_cached(llm, salt) == 32, salt


def test_a_row_keeps_nothing_of_who_had_it(llm: LLM) -> None:
    """There is one row: whatever a request asks for, the next one is as if it were the first."""
    plain = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=3)
    (first,) = llm.generate(PROMPT, plain, use_tqdm=False)
    grammar = StructuredOutputsParams(regex="[A-Z]{5}")
    for params in (
        SamplingParams(**EVERYTHING),
        SamplingParams(structured_outputs=grammar, max_tokens=3, seed=1),
        SamplingParams(n=2, best_of=None, seed=2, temperature=1, max_tokens=3),
    ):
        llm.generate(PROMPT, params, use_tqdm=False)
        (again,) = llm.generate(PROMPT, plain, use_tqdm=False)
        assert again.outputs == first.outputs


def test_nothing_piles_up_on_the_disk(llm: LLM, home: Path) -> None:
    """Grammars, templates and prompts that nobody has seen before leave no file."""
    llm.generate(PROMPT, SamplingParams(max_tokens=1), use_tqdm=False)
    before = sorted(home.rglob("*"))
    for i in range(5):
        grammar = StructuredOutputsParams(regex=f"a{{{i + 1}}}")
        llm.generate(f"{i}", SamplingParams(structured_outputs=grammar), use_tqdm=False)
    assert sorted(home.rglob("*")) == before
