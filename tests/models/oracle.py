"""The checks that every family has to pass, against transformers in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.contracts.tensor import DType
from octavo.models.registry import build_model
from tests.kernels.backends import make_backend
from tests.models.hf import HFModel
from tests.models.runner import Runner

NUM_TOKENS = 64


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(2, 128, length)]


def assert_equals_transformers(
    architecture: str,
    backend: str,
    *,
    prompt: Sequence[int] | None = None,
    chunks: Sequence[int] = (5, 1, 16),
    max_model_len: int = 256,
    **options: Any,
) -> None:
    """Equal ids over 64 tokens, log probabilities within 1e-3, on a tiny random model.

    Args:
        options: of the Hugging Face configuration.
    """
    hf = HFModel(architecture, **options)
    prompt = prompt_of(23) if prompt is None else list(prompt)
    model = build_model(hf.reader)
    runner = Runner(
        model, hf.weights(), make_backend(backend, DType.F32, 1), max_model_len=max_model_len
    )
    ids, logprobs = runner.greedy(prompt, NUM_TOKENS, chunks)
    # Their choice after every one of our prefixes: equal to all of ours means equal texts.
    expected = hf.logprobs([*prompt, *ids[:-1]])
    assert expected.argmax(axis=-1)[len(prompt) - 1 :].tolist() == ids
    assert np.abs(logprobs - expected).max() < 1e-3
    assert len(set(ids)) > 8, "a model that repeats itself proves little"


def assert_bfloat16_stays_near_float32(architecture: str, backend: str, **options: Any) -> None:
    """Weights, activations and cache are rounded to 8 bits, and nothing else: the mean of
    KL(their float32 ‖ our bfloat16) over a prompt of 50 tokens is below 2e-3."""
    hf = HFModel(architecture, **options)
    runner = Runner(
        build_model(hf.reader), hf.weights(), make_backend(backend, DType.BF16, 1), max_model_len=64
    )
    prompt = prompt_of(50)
    _, logprobs = runner.greedy(prompt, 1)
    expected = hf.logprobs(prompt)
    divergence = (np.exp(expected) * (expected - logprobs)).sum(axis=-1)
    assert 0 < divergence.mean() < 2e-3
