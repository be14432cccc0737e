from __future__ import annotations

import numpy as np
import pytest

from octavo.kernels.ops import Ops
from octavo.layers.embedding import Embedding, LMHead
from octavo.layers.linear import ColumnParallelLinear
from tests.layers.lab import fill, reference, run

X = np.random.default_rng(3).standard_normal((4, 6)).astype(np.float32)


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head(tied: bool) -> None:
    backend = reference()
    embedding = Embedding("embed", 10, 6, scale=3.0, tied=tied)
    table = fill(embedding, backend)["embed.weight"]
    if tied:
        head, weight = LMHead(embedding, scale=0.5, soft_cap=2.0), table
    else:
        linear = ColumnParallelLinear({"lm_head": [10]}, 6)
        weight = fill(linear, backend, seed=1)["lm_head.weight"]
        head = LMHead(linear, scale=0.5, soft_cap=2.0)

    def forward(ops: Ops) -> None:
        ops.output("embedded", embedding(ops))
        ops.output("logits", head(ops, ops.select_rows(ops.input("x", 6))))

    taps = run(backend, forward, {"x": X})
    np.testing.assert_array_equal(taps["embedded"], table[:4] * 3)
    expected = 2.0 * np.tanh(0.5 * (X @ weight.T) / 2.0)
    np.testing.assert_allclose(taps["logits"], expected, rtol=1e-5, atol=1e-6)
