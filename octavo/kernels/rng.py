"""The counter-based stream that sampling draws from: Philox4x32-10, in numpy. The specification.

Salmon, Moraes, Dror, Shaw, *Parallel Random Numbers: As Easy as 1, 2, 3* (SC 2011), section 3.3.
A draw is a pure function of its key, so it does not depend on what else is in the batch, on the
order of rows, or on how often a step was repeated.
"""

from __future__ import annotations

import enum

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


class Purpose(enum.IntEnum):
    """What a draw is for: the third word of the counter, so that streams never overlap."""

    SAMPLE = 0


def philox4x32(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of each row.

    Args:
        counter: [..., 4] integers below 2³².
        key: [..., 2] integers below 2³².

    Returns:
        [..., 4] uint32.
    """
    c0, c1, c2, c3 = np.moveaxis(counter.astype(np.uint64), -1, 0)
    k0, k1 = np.moveaxis(key.astype(np.uint64), -1, 0)
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniform(
    seed: np.ndarray,
    position: np.ndarray,
    sample_index: np.ndarray,
    purpose: Purpose = Purpose.SAMPLE,
) -> np.ndarray:
    """One draw from [0, 1) per row, a multiple of 2⁻⁵³.

    Args:
        seed: [R] uint64.
        position: [R] absolute position of the token to be sampled.
        sample_index: [R] which of a request's n completions.
        purpose: separates draws of the same position.

    Returns:
        [R] float64.
    """
    seed = np.asarray(seed, dtype=np.uint64)
    key = np.stack([seed & _LOW, seed >> _32], axis=-1)
    counter = np.zeros((*seed.shape, 4), dtype=np.uint64)
    counter[..., 0] = position
    counter[..., 1] = sample_index
    counter[..., 2] = int(purpose)
    words = philox4x32(counter, key).astype(np.uint64)
    bits = (words[..., 0] << np.uint64(21)) | (words[..., 1] >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
