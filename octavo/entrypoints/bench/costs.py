"""What a step must move and compute, op by op, counted from shapes: the numerators of a roofline.

Williams et al., *Roofline: An Insightful Visual Performance Model*, 2009. A step's shortest time is
max(bytes / bandwidth, sum of flops / peak); its bytes are the weights and the keys and values,
each counted once. Activations are counted apart: those of small steps never leave the caches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from octavo.contracts.tensor import DType
from octavo.errors import KernelError
from octavo.kernels.cpu_ceilings import Ceilings
from octavo.kernels.ops import OPS, HeadShape, Ops, Rows, Value, Weight


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """A step of B requests.

    Attributes:
        query_lens: [B] tokens of each request in this step.
        seq_lens: [B] tokens in the cache once this step has stored its own.
        num_logit_rows: rows that need logits.
    """

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    num_logit_rows: int

    @classmethod
    def decode(cls, num_requests: int, seq_len: int) -> StepShape:
        """Every request has one new token, its `seq_len`-th."""
        return cls(
            query_lens=(1,) * num_requests,
            seq_lens=(seq_len,) * num_requests,
            num_logit_rows=num_requests,
        )

    @classmethod
    def prefill(cls, num_requests: int, prompt_len: int) -> StepShape:
        """Every request has its whole prompt computed at once."""
        lens = (prompt_len,) * num_requests
        return cls(query_lens=lens, seq_lens=lens, num_logit_rows=num_requests)

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens)

    def num_rows(self, rows: Rows) -> int:
        return self.num_tokens if rows is Rows.TOKENS else self.num_logit_rows


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one op, or several, must move and compute.

    Attributes:
        bytes: weights, keys and values read or written.
        activation_bytes: values read and written.
        flops: by kind of product ("f32", "bf16", "int8"); a multiply-add is two.
    """

    bytes: int = 0
    activation_bytes: int = 0
    flops: Mapping[str, int]

    def __add__(self, other: Cost) -> Cost:
        kinds = sorted({*self.flops, *other.flops})
        return Cost(
            bytes=self.bytes + other.bytes,
            activation_bytes=self.activation_bytes + other.activation_bytes,
            flops={k: self.flops.get(k, 0) + other.flops.get(k, 0) for k in kinds},
        )

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    def compute_seconds(self, ceilings: Ceilings) -> float:
        return sum(count / ceilings.peak[kind] for kind, count in self.flops.items())

    def memory_seconds(self, ceilings: Ceilings) -> float:
        return self.bytes / ceilings.bandwidth

    def roofline_seconds(self, ceilings: Ceilings) -> float:
        """The shortest time it can take."""
        return max(self.memory_seconds(ceilings), self.compute_seconds(ceilings))


NOTHING = Cost(flops={})


@dataclass(frozen=True, kw_only=True)
class CountedOp:
    """One op of a forward.

    Attributes:
        name: of the op, as in `kernels.ops`.
        detail: what tells its kind apart from others of the name: the weight's or the heads' shape.
        cost: in a step of a given shape.
    """

    name: str
    detail: str
    cost: Callable[[StepShape], Cost]


def count_ops(forward: Callable[[Ops], None], ops: Ops, dtype: DType) -> list[CountedOp]:
    """The ops that a forward calls, in its order.

    Args:
        ops: where the calls go on to.
        dtype: of activations and cache.

    Raises:
        KernelError: an op that has no rule here.
    """
    counter = _Counter(ops, dtype)
    forward(cast(Ops, counter))
    return counter.counted


def total(counted: Iterable[CountedOp], step: StepShape) -> Cost:
    """The cost of all of them."""
    return sum((op.cost(step) for op in counted), NOTHING)


