"""Quantized models give nearly the distributions of the models that they stand for."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from benchmarks import accuracy
from benchmarks.k_quants import encode
from octavo import LLM, CompletionOutput, SamplingParams
from octavo.contracts.tensor import DType
from octavo.models.files import ModelFiles, resolve_model

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def files(smollm2_path: Path) -> ModelFiles:
    return resolve_model(str(smollm2_path))


def check(files: ModelFiles, name: str, num_tokens: int) -> None:
    token_ids = accuracy.text_tokens(files, num_tokens)
    assert len(token_ids) == num_tokens
    variant = accuracy.variant_of(name, accuracy.checkpoint(files))
    result = accuracy.measure(variant, files, token_ids, num_tokens, 1)
    assert 0 < result["mean_kl"] <= variant.limit


@pytest.mark.parametrize("name", ["file", "q4_1", "int8"])
def test_mean_kl_on_a_short_text(files: ModelFiles, name: str) -> None:
    check(files, name, 100)


PROMPTS = (
    "What is the capital of France?",  # the first tokens "The" and "L" are 0.08 nats apart
    "What is the capital of Germany?",
    "Name three primary colors.",  # after "are:", " Red" and a new line are 0.04 nats apart
    "Who wrote Romeo and Juliet?",
)
NEAR_TIE = 0.1
"""Nats between two tokens of which either may come, with activations of 8 bits."""


def test_answers_of_blocks_as_stored_are_those_of_their_values(smollm2_path: Path) -> None:
    """Up to the first token at which the float32 model itself is all but undecided."""

    def answers(**options: Any) -> list[CompletionOutput]:
        llm = LLM(str(smollm2_path), num_threads=1, **options)
        params = SamplingParams(temperature=0, max_tokens=16, logprobs=5)
        chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        with closing(llm):
            return [output.outputs[0] for output in llm.chat(chats, params)]

    packed, true = answers(), answers(dtype="float32")
    assert packed[0].text == "The capital of France is Paris."
    for ours, theirs in zip(packed, true):
        pairs = zip(ours.token_ids, theirs.token_ids, theirs.logprobs or ())
        for token_id, best, logprobs in pairs:
            if token_id != best:
                assert logprobs[best].logprob - logprobs[token_id].logprob < NEAR_TIE
                break
    assert sum(ours.text == theirs.text for ours, theirs in zip(packed, true)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bfloat16", "file", "int8", "int4", *(d.value for d in accuracy.BLOCKS)]
)
def test_mean_kl(files: ModelFiles, name: str) -> None:
    check(files, name, 2000)


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q5_K, DType.Q6_K], ids=lambda d: d.value)
def test_k_quants_are_encoded_to_half_a_step(dtype: DType) -> None:
    values = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
    values[0], values[1] = 0, np.abs(values[1]) + 1
    decoded = gguf.dequantize(encode(values, dtype), gguf.GGMLQuantizationType[dtype.name])
    bits = {DType.Q4_K: 4, DType.Q5_K: 5, DType.Q6_K: 6}[dtype]
    width = np.abs(values).max() * 2
    assert np.abs(decoded - values).max() < 1.5 * width / 2**bits
    assert (decoded[0] == 0).all()
