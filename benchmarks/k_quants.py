"""Encoders of GGUF's K-quants, which the `gguf` package only decodes.

Scales come from the extremes of each group, without llama.cpp's search: the blocks are valid, and a
little worse than llama.cpp's. Layouts: ggml-org/ggml, src/ggml-common.h.
"""

from __future__ import annotations

import numpy as np

from octavo.contracts.tensor import DType

SUPER_BLOCK = 256


def encode(values: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 [N, K], K a multiple of 256 → rows of blocks, uint8 [N, bytes]."""
    blocks = values.reshape(-1, SUPER_BLOCK)
    if dtype is DType.Q6_K:
        packed = _q6_k(blocks)
    else:
        packed = _with_minima(blocks, bits=4 if dtype is DType.Q4_K else 5)
    return packed.reshape(len(values), -1)


def _halves(values: np.ndarray) -> np.ndarray:
    """[B] → float16 bytes [B, 2]."""
    return values.astype(np.float16).view(np.uint8).reshape(-1, 2)


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape, a.dtype), where=b != 0)


def _with_minima(blocks: np.ndarray, *, bits: int) -> np.ndarray:
    """Q4_K and Q5_K: eight groups of 32, value = d * scale * code - dmin * min."""
    x = blocks.reshape(-1, 8, 32)
    low = np.minimum(x.min(-1), 0)
    scale = (np.maximum(x.max(-1), 0) - low) / ((1 << bits) - 1)
    d = (scale.max(-1) / 63).astype(np.float16).astype(np.float32)
    dmin = (-low.min(-1) / 63).astype(np.float16).astype(np.float32)
    sc = np.clip(np.rint(_divided(scale, d[:, None])), 0, 63).astype(np.uint8)
    m = np.clip(np.rint(_divided(-low, dmin[:, None])), 0, 63).astype(np.uint8)
    shifted = x + (dmin[:, None] * m)[..., None]
    codes = np.rint(_divided(shifted, (d[:, None] * sc)[..., None]))
    codes = np.clip(codes, 0, (1 << bits) - 1).astype(np.uint8)
    parts = [_halves(d), _halves(dmin), _six_bits(sc, m)]
    if bits == 5:
        high = (codes >> 4) << np.arange(8, dtype=np.uint8)[:, None]
        parts.append(np.bitwise_or.reduce(high, axis=1))
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    parts.append((pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(x), -1))
    return np.concatenate(parts, axis=1)


def _six_bits(sc: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Eight scales and eight minima of 6 bits in 12 bytes."""
    first = sc[:, :4] | sc[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    third = (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Sixteen groups of 16, value = d * scale * (code - 32)."""
    x = blocks.reshape(-1, 16, 16)
    scale = np.abs(x).max(-1) / 31
    d = (scale.max(-1) / 127).astype(np.float16).astype(np.float32)
    sc = np.clip(np.rint(_divided(scale, d[:, None])), 0, 127).astype(np.int8)
    codes = np.rint(_divided(x, (d[:, None] * sc)[..., None]))
    codes = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = codes & 15
    nibbles = np.concatenate(
        [low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], 2
    )
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(codes >> 4 << shifts, axis=2)
    size = len(blocks)
    return np.concatenate(
        [nibbles.reshape(size, -1), high.reshape(size, -1), sc.view(np.uint8), _halves(d)], axis=1
    )
