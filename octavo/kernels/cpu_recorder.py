"""Records a forward into a native step program. Sizes are checked natively: KernelError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo import _cpu
from octavo.contracts.tensor import DType
from octavo.errors import KernelError
from octavo.kernels.ops import (
    Activation,
    HeadNorm,
    HeadShape,
    KVLayer,
    Ops,
    RopeTable,
    Rows,
    StepLimits,
    Value,
    Weight,
)
from octavo.kernels.sync import Collective

_NO_VALUE = -1


class CpuRecorder(Ops):
    """Value handles are ids in the program."""

    def __init__(self, device: _cpu.Device, dtype: DType, limits: StepLimits) -> None:
        self._act = dtype
        self._program = _cpu.Program(
            device,
            dtype.value,
            limits.max_tokens,
            limits.max_requests,
            limits.max_logit_rows,
            limits.max_position,
        )

    def finish(self) -> _cpu.Program:
        """Plan memory. Raises KernelError where nothing was output."""
        self._program.finish()
        return self._program

    def input(self, name: str, width: int, dtype: DType = DType.F32) -> Value:
        handle = _native(self._program.input, name, width, dtype.value)
        return Value(handle, Rows.TOKENS, width, dtype)

    def output(self, name: str, x: Value) -> None:
        _native(self._program.output, name, x.handle)

    def embedding(self, table: Weight, *, scale: float = 1.0) -> Value:
        handle = _native(self._program.embedding, table.handle, scale)
        return Value(handle, Rows.TOKENS, table.shape[1], DType.F32)

    def select_rows(self, x: Value) -> Value:
        handle = _native(self._program.select_rows, x.handle)
        return Value(handle, Rows.LOGITS, x.width, x.dtype)

    def rms_norm(self, x: Value, weight: Weight, *, eps: float, offset: float = 0.0) -> Value:
        handle = _native(self._program.rms_norm, x.handle, weight.handle, _NO_VALUE, eps, offset)
        return Value(handle, x.rows, x.width, self._act)

    def rms_norm_add(
        self, x: Value, weight: Weight, residual: Value, *, eps: float, offset: float = 0.0
    ) -> Value:
        handle = _native(
            self._program.rms_norm, x.handle, weight.handle, residual.handle, eps, offset
        )
        return Value(handle, x.rows, x.width, DType.F32)

    def layer_norm(self, x: Value, weight: Weight, bias: Weight | None, *, eps: float) -> Value:
        handle = _native(
            self._program.layer_norm, x.handle, weight.handle, bias.handle if bias else None, eps
        )
        return Value(handle, x.rows, x.width, self._act)

    def linear(self, x: Value, weight: Weight) -> Value:
        handle = _native(self._program.linear, x.handle, weight.handle, _NO_VALUE)
        return Value(handle, x.rows, weight.shape[0], DType.F32)

    def linear_add(self, x: Value, weight: Weight, residual: Value) -> Value:
        handle = _native(self._program.linear, x.handle, weight.handle, residual.handle)
        return Value(handle, x.rows, weight.shape[0], DType.F32)

    def gated_linear(self, x: Value, weight: Weight, activation: Activation) -> Value:
        handle = _native(self._program.gated_linear, x.handle, weight.handle, activation.value)
        return Value(handle, x.rows, weight.shape[0] // 2, self._act)

    def qkv_rope_store(
        self,
        x: Value,
        weight: Weight,
        kv: KVLayer,
        heads: HeadShape,
        rope: RopeTable | None,
        norm: HeadNorm | None = None,
    ) -> Value:
        handle = _native(
            self._program.qkv_rope_store,
            x.handle,
            weight.handle,
            kv.handle,
            _native_heads(heads),
            rope.handle if rope else None,
            _native(_cpu.HeadNorm, norm.q.handle, norm.k.handle, norm.eps, norm.offset)
            if norm
            else None,
        )
        return Value(handle, x.rows, heads.num_heads * heads.head_dim, self._act)

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
        handle = _native(
            self._program.attention,
            q.handle,
            kv.handle,
            _native_heads(heads),
            scale,
            sliding_window or 0,
            soft_cap or 0.0,
            sinks.handle if sinks else None,
        )
        return Value(handle, q.rows, q.width, self._act)

    def logits(
        self, x: Value, weight: Weight, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> Value:
        handle = _native(self._program.logits, x.handle, weight.handle, scale, soft_cap or 0.0)
        return Value(handle, x.rows, weight.shape[0], DType.F32)

    def argmax(
        self, x: Value, weight: Weight, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> Value:
        handle = _native(self._program.argmax, x.handle, weight.handle, scale, soft_cap or 0.0)
        return Value(handle, x.rows, 2, DType.F32)

    def host_call(self, x: Value, function: Callable[[np.ndarray], None]) -> Value:
        handle = _native(self._program.host_call, x.handle, function)
        return Value(handle, x.rows, x.width, x.dtype)

    def all_reduce(self, x: Value, group: Collective) -> Value:
        if x.dtype is not DType.F32:
            raise KernelError(f"all_reduce adds float32 values, not {x.dtype.value}")
        return self.host_call(x, group.all_reduce)

    def signal(self, counter: int) -> None:
        _native(self._program.signal, counter)

    def wait(self, counter: int) -> None:
        _native(self._program.wait, counter)


def _native_heads(heads: HeadShape) -> _cpu.HeadShape:
    return _cpu.HeadShape(heads.num_heads, heads.num_kv_heads, heads.head_dim)


def _native(function: Callable[..., Any], *args: Any) -> Any:
    """Call into the program. A weight of another kind or back end is our bug like any other."""
    try:
        return function(*args)
    except TypeError as error:
        raise KernelError(f"an op was given an argument of the wrong kind: {error}") from error
