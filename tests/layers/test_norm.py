from __future__ import annotations

import numpy as np

from octavo.kernels.ops import Ops
from octavo.layers.norm import QKNorm, RMSNorm
from tests.layers.lab import fill, reference, run

X = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)


def test_rms_norm_and_its_post_norm_form() -> None:
    backend = reference()
    norm = RMSNorm("norm", 6, 1e-5, offset=1.0)
    weight = fill(norm, backend)["norm.weight"]

    def forward(ops: Ops) -> None:
        x = ops.input("x", 6)
        ops.output("norm", norm(ops, x))
        ops.output("add", norm.add(ops, x, ops.input("residual", 6)))

    taps = run(backend, forward, {"x": X, "residual": 2 * X})
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-5) * (1 + weight)
    np.testing.assert_allclose(taps["norm"], expected, rtol=1e-5)
    np.testing.assert_allclose(taps["add"], expected + 2 * X, rtol=1e-5, atol=1e-6)


def test_qk_norm_packs_both() -> None:
    backend = reference()
    norm = QKNorm(RMSNorm("q_norm", 6, 1e-6, offset=1.0), RMSNorm("k_norm", 6, 1e-6, offset=1.0))
    for slot in norm.find(RMSNorm):
        fill(slot, backend)
    packed = norm.packed
    assert (packed.q.shape, packed.k.shape, packed.eps, packed.offset) == ((6,), (6,), 1e-6, 1.0)
