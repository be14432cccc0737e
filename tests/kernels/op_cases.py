"""One or more cases per op: what to build, which rows to feed. `test_contract` does the rest.

A case's forward ends in taps; "out" is the op's result. Its inputs are functions of (request,
position), so that the same row can be computed in any batch, at any place, in any chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat
from octavo.kernels.ops import Activation, HeadNorm, HeadShape, Ops
from octavo.kernels.sync import Collective
from octavo.quant.gguf import smallest_format
from tests.kernels.op_lab import VOCAB, Forward, Lab, OpCase

CASES: list[OpCase] = []


def _case(op: str, variant: str, lengths: tuple[int, ...] | None = None) -> Callable[..., None]:
    def add(build: Callable[[Lab], Forward]) -> None:
        CASES.append(OpCase(op, variant, build, *([lengths] if lengths else [])))

    return add


# ------------------------------------------------------------------ inputs, outputs, norms

for width in (33, 64):

    @_case("input", f"width-{width}")
    def _(lab: Lab, width: int = width) -> Forward:
        return lambda ops: ops.output("out", lab.rows(ops, "x", width))

    @_case("output", f"width-{width}")
    def _(lab: Lab, width: int = width) -> Forward:
        def forward(ops: Ops) -> None:
            x = lab.rows(ops, "x", width)
            ops.output("first", x)
            act = lab.act(ops, width)
            ops.output("out", act)

        return forward

    @_case("select_rows", f"width-{width}")
    def _(lab: Lab, width: int = width) -> Forward:
        def forward(ops: Ops) -> None:
            ops.output("residual", ops.select_rows(lab.rows(ops, "y", width)))
            ops.output("out", ops.select_rows(lab.act(ops, width)))

        return forward


for tied, width, scale in ((False, 33, 1.0), (False, 64, 8.0), (True, 33, 1.0), (True, 80, 0.5)):

    @_case("embedding", f"{'tied' if tied else 'plain'}-{width}-scale-{scale}")
    def _(lab: Lab, tied: bool = tied, width: int = width, scale: float = scale) -> Forward:
        table = lab.tensor(VOCAB, width)
        pack = lab.backend.pack_embedding
        weight = lab.backend.pack_linear([table]) if tied else pack(table)
        return lambda ops: ops.output("out", ops.embedding(weight, scale=scale))


for width, eps, offset in ((33, 1e-6, 0.0), (64, 1e-5, 0.0), (576, 1e-5, 1.0)):

    @_case("rms_norm", f"{width}-offset-{offset}")
    def _(lab: Lab, width: int = width, eps: float = eps, offset: float = offset) -> Forward:
        weight = lab.backend.pack_vector(lab.tensor(width, mean=1 - offset))

        def forward(ops: Ops) -> None:
            x = lab.rows(ops, "x", width)
            ops.output("out", ops.rms_norm(x, weight, eps=eps, offset=offset))
            chosen = ops.select_rows(x)
            ops.output("logits_rows", ops.rms_norm(chosen, weight, eps=eps, offset=offset))

        return forward

    @_case("rms_norm_add", f"{width}-offset-{offset}")
    def _(lab: Lab, width: int = width, eps: float = eps, offset: float = offset) -> Forward:
        weight = lab.backend.pack_vector(lab.tensor(width, mean=1 - offset))

        def forward(ops: Ops) -> None:
            x, residual = lab.rows(ops, "x", width), lab.rows(ops, "residual", width)
            ops.output("out", ops.rms_norm_add(x, weight, residual, eps=eps, offset=offset))

        return forward

    @_case("layer_norm", f"{width}-{'bias' if offset else 'plain'}")
    def _(lab: Lab, width: int = width, eps: float = eps, with_bias: bool = offset > 0) -> Forward:
        weight = lab.backend.pack_vector(lab.tensor(width, mean=1))
        bias = lab.backend.pack_vector(lab.tensor(width)) if with_bias else None

        def forward(ops: Ops) -> None:
            x = lab.rows(ops, "x", width)
            ops.output("out", ops.layer_norm(x, weight, bias, eps=eps))
            ops.output("logits_rows", ops.layer_norm(ops.select_rows(x), weight, bias, eps=eps))

        return forward


# ------------------------------------------------------------------ linear maps

LINEAR = [  # (variant, K, sizes of the parts, bias, dtype of the weight's tensor)
    ("square", 64, (64,), False, DType.F32),
    ("odd", 33, (7,), True, DType.F32),
    ("parts", 48, (32, 17, 16), True, DType.BF16),
    ("long", 1600, (40,), False, DType.F16),
    ("q8_0", 64, (96,), False, DType.Q8_0),
    ("q4_1", 96, (33,), False, DType.Q4_1),
    ("one", 32, (1,), False, DType.F32),
]
for variant, k, sizes, bias, dtype in LINEAR:

    @_case("linear", variant)
    def _(lab: Lab, k: int = k, sizes=sizes, bias: bool = bias, dtype: DType = dtype) -> Forward:
        parts = [lab.tensor(n, k, dtype=dtype) for n in sizes]
        weight = lab.backend.pack_linear(parts, [lab.tensor(n) for n in sizes] if bias else None)
        return lambda ops: ops.output("out", ops.linear(lab.act(ops, k), weight))

    @_case("linear_add", variant)
    def _(lab: Lab, k: int = k, sizes=sizes, bias: bool = bias, dtype: DType = dtype) -> Forward:
        parts = [lab.tensor(n, k, dtype=dtype) for n in sizes]
        weight = lab.backend.pack_linear(parts, [lab.tensor(n) for n in sizes] if bias else None)

        def forward(ops: Ops) -> None:
            residual = lab.rows(ops, "residual", sum(sizes))
            ops.output("out", ops.linear_add(lab.act(ops, k), weight, residual))

        return forward


QUANTIZED = {  # variant: (K, format, dtypes of the parts)
    "int8": (70, WeightFormat.INT8, [DType.F32, DType.BF16]),
    "int8-long": (2100, WeightFormat.INT8, [DType.F32]),
    "int4": (70, WeightFormat.INT4_G32_MIN, [DType.F32]),
    "int8-groups": (64, WeightFormat.INT8_G32, [DType.F16]),
    "q4_0": (96, WeightFormat.INT4_G32, [DType.Q4_0]),
    "q4_1": (64, WeightFormat.INT4_G32_MIN, [DType.Q4_1, DType.Q4_1]),
    "q4_1-long": (2080, WeightFormat.INT4_G32_MIN, [DType.Q4_1]),
    "q5_0": (64, WeightFormat.INT8_G32, [DType.Q5_0]),
    "q5_1": (64, WeightFormat.INT8_G32_MIN, [DType.Q5_1]),
    "q8_0": (64, WeightFormat.INT8_G32, [DType.Q8_0]),
    "q4_k": (256, WeightFormat.INT4_G32_MIN_F32, [DType.Q4_K]),
    "q5_k": (256, WeightFormat.INT8_G32_MIN, [DType.Q5_K]),
    "q6_k": (512, WeightFormat.INT8_G16, [DType.Q6_K]),
    "q4_k-q6_k": (256, WeightFormat.INT8_G16_MIN, [DType.Q4_K, DType.Q6_K]),
}


def _quantized(lab: Lab, variant: str, n: int, *, bias: bool = False, gated: bool = False):
    """A weight of as many parts of n rows as the variant has types (gated: two of the first)."""
    k, format, dtypes = QUANTIZED[variant]
    parts = [lab.tensor(n, k, dtype=dtype) for dtype in (dtypes[:1] * 2 if gated else dtypes)]
    biases = [lab.tensor(n) for _ in parts] if bias else None
    return k, lab.backend.pack_linear(parts, biases, gated=gated, format=format)


for variant in QUANTIZED:

    @_case("linear", f"quantized-{variant}")
    def _(lab: Lab, variant: str = variant) -> Forward:
        k, weight = _quantized(lab, variant, 45, bias=True)
        return lambda ops: ops.output("out", ops.linear(lab.act(ops, k), weight))

    @_case("embedding", f"quantized-{variant}")
    def _(lab: Lab, variant: str = variant) -> Forward:
        k, format, dtypes = QUANTIZED[variant]
        table = lab.backend.pack_embedding(lab.tensor(VOCAB, k, dtype=dtypes[0]), format=format)
        return lambda ops: ops.output("out", ops.embedding(table, scale=3.0))


for variant in ("int8", "q4_1", "q8_0", "q6_k"):

    @_case("linear_add", f"quantized-{variant}")
    def _(lab: Lab, variant: str = variant) -> Forward:
        k, weight = _quantized(lab, variant, 20)

        def forward(ops: Ops) -> None:
            act, residual = lab.act(ops, k), lab.rows(ops, "residual", weight.shape[0])
            ops.output("out", ops.linear_add(act, weight, residual))

        return forward

    @_case("gated_linear", f"quantized-{variant}")
    def _(lab: Lab, variant: str = variant) -> Forward:
        k, weight = _quantized(lab, variant, 25, bias=True, gated=True)
        return lambda ops: ops.output(
            "out", ops.gated_linear(lab.act(ops, k), weight, Activation.SILU)
        )

    @_case("logits", f"quantized-{variant}")
    def _(lab: Lab, variant: str = variant) -> Forward:
        k, weight = _quantized(lab, variant, 50)

        def forward(ops: Ops) -> None:
            x = ops.select_rows(lab.act(ops, k))
            ops.output("out", ops.logits(x, weight, scale=0.5))

        return forward

    @_case("argmax", f"quantized-{variant}")
    def _(lab: Lab, variant: str = variant) -> Forward:
        k, weight = _quantized(lab, variant, 50)

        def forward(ops: Ops) -> None:
            x = ops.select_rows(lab.act(ops, k))
            ops.output("out", ops.argmax(x, weight, scale=0.5))

        return forward


for activation, k, n, bias in (
    (Activation.SILU, 64, 96, False),
    (Activation.SILU, 33, 33, True),
    (Activation.GELU_TANH, 48, 20, False),
    (Activation.GELU, 80, 16, True),
):

    @_case("gated_linear", f"{activation.value}-{k}-{n}")
    def _(lab: Lab, activation=activation, k: int = k, n: int = n, bias: bool = bias) -> Forward:
        parts = [lab.tensor(n, k), lab.tensor(n, k)]
        biases = [lab.tensor(n), lab.tensor(n)] if bias else None
        weight = lab.backend.pack_linear(parts, biases, gated=True)
        return lambda ops: ops.output("out", ops.gated_linear(lab.act(ops, k), weight, activation))


for vocab, scale, soft_cap in ((100, 1.0, None), (33, 0.25, None), (VOCAB, 2.0, 3.0)):

    @_case("logits", f"{vocab}-scale-{scale}-cap-{soft_cap}")
    def _(lab: Lab, vocab: int = vocab, scale: float = scale, soft_cap=soft_cap) -> Forward:
        weight = lab.backend.pack_linear([lab.tensor(vocab, 48)])

        def forward(ops: Ops) -> None:
            x = ops.select_rows(lab.act(ops, 48))
            ops.output("out", ops.logits(x, weight, scale=scale, soft_cap=soft_cap))

        return forward

    @_case("argmax", f"{vocab}-scale-{scale}-cap-{soft_cap}")
    def _(lab: Lab, vocab: int = vocab, scale: float = scale, soft_cap=soft_cap) -> Forward:
        weight = lab.backend.pack_linear([lab.tensor(vocab, 48)])

        def forward(ops: Ops) -> None:
            x = ops.select_rows(lab.act(ops, 48))
            ops.output("out", ops.argmax(x, weight, scale=scale, soft_cap=soft_cap))

        return forward


# ------------------------------------------------------------------ the world outside


class TwoAlike(Collective):
    """Another rank that has the very same rows."""

    rank, size = 0, 2

    def all_reduce(self, rows: np.ndarray) -> None:
        rows += rows.copy()


for width in (33, 64):

    @_case("host_call", f"width-{width}")
    def _(lab: Lab, width: int = width) -> Forward:
        def reverse(rows: np.ndarray) -> None:
            rows[:] = rows[:, ::-1].copy()

        def forward(ops: Ops) -> None:
            ops.output("out", ops.host_call(lab.act(ops, width), reverse))
            x = ops.select_rows(lab.rows(ops, "y", width))
            ops.output("logits_rows", ops.host_call(x, reverse))

        return forward

    @_case("all_reduce", f"width-{width}")
    def _(lab: Lab, width: int = width) -> Forward:
        group = TwoAlike()
        return lambda ops: ops.output("out", ops.all_reduce(lab.rows(ops, "x", width), group))


for name in ("signal", "wait"):

    @_case(name, "between-ops")
    def _(lab: Lab, name: str = name) -> Forward:
        weight = lab.backend.pack_linear([lab.tensor(40, 32)])

        def forward(ops: Ops) -> None:
            x = lab.act(ops, 32)
            getattr(ops, name)(1)
            ops.output("out", ops.linear(x, weight))

        return forward


# ------------------------------------------------------------------ attention


@dataclass(frozen=True, kw_only=True)
class _Attention:
    """A layer, and the requests that meet in it."""

    heads: tuple[int, int, int]
    k: int = 48
    bias: bool = False
    rotary_dim: int = 0
    interleaved: bool = False
    norm_offset: float | None = None
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False
    dtype: DType = DType.F32
    lengths: tuple[int, ...] = (1, 5, 37, 16)


ATTENTION = {
    "mha": _Attention(heads=(4, 4, 16), rotary_dim=16),
    "gqa": _Attention(heads=(4, 2, 16), rotary_dim=16, bias=True),
    "gqa-3": _Attention(heads=(9, 3, 64), rotary_dim=64, k=64),
    "mqa": _Attention(heads=(6, 1, 32), rotary_dim=32),
    "odd-size": _Attention(heads=(3, 3, 20), rotary_dim=20, k=33),
    "interleaved": _Attention(heads=(4, 2, 16), rotary_dim=16, interleaved=True),
    "partial": _Attention(heads=(4, 2, 24), rotary_dim=12),
    "partial-interleaved": _Attention(heads=(2, 1, 32), rotary_dim=8, interleaved=True),
    "q4_1": _Attention(heads=(4, 2, 16), rotary_dim=16, k=64, bias=True, dtype=DType.Q4_1),
    "q8_0": _Attention(heads=(3, 1, 20), rotary_dim=20, k=96, dtype=DType.Q8_0),
    "dim-96": _Attention(heads=(4, 2, 96), rotary_dim=96, lengths=(1, 40, 7)),
    "dim-128": _Attention(heads=(3, 1, 128), rotary_dim=128, k=64, lengths=(40, 1, 7)),
    "dim-256": _Attention(heads=(2, 1, 256), rotary_dim=256, norm_offset=1.0, lengths=(7, 40)),
    "dim-256-window": _Attention(heads=(2, 2, 256), window=20, soft_cap=3.0, lengths=(70, 1)),
    "no-rope": _Attention(heads=(2, 2, 16)),
    "head-norm": _Attention(heads=(4, 2, 16), rotary_dim=16, norm_offset=0.0),
    "head-norm-offset": _Attention(heads=(4, 1, 40), rotary_dim=20, norm_offset=1.0, bias=True),
    "soft-cap": _Attention(heads=(4, 2, 16), rotary_dim=16, soft_cap=2.0),
    "window-5": _Attention(heads=(4, 2, 16), rotary_dim=16, window=5, lengths=(1, 23, 70)),
    "window-16": _Attention(heads=(2, 1, 16), rotary_dim=16, window=16, lengths=(40, 3, 65)),
    "window-1": _Attention(heads=(2, 1, 16), rotary_dim=16, window=1, lengths=(40, 3)),
    "sinks": _Attention(heads=(8, 2, 16), rotary_dim=16, sinks=True, lengths=(1, 37, 5)),
    "sinks-window": _Attention(heads=(2, 1, 64), sinks=True, window=20, lengths=(70, 1)),
    "sinks-long": _Attention(heads=(4, 2, 16), sinks=True, lengths=(300, 2, 40)),
    "long": _Attention(heads=(4, 2, 16), rotary_dim=16, lengths=(300, 2, 40)),
    "long-window": _Attention(heads=(2, 1, 16), rotary_dim=16, window=280, lengths=(300, 20)),
    "long-cap": _Attention(heads=(3, 1, 32), soft_cap=3.0, lengths=(257, 30)),
}


def _attention_forward(lab: Lab, a: _Attention) -> Forward:
    num_heads, num_kv_heads, dim = a.heads
    heads = HeadShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=dim)
    sizes = [num_heads * dim, num_kv_heads * dim, num_kv_heads * dim]
    weight = lab.backend.pack_linear(
        [lab.tensor(n, a.k, dtype=a.dtype) for n in sizes],
        [lab.tensor(n) for n in sizes] if a.bias else None,
        format=smallest_format({a.dtype}),
    )
    norm = None
    if a.norm_offset is not None:
        q, k = (lab.backend.pack_vector(lab.tensor(dim, mean=1 - a.norm_offset)) for _ in range(2))
        norm = HeadNorm(q=q, k=k, eps=1e-6, offset=a.norm_offset)
    rope = lab.rope(a.rotary_dim, interleaved=a.interleaved) if a.rotary_dim else None
    kv = lab.kv(heads, a.window)
    sinks = lab.backend.pack_vector(lab.tensor(num_heads, mean=1.0)) if a.sinks else None

    def forward(ops: Ops) -> None:
        q = ops.qkv_rope_store(lab.act(ops, a.k), weight, kv, heads, rope, norm)
        ops.output("q", q)
        out = ops.attention(
            q,
            kv,
            heads,
            scale=1.5 * dim**-0.5,
            sliding_window=a.window,
            soft_cap=a.soft_cap,
            sinks=sinks,
        )
        ops.output("out", out)

    return forward


for variant, attention in ATTENTION.items():
    # The two ops need each other: what one stores is seen by what the other reads.
    op = "attention" if len(attention.lengths) < 4 else "qkv_rope_store"

    @_case(op, variant, attention.lengths)
    def _(lab: Lab, attention: _Attention = attention) -> Forward:
        return _attention_forward(lab, attention)
