"""The ops of the reference back end: plain torch on the CPU. They are the specification.

Each op computes in float64 from its inputs as they are stored and rounds what it returns at the
end: to float32, or to the activation format. Nothing is fused and nothing is fast. Rows are
computed one at a time, on buffers of their own, so that a row cannot depend on how many others
there are; attention is one query token at a time over exactly the slots that it may see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as functional

from octavo.contracts.kv_spec import NULL_BLOCK_ID, FullAttentionSpec
from octavo.contracts.tensor import DType, bf16_to_float32
from octavo.contracts.weight_format import Grouping
from octavo.errors import KernelError
from octavo.kernels.ops import (
    Activation,
    HeadNorm,
    HeadShape,
    KVLayer,
    Ops,
    RopeTable,
    Rows,
    StepInputs,
    Value,
    Weight,
)
from octavo.kernels.sync import Collective, ThreadCounters
from octavo.kernels.torch_quantized import quantize_row

TORCH_DTYPES = {DType.F32: torch.float32, DType.BF16: torch.bfloat16}

_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: functional.silu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    Activation.GELU: functional.gelu,
}


class _Rows(NamedTuple):
    """A value's handle. `act` keeps the two formats apart where both are float32; an external input
    (None) is either, by its dtype."""

    data: torch.Tensor  # [rows, width]
    act: bool | None


@dataclass(frozen=True)
class Linear:
    weight: torch.Tensor  # [N, K] float64, values as rounded to its format
    bias: torch.Tensor | None  # [N] float64, values as float32
    gated: bool
    grouping: Grouping | None = None  # of a quantized weight


@dataclass
class Packed:
    """A weight's handle: a `Linear`, or a norm's [D] float64; None while unloaded."""

    content: Any

    @property
    def loaded(self) -> Any:
        need(self.content is not None, "a weight of this program is unloaded")
        return self.content


@dataclass(frozen=True)
class Pages:
    """One layer's keys and values: views [blocks, block_size, Hkv, head_dim] of the pool."""

    k: torch.Tensor
    v: torch.Tensor
    spec: FullAttentionSpec


def need(condition: bool, message: str) -> None:
    if not condition:
        raise KernelError(message)


def _map_rows(
    x: torch.Tensor, row_map: Callable[[torch.Tensor], torch.Tensor], width: int
) -> torch.Tensor:
    """row_map of each row alone, in a fresh float64 buffer. [R, W] → [R, width] float64."""
    out = torch.empty(len(x), width, dtype=torch.float64)
    for i in range(len(x)):
        out[i] = row_map(x[i].to(torch.float64, copy=True))
    return out


def _apply(linear: Linear, row: torch.Tensor) -> torch.Tensor:
    if linear.grouping is not None:
        row = quantize_row(row, linear.grouping)
    y = torch.mv(linear.weight, row)
    return y if linear.bias is None else y + linear.bias


