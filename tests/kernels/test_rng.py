from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.rng import philox4x32, uniform

# The authors' known answers (Random123, tests/kat_vectors, philox4x32 with 10 rounds).
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], words: list[int]) -> None:
    assert philox4x32(np.array(counter), np.array(key)).tolist() == words


def test_rows_are_independent() -> None:
    counters = np.array([counter for counter, _, _ in KNOWN], dtype=np.uint64)
    keys = np.array([key for _, key, _ in KNOWN], dtype=np.uint64)
    assert philox4x32(counters, keys).tolist() == [words for _, _, words in KNOWN]


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**31 - 1),
    sample_index=st.integers(0, 2**31 - 1),
)
def test_uniform_is_the_layout_of_the_specification(
    seed: int, position: int, sample_index: int
) -> None:
    """docs/architecture.md, "The draw", in Python's integers."""
    words = philox4x32(
        np.array([position, sample_index, 0, 0]), np.array([seed & 0xFFFFFFFF, seed >> 32])
    )
    x0, x1 = int(words[0]), int(words[1])
    u = uniform(
        np.array([seed], dtype=np.uint64),
        np.array([position], dtype=np.int32),
        np.array([sample_index], dtype=np.int32),
    )
    assert u[0] == ((x0 << 21) | (x1 >> 11)) / 2**53
    assert 0 <= u[0] < 1


def test_uniform_is_uniform() -> None:
    n = 20_000
    seeds = np.repeat(np.arange(n // 100, dtype=np.uint64), 100)
    u = uniform(seeds, np.tile(np.arange(100), n // 100), np.zeros(n, dtype=np.int32))
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    assert (np.abs(counts - n / 20) < 5 * np.sqrt(n / 20)).all()
    assert len(np.unique(u)) == n
