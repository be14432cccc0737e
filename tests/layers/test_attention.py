from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.contracts.kv_spec import FullAttentionSpec, SlidingWindowSpec
from octavo.contracts.tensor import DType
from octavo.errors import KernelError
from octavo.kernels.ops import HeadShape, Ops
from octavo.layers.attention import Attention
from octavo.layers.linear import ColumnParallelLinear, RowParallelLinear
from octavo.layers.norm import QKNorm, RMSNorm
from octavo.layers.rope import RopeParameters, RopeScaling
from tests.layers.lab import MAX_LEN, allocate, fill, reference, run

HEADS = HeadShape(num_heads=4, num_kv_heads=2, head_dim=8)
ROPE = RopeParameters(rotary_dim=8, theta=100.0, scaling=RopeScaling())
X = np.random.default_rng(5).standard_normal((9, 12)).astype(np.float32)


def make(**options: Any) -> Attention:
    return Attention(
        "layer",
        heads=HEADS,
        qkv_proj=ColumnParallelLinear({"q": [32], "k": [16], "v": [16]}, 12),
        o_proj=RowParallelLinear("o", 32, 12),
        rope=options.pop("rope", ROPE),
        **options,
    )


def test_kv_spec_says_whether_there_is_a_window() -> None:
    kept = {"num_kv_heads": 2, "head_size": 8, "head_size_v": 8, "dtype": DType.BF16}
    assert make().kv_spec(DType.BF16) == FullAttentionSpec(**kept)
    assert make(sliding_window=5).kv_spec(DType.BF16) == SlidingWindowSpec(**kept, sliding_window=5)


def test_use_before_bind_is_a_bug() -> None:
    backend = reference()
    layer = make()
    fill(layer.qkv_proj, backend)
    with pytest.raises(KernelError, match="before bind"):
        run(backend, lambda ops: ops.output("y", layer(ops, ops.input("x", 12))), {"x": X})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rope": None},
        {"scale": 0.1},
        {"sliding_window": 3},
        {"soft_cap": 1.5},
        {"qk_norm": True},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_equals_attention_written_out(options: dict[str, Any]) -> None:
    backend = reference()
    options = dict(options)
    if options.get("qk_norm"):
        options["qk_norm"] = QKNorm(RMSNorm("q_norm", 8, 1e-6), RMSNorm("k_norm", 8, 1e-6))
    layer = make(**options)
    t: dict[str, np.ndarray] = {}
    for seed, slot in enumerate(
        [*layer.find(ColumnParallelLinear), *layer.find(RowParallelLinear), *layer.find(RMSNorm)]
    ):
        t |= fill(slot, backend, seed)
    rope = None
    if layer.rope is not None:
        rope = backend.pack_rope(*layer.rope.tables(MAX_LEN), interleaved=False)
    layer.bind(allocate(backend, layer.kv_spec(DType.F32)).layer("layer"), rope)

    def forward(ops: Ops) -> None:
        x = ops.input("x", 12)
        ops.output("y", layer(ops, x))
        ops.output("sum", layer(ops, x, ops.input("residual", 12)))

    taps = run(backend, forward, {"x": X, "residual": X})
    expected = written_out(t, options, layer.rope)
    np.testing.assert_allclose(taps["y"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(taps["sum"], expected + X, rtol=1e-4, atol=1e-5)


def written_out(t: dict[str, np.ndarray], options: dict[str, Any], rope: Any) -> np.ndarray:
    """The whole layer over X with dense matrices."""
    n = len(X)
    q = (X @ t["q.weight"].T).reshape(n, 4, 8)
    k = (X @ t["k.weight"].T).reshape(n, 2, 8).repeat(2, axis=1)
    v = (X @ t["v.weight"].T).reshape(n, 2, 8).repeat(2, axis=1)
    if options.get("qk_norm"):
        q, k = (
            x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * t[f"{name}.weight"]
            for name, x in (("q_norm", q), ("k_norm", k))
        )
    if rope is not None:
        angles = np.outer(np.arange(n), 100.0 ** -(np.arange(0, 8, 2) / 8))[:, None]
        cos, sin = np.cos(angles), np.sin(angles)
        q, k = (
            np.concatenate(
                [x[..., :4] * cos - x[..., 4:] * sin, x[..., 4:] * cos + x[..., :4] * sin], axis=-1
            )
            for x in (q, k)
        )
    scores = np.einsum("ihd,jhd->hij", q, k) * options.get("scale", 8**-0.5)
    if cap := options.get("soft_cap"):
        scores = cap * np.tanh(scores / cap)
    distance = np.arange(n)[:, None] - np.arange(n)[None]
    window = options.get("sliding_window", n)
    scores = np.where((distance >= 0) & (distance < window), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v).reshape(n, 32)
    return out @ t["o.weight"].T
