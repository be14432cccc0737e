"""Bytes and flops, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat
from octavo.entrypoints.bench import costs
from octavo.entrypoints.bench.costs import Cost, StepShape, count_ops, total
from octavo.errors import KernelError
from octavo.kernels.cpu_ceilings import Ceilings
from octavo.kernels.ops import OPS, Activation, HeadShape, Ops, Rows, Value, Weight

MIXED = StepShape(query_lens=(3, 1), seq_lens=(3, 5), num_logit_rows=2)
"""A prompt of three tokens, and a request's fifth token."""

HEADS = HeadShape(num_heads=2, num_kv_heads=1, head_dim=2)


class ShapeOps:
    """Gives out values of the right shape."""

    def __init__(self, act: DType) -> None:
        self._act = act

    def embedding(self, table: Weight, *, scale: float = 1.0) -> Value:
        return Value(None, Rows.TOKENS, table.shape[1], DType.F32)

    def rms_norm(self, x: Value, weight: Weight, *, eps: float, offset: float = 0.0) -> Value:
        return Value(None, x.rows, x.width, self._act)

    def qkv_rope_store(self, x: Value, weight: Weight, *rest: Any) -> Value:
        return Value(None, x.rows, HEADS.num_heads * HEADS.head_dim, self._act)

    def attention(self, q: Value, *args: Any, **options: Any) -> Value:
        return q

    def linear_add(self, x: Value, weight: Weight, residual: Value) -> Value:
        return residual

    def gated_linear(self, x: Value, weight: Weight, activation: Activation) -> Value:
        return Value(None, x.rows, weight.shape[0] // 2, self._act)

    def select_rows(self, x: Value) -> Value:
        return Value(None, Rows.LOGITS, x.width, x.dtype)

    def logits(self, x: Value, weight: Weight, **options: Any) -> Value:
        return Value(None, x.rows, weight.shape[0], DType.F32)

    def output(self, name: str, x: Value) -> None:
        pass


def weight(*shape: int, itemsize: int = 4) -> Weight:
    count = 1
    for size in shape:
        count *= size
    return Weight(None, shape, count * itemsize)


def forward(ops: Ops) -> None:
    """One layer of width 4 and a head over 10 tokens."""
    table = weight(10, 4)
    x = ops.embedding(table)
    h = ops.rms_norm(x, weight(4), eps=1e-5)
    kv: Any = None
    q = ops.qkv_rope_store(h, weight(8, 4), kv, HEADS, None)
    a = ops.attention(q, kv, HEADS, scale=0.5)
    x = ops.linear_add(a, weight(4, 4), x)
    g = ops.gated_linear(ops.rms_norm(x, weight(4), eps=1e-5), weight(12, 4), Activation.SILU)
    x = ops.linear_add(g, weight(4, 6), x)
    ops.output("hidden_states", x)
    ops.output("logits", ops.logits(ops.select_rows(x), table))


def count(step: StepShape) -> list[tuple[str, str, Cost]]:
    ops: Any = ShapeOps(DType.F32)
    return [(o.name, o.detail, o.cost(step)) for o in count_ops(forward, ops, DType.F32)]


def cost(bytes: int = 0, activation_bytes: int = 0, f32: int | None = None) -> Cost:
    flops = {} if f32 is None else {"f32": f32}
    return Cost(bytes=bytes, activation_bytes=activation_bytes, flops=flops)


def test_a_layer_by_hand() -> None:
    """4 tokens; a row of width 4 has 16 bytes; a token's key and value have 2 * 2 * 4 bytes."""
    rows = 4 * 16
    assert count(MIXED) == [
        ("embedding", "", cost(4 * 16, rows)),
        ("rms_norm", "4", cost(0, 2 * rows)),
        ("qkv_rope_store", "8×4", cost(8 * 4 * 4 + 4 * 16, 2 * rows, 2 * 4 * 8 * 4)),
        # 3 + 5 tokens read; 1 + 2 + 3 and 5 pairs, each 2 products over 2 heads of 2.
        ("attention", "2/1 heads of 2", cost(8 * 16, 2 * rows, 11 * 2 * 2 * 2 * 2)),
        ("linear_add", "4×4", cost(4 * 4 * 4, 3 * rows, 2 * 4 * 4 * 4)),
        ("rms_norm", "4", cost(0, 2 * rows)),
        ("gated_linear", "12×4", cost(12 * 4 * 4, rows + 4 * 24, 2 * 4 * 12 * 4)),
        ("linear_add", "4×6", cost(4 * 6 * 4, 4 * 24 + 2 * rows, 2 * 4 * 6 * 4)),
        ("output", "", cost()),
        ("select_rows", "", cost(0, 2 * 2 * 16)),
        ("logits", "10×4", cost(10 * 4 * 4, 2 * 16 + 2 * 40, 2 * 2 * 10 * 4)),
        ("output", "", cost()),
    ]


def test_the_total_adds_up() -> None:
    ops: Any = ShapeOps(DType.F32)
    counted = count_ops(forward, ops, DType.F32)
    assert total(counted, MIXED).bytes == 64 + 192 + 128 + 64 + 192 + 96 + 160
    assert total(counted, MIXED).flops == {"f32": 256 + 176 + 128 + 384 + 192 + 160}


def test_a_step_without_logits_reads_no_head() -> None:
    step = StepShape(query_lens=(3,), seq_lens=(3,), num_logit_rows=0)
    assert [c for name, _, c in count(step) if name == "logits"] == [costs.NOTHING]


def test_a_window_limits_what_is_read() -> None:
    """Window 2: the prompt's pairs are 1 + 2 + 2, the other's 2; 3 and 2 tokens are read."""

    def windowed(ops: Ops) -> None:
        x = ops.embedding(weight(10, 4))
        ops.attention(x, None, HEADS, scale=1.0, sliding_window=2)  # type: ignore[arg-type]

    ops: Any = ShapeOps(DType.BF16)
    attention = count_ops(windowed, ops, DType.BF16)[1].cost(MIXED)
    assert attention.bytes == (3 + 2) * 2 * 2 * 2
    assert attention.flops == {"bf16": (5 + 2) * 4 * 2 * 2}


@given(first=st.integers(0, 40), count=st.integers(1, 40), window=st.integers(1, 50))
def test_causal_pairs(first: int, count: int, window: int) -> None:
    pairs = sum(min(p + 1, window) for p in range(first, first + count))
    assert costs._causal_pairs(first, first + count, window) == pairs


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_the_kind_of_product_follows_the_weight(dtype: DType) -> None:
    kinds = {
        format: costs.product_kind(Weight(None, (64, 32), 0, format), dtype)
        for format in (None, *WeightFormat)
    }
    plain = "f32" if dtype is DType.F32 else "bf16"
    assert kinds.pop(None) == kinds.pop(WeightFormat(dtype.value)) == plain
    kinds.pop(WeightFormat.F32, None)
    kinds.pop(WeightFormat.BF16, None)
    assert len(kinds) >= 8
    assert set(kinds.values()) == {"int8"}


def test_every_op_has_a_rule() -> None:
    assert set(costs.RULES) == set(OPS)


def test_an_op_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "RULES", {})
    ops: Any = ShapeOps(DType.F32)
    with pytest.raises(KernelError, match="'embedding' has no rule"):
        count_ops(forward, ops, DType.F32)


def test_roofline() -> None:
    """The larger of the two, and different products one after the other."""
    ceilings = Ceilings(bandwidth=10.0, peak={"bf16": 100.0, "int8": 200.0})
    both = Cost(bytes=40, flops={"bf16": 100, "int8": 400})
    assert both.memory_seconds(ceilings) == 4.0
    assert both.compute_seconds(ceilings) == 3.0
    assert both.roofline_seconds(ceilings) == 4.0
    assert (both + Cost(flops={"bf16": 200})).roofline_seconds(ceilings) == 5.0


def test_shapes() -> None:
    assert StepShape.decode(2, 7) == StepShape(query_lens=(1, 1), seq_lens=(7, 7), num_logit_rows=2)
    assert StepShape.prefill(1, 9) == StepShape(query_lens=(9,), seq_lens=(9,), num_logit_rows=1)
    assert MIXED.num_tokens == 4