class _Counter:
    """Passes every op on, and notes what it costs."""

    def __init__(self, ops: Ops, dtype: DType) -> None:
        self._ops = ops
        self._dtype = dtype
        self.counted: list[CountedOp] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPS:
            raise AttributeError(name)
        if name not in RULES:
            raise KernelError(f"the op {name!r} has no rule for its cost")
        signature, run, rule = inspect.signature(OPS[name]), getattr(self._ops, name), RULES[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            result = run(*args, **kwargs)
            bound = signature.bind(self._ops, *args, **kwargs)
            bound.apply_defaults()
            call = _Call(arguments=bound.arguments, result=result, dtype=self._dtype)
            self.counted.append(
                CountedOp(name=name, detail=call.detail(), cost=lambda step: rule(call, step))
            )
            return result

        return call


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of an op: its arguments by name, its result, the dtype of activations and cache."""

    arguments: Mapping[str, Any]
    result: Any
    dtype: DType

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def detail(self) -> str:
        if isinstance(self.arguments.get("weight"), Weight):
            return "×".join(map(str, self["weight"].shape))
        heads = self.arguments.get("heads")
        if isinstance(heads, HeadShape):
            return f"{heads.num_heads}/{heads.num_kv_heads} heads of {heads.head_dim}"
        return ""

    def values(self, step: StepShape) -> int:
        """Bytes of the values read and written."""
        found = [*self.arguments.values(), self.result]
        return sum(_value_bytes(v, step) for v in found if isinstance(v, Value))

    def kv_bytes_per_token(self) -> int:
        heads: HeadShape = self["heads"]
        return 2 * heads.num_kv_heads * heads.head_dim * self.dtype.itemsize


def _value_bytes(value: Value, step: StepShape) -> int:
    return step.num_rows(value.rows) * value.width * value.dtype.itemsize


def product_kind(weight: Weight, dtype: DType) -> str:
    """The kind of product that multiplies with a weight: of integers where it is quantized."""
    if weight.format is not None and weight.format.grouping is not None:
        return "int8"
    return "f32" if dtype is DType.F32 else "bf16"


# ------------------------------------------------------------------------ rules


def _rowwise(call: _Call, step: StepShape) -> Cost:
    return Cost(activation_bytes=call.values(step), flops={})


def _free(call: _Call, step: StepShape) -> Cost:
    return NOTHING


def _select_rows(call: _Call, step: StepShape) -> Cost:
    return Cost(activation_bytes=2 * _value_bytes(call.result, step), flops={})


def _embedding(call: _Call, step: StepShape) -> Cost:
    table: Weight = call["table"]
    rows = step.num_tokens * table.nbytes // table.shape[0]
    return Cost(bytes=rows, activation_bytes=call.values(step), flops={})


def _product(call: _Call, step: StepShape) -> Cost:
    weight: Weight = call["weight"]
    rows = step.num_rows(call["x"].rows)
    if rows == 0:
        return NOTHING
    n, k = weight.shape
    return Cost(
        bytes=weight.nbytes,
        activation_bytes=call.values(step),
        flops={product_kind(weight, call.dtype): 2 * rows * n * k},
    )


def _qkv_rope_store(call: _Call, step: StepShape) -> Cost:
    stored = step.num_tokens * call.kv_bytes_per_token()
    return _product(call, step) + Cost(bytes=stored, flops={})


def _attention(call: _Call, step: StepShape) -> Cost:
    heads: HeadShape = call["heads"]
    window = call["sliding_window"] or 1 << 62
    read = pairs = 0
    for query_len, seq_len in zip(step.query_lens, step.seq_lens):
        first = seq_len - query_len
        read += min(seq_len, window + query_len - 1)
        pairs += _causal_pairs(first, seq_len, window)
    kind = "f32" if call.dtype is DType.F32 else "bf16"
    return Cost(
        bytes=read * call.kv_bytes_per_token(),
        activation_bytes=call.values(step),
        flops={kind: 4 * pairs * heads.num_heads * heads.head_dim},
    )


def _causal_pairs(first: int, end: int, window: int) -> int:
    """(query, key) pairs of the queries at positions first … end-1: min(position + 1, window)."""
    growing_end = max(first, min(end, window))
    growing = (growing_end * (growing_end + 1) - first * (first + 1)) // 2
    return growing + (end - growing_end) * window


RULES: Mapping[str, Callable[[_Call, StepShape], Cost]] = {
    "input": _rowwise,
    "output": _free,
    "embedding": _embedding,
    "select_rows": _select_rows,
    "rms_norm": _rowwise,
    "rms_norm_add": _rowwise,
    "layer_norm": _rowwise,
    "linear": _product,
    "linear_add": _product,
    "gated_linear": _product,
    "qkv_rope_store": _qkv_rope_store,
    "attention": _attention,
    "logits": _product,
    "argmax": _product,
    "host_call": _rowwise,
    "all_reduce": _rowwise,
    "signal": _free,
    "wait": _free,
}
"""By op: what it costs. A test holds that every op has one."""
