"""GGUF blocks for tests: random bytes whose scales are of an ordinary size."""

from __future__ import annotations

import gguf
import numpy as np

from octavo.contracts.tensor import DType, HostTensor

BLOCK_DTYPES = [dtype for dtype in DType if dtype.is_block_format]

_HALVES = {  # offset of a float16 in the block → its size, for values of about 1
    DType.Q4_0: {0: 0.2},
    DType.Q4_1: {0: 0.2, 2: 1.5},
    DType.Q5_0: {0: 0.1},
    DType.Q5_1: {0: 0.1, 2: 1.5},
    DType.Q8_0: {0: 0.015},
    DType.Q4_K: {0: 0.006, 2: 0.05},
    DType.Q5_K: {0: 0.003, 2: 0.05},
    DType.Q6_K: {208: 0.0007},
}


def random_blocks(rng: np.random.Generator, dtype: DType, rows: int, k: int) -> HostTensor:
    """A tensor [rows, k] of a block format with every bit of its codes in use; values about
    k ** -0.5."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.name]]
    assert k % values == 0
    blocks = rng.integers(0, 256, (rows, k // values, size), dtype=np.uint8)
    for at, scale in _HALVES[dtype].items():
        halves = rng.uniform(0.3, 1, blocks.shape[:2]) * rng.choice([-1, 1], blocks.shape[:2])
        halves = (halves * scale * k**-0.5).astype(np.float16)
        blocks[..., at : at + 2] = halves.view(np.uint8).reshape(*halves.shape, 2)
    return HostTensor(blocks.reshape(rows, -1), dtype, (rows, k))
