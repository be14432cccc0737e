"""Edits of logits with tokens in any order and more than once, on every back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.tensor import DType
from octavo.kernels.ops import Backend
from octavo.kernels.sampling_ops import PenaltyRows
from tests.kernels.backends import BACKENDS, make_backend
from tests.sample.twin import TwinSampling

NUM_ROWS, VOCAB = 5, 37
ROWS, TOKENS = st.integers(0, NUM_ROWS - 1), st.integers(0, VOCAB - 1)
NUMBERS = st.floats(-100, 100, width=32)

fast = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return make_backend(request.param, DType.F32, 2)


def random_logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=4, size=(NUM_ROWS, VOCAB)).astype(np.float32)


def check(backend: Backend, op: str, seed: int, *arguments: Any) -> None:
    """The same bits as the twin's."""
    logits, expected = random_logits(seed), random_logits(seed)
    on_device: Any = torch.from_numpy(logits) if backend.name == "reference" else logits
    getattr(backend.sampling, op)(on_device, *arguments)
    getattr(TwinSampling(), op)(expected, *arguments)
    np.testing.assert_array_equal(backend.to_numpy(on_device), expected)


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


@fast
@given(pairs=st.lists(st.tuples(ROWS, TOKENS), max_size=60), seed=st.integers(0, 9))
def test_masks(backend: Backend, pairs: list[tuple[int, int]], seed: int) -> None:
    check(backend, "mask", seed, ints([p[0] for p in pairs]), ints([p[1] for p in pairs]))


@fast
@given(biases=st.lists(st.tuples(ROWS, TOKENS, NUMBERS), max_size=60), seed=st.integers(0, 9))
def test_biases(backend: Backend, biases: list[tuple[int, int, float]], seed: int) -> None:
    """A token that is named twice gets both, one after the other."""
    rows, tokens = ints([b[0] for b in biases]), ints([b[1] for b in biases])
    check(backend, "add_bias", seed, rows, tokens, np.array([b[2] for b in biases], np.float32))


@fast
@given(
    bits=st.dictionaries(ROWS, st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2)),
    seed=st.integers(0, 9),
)
def test_bitmasks(backend: Backend, bits: dict[int, list[int]], seed: int) -> None:
    rows = sorted(bits)
    words = np.array([bits[row] for row in rows], dtype=np.int32).reshape(len(rows), 2)
    check(backend, "allow", seed, ints(rows), words)


@fast
@given(
    penalized=st.dictionaries(
        ROWS,
        st.tuples(
            st.dictionaries(TOKENS, st.integers(0, 5)),
            st.floats(0.0625, 8, width=32),
            st.floats(-2, 2, width=32),
            st.floats(-2, 2, width=32),
        ),
    ),
    seed=st.integers(0, 9),
)
def test_penalties(backend: Backend, penalized: dict[int, Any], seed: int) -> None:
    """Tokens in any order."""
    rows = sorted(penalized)
    tokens = [penalized[row][0] for row in rows]
    columns = [np.array([penalized[row][i] for row in rows], np.float32) for i in (1, 2, 3)]
    penalties = PenaltyRows(
        repetition=columns[0],
        frequency=columns[1],
        presence=columns[2],
        starts=ints(np.cumsum([0, *map(len, tokens)]).tolist()),
        token_ids=ints([token for counts in tokens for token in counts]),
        counts=ints([count for counts in tokens for count in counts.values()]),
    )
    check(backend, "penalize", seed, ints(rows), penalties)