def _normalize(row: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    return row / torch.sqrt((row * row).mean(-1, keepdim=True) + eps) * (weight + offset)


def _soft_cap(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)


def _rotate(x: torch.Tensor, rope: RopeTable, position: int) -> torch.Tensor:
    """Rope of one token's heads. x [heads, head_dim] float64."""
    cos, sin = (table[position].double() for table in rope.handle)
    half, dim = rope.rotary_dim // 2, rope.rotary_dim
    out = x.clone()
    if rope.interleaved:
        a, b = slice(0, dim, 2), slice(1, dim, 2)
    else:
        a, b = slice(0, half), slice(half, dim)
    out[:, a] = x[:, a] * cos - x[:, b] * sin
    out[:, b] = x[:, b] * cos + x[:, a] * sin
    return out


class TorchOps(Ops):
    """Executes ops on one step.

    Args:
        is_trial: nothing outside is told of it.
    """

    def __init__(
        self, dtype: DType, step: StepInputs, counters: ThreadCounters, *, is_trial: bool
    ) -> None:
        self._dtype = dtype
        self._step = step
        self._counters = counters
        self._is_trial = is_trial
        self._num_tokens = len(step.token_ids)
        self.taps: dict[str, torch.Tensor] = {}

    # ---- inputs, outputs

    def input(self, name: str, width: int, dtype: DType = DType.F32) -> Value:
        need(
            dtype in TORCH_DTYPES,
            f"input {name!r}: dtype {dtype.value} is not float32 or bfloat16",
        )
        if self._num_tokens == 0:
            array = np.empty((0, width), dtype=np.float32)
        else:
            need(name in self._step.extra, f"the step has no extra input {name!r}")
            array = self._step.extra[name]
        need(
            array.shape == (self._num_tokens, width),
            f"input {name!r} is {array.shape}, not {(self._num_tokens, width)}",
        )
        values = bf16_to_float32(array) if array.dtype == np.uint16 else array
        data = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        return Value(_Rows(data.to(TORCH_DTYPES[dtype]), act=None), Rows.TOKENS, width, dtype)

    def output(self, name: str, x: Value) -> None:
        need(name not in self.taps, f"output {name!r} is named twice")
        self.taps[name] = x.handle.data

    def embedding(self, table: Weight, *, scale: float = 1.0) -> Value:
        weight = table.handle.loaded.weight
        need(not table.handle.loaded.gated, "a gated weight is no embedding table")
        ids = torch.from_numpy(self._step.token_ids).long()
        need(
            bool(((ids >= 0) & (ids < len(weight))).all()), f"a token id is not below {len(weight)}"
        )
        return self._f32(weight[ids] * scale, Rows.TOKENS)

    def select_rows(self, x: Value) -> Value:
        need(x.rows is Rows.TOKENS, "select_rows: rows must be tokens")
        rows = torch.from_numpy(self._step.logit_rows).long()
        return Value(_Rows(x.handle.data[rows], x.handle.act), Rows.LOGITS, x.width, x.dtype)

    # ---- norms

    def rms_norm(self, x: Value, weight: Weight, *, eps: float, offset: float = 0.0) -> Value:
        return self._act(self._norm(x, weight, eps, offset), x.rows)

    def rms_norm_add(
        self, x: Value, weight: Weight, residual: Value, *, eps: float, offset: float = 0.0
    ) -> Value:
        self._check_residual(residual, x.rows, x.width)
        return self._f32(residual.handle.data.double() + self._norm(x, weight, eps, offset), x.rows)

    def _norm(self, x: Value, weight: Weight, eps: float, offset: float) -> torch.Tensor:
        self._check_f32(x)
        need(weight.shape == (x.width,), f"norm weight {weight.shape} for rows of {x.width}")
        return _map_rows(
            x.handle.data, lambda row: _normalize(row, weight.handle.loaded, eps, offset), x.width
        )

    def layer_norm(self, x: Value, weight: Weight, bias: Weight | None, *, eps: float) -> Value:
        self._check_f32(x)
        for vector in (weight,) if bias is None else (weight, bias):
            need(vector.shape == (x.width,), f"norm weight {vector.shape} for rows of {x.width}")

        def row_map(row: torch.Tensor) -> torch.Tensor:
            centered = row - row.mean()
            y = centered / torch.sqrt((centered * centered).mean() + eps) * weight.handle.loaded
            return y if bias is None else y + bias.handle.loaded

        return self._act(_map_rows(x.handle.data, row_map, x.width), x.rows)

    # ---- linear maps

    def linear(self, x: Value, weight: Weight) -> Value:
        return self._f32(self._matmul(x, weight), x.rows)

    def linear_add(self, x: Value, weight: Weight, residual: Value) -> Value:
        self._check_residual(residual, x.rows, weight.shape[0])
        return self._f32(residual.handle.data.double() + self._matmul(x, weight), x.rows)

    def gated_linear(self, x: Value, weight: Weight, activation: Activation) -> Value:
        self._check_linear(x, weight, gated=True)
        act, half = _ACTIVATIONS[activation], weight.shape[0] // 2

        def row_map(row: torch.Tensor) -> torch.Tensor:
            y = _apply(weight.handle.loaded, row)
            return act(y[:half].clone()) * y[half:]

        return self._act(_map_rows(x.handle.data, row_map, half), x.rows)

    def _matmul(self, x: Value, weight: Weight) -> torch.Tensor:
        self._check_linear(x, weight, gated=False)
        return _map_rows(
            x.handle.data, lambda row: _apply(weight.handle.loaded, row), weight.shape[0]
        )

    # ---- attention

    def qkv_rope_store(
        self,
        x: Value,
        weight: Weight,
        kv: KVLayer,
        heads: HeadShape,
        rope: RopeTable | None,
        norm: HeadNorm | None = None,
    ) -> Value:
        pages = self._check_attention(x, kv, heads)
        dim = heads.head_dim
        sizes = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
        need(weight.shape[0] == sum(sizes) * dim, f"qkv weight {weight.shape} for {heads}")
        need(rope is None or rope.rotary_dim <= dim, f"rope wider than heads of {dim}")
        if norm is not None:
            need(norm.q.shape == norm.k.shape == (dim,), f"head norm {norm.q.shape} for {dim}")
        qkv = self._matmul(x, weight)
        q_rows = torch.empty(len(qkv), heads.num_heads * dim, dtype=torch.float64)
        for i in range(len(qkv)):
            q, k, v = torch.split_with_sizes(qkv[i].clone().view(-1, dim), sizes)
            if norm is not None:
                q = _normalize(q, norm.q.handle.loaded, norm.eps, norm.offset)
                k = _normalize(k, norm.k.handle.loaded, norm.eps, norm.offset)
            if rope is not None:
                position = int(self._step.positions[i])
                need(
                    position < len(rope.handle[0]), f"position {position} is not in the rope table"
                )
                q, k = _rotate(q, rope, position), _rotate(k, rope, position)
            slot = divmod(int(self._step.slot_mapping[kv.group][i]), pages.spec.block_size)
            need(NULL_BLOCK_ID < slot[0] < len(pages.k), f"token {i} goes to block {slot[0]}")
            pages.k[slot], pages.v[slot] = k.to(pages.k.dtype), v.to(pages.v.dtype)
            q_rows[i] = q.reshape(-1)
        return self._act(q_rows, Rows.TOKENS)

    def attention(
        self,
        q: Value,
        kv: KVLayer,
        heads: HeadShape,
        *,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        sinks: Weight | None = None,
    ) -> Value:
        pages = self._check_attention(q, kv, heads)
        self._check_act(q)
        need(q.width == heads.num_heads * heads.head_dim, f"q of width {q.width} for {heads}")
        need(sliding_window is None or sliding_window > 0, f"sliding_window={sliding_window}")
        need(sinks is None or sinks.shape == (heads.num_heads,), f"sinks for {heads}")
        group = heads.num_heads // heads.num_kv_heads
        out = torch.empty_like(q.handle.data, dtype=torch.float64)
        for i in range(len(out)):
            slots = self._visible_slots(i, kv.group, pages, sliding_window)
            keys, values = pages.k[slots].double(), pages.v[slots].double()  # [S, Hkv, D]
            query = q.handle.data[i].to(torch.float64, copy=True)
            query = query.view(heads.num_kv_heads, group, heads.head_dim)
            scores = _soft_cap(torch.einsum("hgd,shd->hgs", query, keys) * scale, soft_cap)
            if sinks is not None:
                sink = sinks.handle.loaded.double().view(heads.num_kv_heads, group, 1)
                scores = torch.cat([scores, sink], dim=-1)
            weights = torch.softmax(scores, dim=-1)[..., : len(keys)]
            out[i] = torch.einsum("hgs,shd->hgd", weights, values).reshape(-1)
        return self._act(out, Rows.TOKENS)

    def _visible_slots(
        self, token: int, group: int, pages: Pages, sliding_window: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(block, offset) of each position that a token attends to, in order."""
        step, block_size = self._step, pages.spec.block_size
        request = int(np.searchsorted(step.query_start, token, side="right")) - 1
        last = int(step.positions[token])
        first = 0 if sliding_window is None else max(0, last - sliding_window + 1)
        positions = np.arange(first, last + 1)
        table = step.block_tables[group][request]
        need(
            last // block_size < len(table), f"request {request} has a table of {len(table)} blocks"
        )
        blocks = table[positions // block_size]
        need(
            bool(((blocks > NULL_BLOCK_ID) & (blocks < len(pages.k))).all()),
            f"request {request} attends to a null or unknown block of {group=}",
        )
        return torch.from_numpy(blocks).long(), torch.from_numpy(positions % block_size)

    # ---- logits

    def logits(
        self, x: Value, weight: Weight, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> Value:
        need(x.rows is Rows.LOGITS, "logits: rows must come from select_rows")
        self._check_linear(x, weight, gated=False)

        def row_map(row: torch.Tensor) -> torch.Tensor:
            return _soft_cap(_apply(weight.handle.loaded, row) * scale, soft_cap)

        return self._f32(_map_rows(x.handle.data, row_map, weight.shape[0]), Rows.LOGITS)

    def argmax(
        self, x: Value, weight: Weight, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> Value:
        need(weight.shape[0] <= 1 << 24, f"argmax takes at most 2^24 columns, not {weight.shape}")
        rows = self.logits(x, weight, scale=scale, soft_cap=soft_cap).handle.data
        rows = torch.where(rows.isnan(), -torch.inf, rows)
        best = rows.amax(dim=1, keepdim=True)
        # A mask's argmax is its first True, of equal values: the lowest column.
        column = (rows == best).to(torch.uint8).argmax(dim=1, keepdim=True)
        return self._f32(torch.cat([column.float(), best], dim=1), Rows.LOGITS)

    # ---- the world outside

    def host_call(self, x: Value, function: Callable[[np.ndarray], None]) -> Value:
        data = x.handle.data.clone()
        rows = data if x.dtype is DType.F32 else data.view(torch.uint16)
        if not self._is_trial:
            function(rows.numpy())
        return Value(_Rows(data, x.handle.act), x.rows, x.width, x.dtype)

    def all_reduce(self, x: Value, group: Collective) -> Value:
        self._check_f32(x)
        return self.host_call(x, group.all_reduce)

    def signal(self, counter: int) -> None:
        if self._use_counter(counter):
            self._counters.add(counter)

    def wait(self, counter: int) -> None:
        targets = self._step.counter_targets
        if self._use_counter(counter) and targets is not None:
            self._counters.wait(counter, int(targets[counter]))

    def _use_counter(self, counter: int) -> bool:
        """Whether this is a step, and not the trial that makes the counters."""
        need(counter >= 0, "counters are numbered from 0")
        self._counters.grow(counter + 1)
        return not self._is_trial

    # ---- results and checks

    def _f32(self, data: torch.Tensor, rows: Rows) -> Value:
        return Value(_Rows(data.float(), act=False), rows, data.shape[1], DType.F32)

    def _act(self, data: torch.Tensor, rows: Rows) -> Value:
        rounded = data.to(TORCH_DTYPES[self._dtype])
        return Value(_Rows(rounded, act=True), rows, data.shape[1], self._dtype)

    def _check_act(self, x: Value) -> None:
        need(
            x.dtype is self._dtype and x.handle.act is not False,
            "an activation was expected, and a residual given",
        )

    def _check_f32(self, x: Value) -> None:
        need(x.dtype is DType.F32 and x.handle.act is not True, "float32 rows were expected")

    def _check_residual(self, residual: Value, rows: Rows, width: int) -> None:
        self._check_f32(residual)
        need(
            residual.rows is rows and residual.width == width,
            f"residual {residual.rows.value} x {residual.width}, not {rows.value} x {width}",
        )

    def _check_linear(self, x: Value, weight: Weight, *, gated: bool) -> None:
        self._check_act(x)
        need(weight.handle.loaded.gated is gated, f"pack_linear(gated={not gated}) weight")
        need(weight.shape[1] == x.width, f"weight {weight.shape} for rows of {x.width}")

    def _check_attention(self, x: Value, kv: KVLayer, heads: HeadShape) -> Pages:
        need(x.rows is Rows.TOKENS, "attention: rows must be tokens")
        need(heads.num_heads % heads.num_kv_heads == 0, f"{heads}: heads must divide evenly")
        pages: Pages = kv.handle
        got = (pages.spec.num_kv_heads, pages.spec.head_size, pages.spec.head_size_v)
        want = (heads.num_kv_heads, heads.head_dim, heads.head_dim)
        need(got == want, f"cache of heads {got} for {heads}")
        return pages
