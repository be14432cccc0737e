"""The list of ops: the one vocabulary in which models are written.

A model's `forward` calls ops on opaque values. The *cpu* back end records the calls into a step
program and replays it natively; the *torch* back ends execute them. Each op has a torch reference,
which is its specification, and a contract test is generated for every entry of `OPS`: a row alone
equals the same row at any batch size, position, chunking and thread count, bit for bit.

Rows. Every value is a matrix [rows, width]. `Rows.TOKENS` values have one row per scheduled token
of the step, `Rows.LOGITS` values one row per (request, offset) that needs logits. Both counts are
read from the step: one program serves every batch.

Types. The residual stream is float32. `act` marks values in the back end's activation format
(float32 or bfloat16): only an op that takes `act` may read them. An op with a quantized weight
rounds them to codes first, by groups of a row (contracts/weight_format.py), in float32:
`scale = unit / 127`, `code = round(x * (127 / unit))`, ties to even. Codes have 8 bits, and the
unit is max |x|. Where the format says so, the quad (four neighbours) with the group's largest |x|
has 16 bits, and the unit is the largest |x| of the others, but at least 1/257 of the group's.

Invariance (DESIGN §5). Every reduction runs in one fixed order that depends only on the element's
own row: GEMM over ascending K for every M, attention over absolute 256-token chunks of the keys and
values *as stored in the cache*, norms and softmax in one order. No op splits by batch or thread.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from octavo.contracts.kv_spec import BlockCopy, KVCacheConfig
from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.kernels.sampling_ops import SamplingOps
from octavo.kernels.sync import Collective, Counters

F = TypeVar("F", bound=Callable[..., Any])

OPS: dict[str, Callable[..., Any]] = {}
"""Every op by name. The contract test runs over it; a new op without a test case fails there."""


def op(method: F) -> F:
    """Register an abstract method of `Ops` as an op."""
    OPS[method.__name__] = method
    return method


class Rows(enum.Enum):
    """What the rows of a value stand for."""

    TOKENS = "tokens"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Value:
    """A matrix [rows, width] inside a step: only its shape and format are known to models.

    `handle` belongs to the back end (a buffer id when recording, a tensor when executing).
    """

    handle: Any
    rows: Rows
    width: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight in the back end's own layout. `shape` is logical: [out, in], [vocab, dim], [dim].

    `format` is that of a linear weight, where the back end keeps it in one of these.
    """

    handle: Any
    shape: tuple[int, ...]
    nbytes: int
    format: WeightFormat | None = None


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotary tables on the back end: cos and sin [max_model_len, rotary_dim / 2] float32.

    `interleaved` pairs dims (2i, 2i+1) (GPT-J); otherwise (i, i + rotary_dim/2) (NeoX, Llama).
    Dims from `rotary_dim` on pass through.
    """

    handle: Any
    rotary_dim: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's part of the KV cache: pages of `tensor`, addressed by the tables of `group`."""

    handle: Any
    group: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """Heads of an attention layer. q is [T, num_heads * head_dim], k and v have num_kv_heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """RMS norm over each head's dims of q and k, before rope (Qwen3, Gemma 3). q, k [head_dim]."""

    q: Weight
    k: Weight
    eps: float
    offset: float = 0.0


class Activation(enum.Enum):
    """gated_linear's activation of the gate half."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU = "gelu"


class Ops(ABC):
    """What a model's forward may call. All sizes are checked when recording: KernelError."""

    # ---- inputs, outputs

    @op
    @abstractmethod
    def input(self, name: str, width: int, dtype: DType = DType.F32) -> Value:
        """External rows `StepInputs.extra[name]` [T, width]: embeddings, a pipeline stage's input.
        Of the back end's dtype, they may be read as act."""

    @op
    @abstractmethod
    def output(self, name: str, x: Value) -> None:
        """A named tap: x outlives the step's buffers and is returned by `Graph.replay`."""

    @op
    @abstractmethod
    def embedding(self, table: Weight, *, scale: float = 1.0) -> Value:
        """table[token_ids] * scale → [T, dim] float32, of the step's token ids. table [vocab, dim]
        from `pack_embedding`, or `pack_linear` for a tied head."""

    @op
    @abstractmethod
    def select_rows(self, x: Value) -> Value:
        """The rows that need logits: x[logit_rows] → [R, width], rows LOGITS, same dtype."""

    # ---- norms

    @op
    @abstractmethod
    def rms_norm(self, x: Value, weight: Weight, *, eps: float, offset: float = 0.0) -> Value:
        """x / sqrt(mean(x²) + eps) * (weight + offset) → act. x [*, D] float32, weight [D]."""

    @op
    @abstractmethod
    def rms_norm_add(
        self, x: Value, weight: Weight, residual: Value, *, eps: float, offset: float = 0.0
    ) -> Value:
        """residual + rms_norm(x) → [*, D] float32 (post-norms: Gemma 2/3). x, residual float32."""

    @op
    @abstractmethod
    def layer_norm(self, x: Value, weight: Weight, bias: Weight | None, *, eps: float) -> Value:
        """(x - mean(x)) / sqrt(var(x) + eps) * weight (+ bias) → act (Ba et al., *Layer
        Normalization*, 2016). The variance is that of the row itself (divided by D). x [*, D]
        float32, weight and bias [D]."""

    # ---- linear maps

    @op
    @abstractmethod
    def linear(self, x: Value, weight: Weight) -> Value:
        """x @ weight.T (+ bias) → [*, N] float32. x act [*, K], weight [N, K]."""

    @op
    @abstractmethod
    def linear_add(self, x: Value, weight: Weight, residual: Value) -> Value:
        """residual + (x @ weight.T + bias) → [*, N] float32. x act, residual float32."""

    @op
    @abstractmethod
    def gated_linear(self, x: Value, weight: Weight, activation: Activation) -> Value:
        """activation(x @ gate.T) * (x @ up.T) → act [*, N/2]. weight: pack_linear(gated=True)."""

    # ---- attention

    @op
    @abstractmethod
    def qkv_rope_store(
        self,
        x: Value,
        weight: Weight,
        kv: KVLayer,
        heads: HeadShape,
        rope: RopeTable | None,
        norm: HeadNorm | None = None,
    ) -> Value:
        """q, k, v = split(x @ weight.T + bias); head norm; rope at the step's positions; k and v
        into `kv` at the step's slots (rounded to the cache's dtype). Returns q, act
        [T, num_heads * head_dim], unscaled. weight [(H + 2 Hkv) * head_dim, K], rows q, k, v."""

    @op
    @abstractmethod
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
        """Causal paged attention of every token over its request's cached tokens, itself included
        → act [T, num_heads * head_dim]. Scores q·k * scale; with soft_cap c: c * tanh(score / c);
        with a window w only the last w tokens count. `sinks` [num_heads] are logits, neither scaled
        nor capped, that count in each head's softmax and have no value (gpt-oss). Query head h
        reads kv head h // (H / Hkv). Slots past a token's own position never influence it, even
        when they hold NaN; null blocks of a window group are never read."""

    # ---- logits

    @op
    @abstractmethod
    def logits(
        self, x: Value, weight: Weight, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> Value:
        """x @ weight.T * scale, soft-capped → [R, vocab] float32. x act, rows LOGITS."""

    @op
    @abstractmethod
    def argmax(
        self, x: Value, weight: Weight, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> Value:
        """The best of `logits` of the same arguments, bit for bit, without keeping the others →
        [R, 2] float32: the column (exact: at most 2²⁴ of them) and the value. Of equal ones the
        lowest column; NaN is passed over; (0, -inf) where there is nothing else."""

    # ---- the world outside

    @op
    @abstractmethod
    def host_call(self, x: Value, function: Callable[[np.ndarray], None]) -> Value:
        """A copy of x after `function` has been given all its rows [R, width], to read or to
        change in place: float32, or uint16 bit patterns of bfloat16; they are valid during the
        call. It runs on the thread that replays, with the GIL, when all ops before are done. What
        it raises ends the step, and `replay` raises it."""

    @op
    @abstractmethod
    def all_reduce(self, x: Value, group: Collective) -> Value:
        """The sum of x over the ranks of `group` → [*, D] float32. x float32, the residual stream
        (or a partial sum for it)."""

    @op
    @abstractmethod
    def signal(self, counter: int) -> None:
        """Add 1 to a counter of the graph (`Graph.counters`) when all ops before are done: what
        they stored into the KV cache can be read."""

    @op
    @abstractmethod
    def wait(self, counter: int) -> None:
        """Hold the ops behind back until a counter has reached `StepInputs.counter_targets`, which
        another thread brings about; no wait in a step without targets."""


# ------------------------------------------------------------------------ one step's data


@dataclass(slots=True, kw_only=True)
class StepInputs:
    """The arrays of one step. T tokens of B requests, flat, requests one after the other. Between
    replays an array may be written anew, but not resized: who read it last may know where it lies.

    Attributes:
        token_ids: [T] int32.
        positions: [T] int32, absolute.
        query_start: [B + 1] int32; request b owns tokens query_start[b] … query_start[b+1]-1.
        seq_lens: [B] int32, tokens in the cache once this step has stored its own.
        block_tables: per KV group [B, max blocks] int32; 0 pads and stands for null blocks.
        slot_mapping: per KV group [T] int32: block id * 16 + offset where a token's KV goes.
        logit_rows: [R] int32, token rows that need logits, ascending.
        extra: external inputs by name, [T, width] float32 (rounded where the input is bfloat16), or
            uint16 bit patterns of bfloat16.
        outputs: names of the taps wanted; None: all. Ops that no wanted tap, no store into the
            KV cache and nothing outside needs may be left out.
        counter_targets: [counters] int64, what `wait` ops wait for.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    query_start: np.ndarray
    seq_lens: np.ndarray
    block_tables: list[np.ndarray]
    slot_mapping: list[np.ndarray]
    logit_rows: np.ndarray
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: Sequence[str] | None = None
    counter_targets: np.ndarray | None = None

    @classmethod
    def of_rows(cls, num_rows: int, extra: dict[str, np.ndarray]) -> StepInputs:
        """A step of one request whose every token wants logits, for graphs that read no KV cache:
        what they compute comes from `extra`."""
        rows = np.arange(num_rows, dtype=np.int32)
        return cls(
            token_ids=np.zeros(num_rows, dtype=np.int32),
            positions=rows,
            query_start=np.array([0, num_rows], dtype=np.int32),
            seq_lens=np.array([num_rows], dtype=np.int32),
            block_tables=[],
            slot_mapping=[],
            logit_rows=rows,
            extra=extra,
        )


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """The largest step: what buffers are planned for."""

    max_tokens: int
    max_requests: int
    max_logit_rows: int
    max_blocks_per_request: int
    max_position: int


class Graph(ABC):
    """A captured forward: replayed for every step."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of its buffers."""

    @property
    @abstractmethod
    def counters(self) -> Counters:
        """Those of its `signal` and `wait` ops."""

    @abstractmethod
    def replay(self, step: StepInputs) -> Mapping[str, Any]:
        """Run the forward. Returns the wanted taps by name: back-end arrays [rows, width], valid
        until the next replay. Releases the GIL while it runs."""


class KVCache(ABC):
    """The pool of KV pages on the device, zero-filled, pages touched lazily."""

    @abstractmethod
    def layer(self, name: str) -> KVLayer:
        """The handle of a layer, by its name in the KVCacheConfig."""

    @abstractmethod
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy pages in order, in every tensor."""

    @abstractmethod
    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zero pages in every tensor."""


# ------------------------------------------------------------------------ back end


class Backend(ABC):
    """Where ops run: owns weights in its own layout, the KV cache, graphs and sampling.

    Args (of every back end's constructor): dtype — F32 or BF16, of weights, activations and cache.
    """

    name: str
    dtype: DType

    # Weights. Parts are stacked along the output dim; every part is [n_i, K] (bias: [n_i]).

    def loading(self) -> AbstractContextManager[None]:
        """Inside, weights may be filled after the call that packs them, in the background; when it
        ends, all are. What they are packed from must not change meanwhile."""
        return nullcontext()

    @abstractmethod
    def pack_linear(
        self,
        parts: Sequence[HostTensor],
        bias: Sequence[HostTensor] | None = None,
        *,
        gated: bool = False,
        format: WeightFormat | None = None,
    ) -> Weight:
        """A linear weight [sum n_i, K]. `gated`: parts are (gate, up) for `gated_linear`.
        `format` None: the back end's dtype. GGUF blocks that the format holds stay exactly what
        they are; all else is rounded to it."""

    @abstractmethod
    def pack_embedding(self, table: HostTensor, *, format: WeightFormat | None = None) -> Weight:
        """A table for `embedding` [vocab, dim]; `format` as for `pack_linear`."""

    @abstractmethod
    def pack_vector(self, vector: HostTensor) -> Weight:
        """A norm weight [D], kept in float32."""

    @abstractmethod
    def pack_rope(self, cos: np.ndarray, sin: np.ndarray, *, interleaved: bool) -> RopeTable:
        """Rotary tables, both [max_model_len, rotary_dim / 2] float32."""

    @abstractmethod
    def swap(self, weight: Weight, other: Weight) -> None:
        """Exchange what two weights hold, packed in one way and of one shape. Graphs captured with
        one compute with the other's values from their next replay on: a woken model, another of
        the same architecture. Raises KernelError: they are not alike."""

    @abstractmethod
    def unload(self, weight: Weight) -> None:
        """Free the weight's memory. Graphs that were captured with it raise KernelError when they
        are replayed, until a weight like it is swapped in."""

    @abstractmethod
    def allocate_kv(self, config: KVCacheConfig) -> KVCache:
        """The KV cache. Raises MemoryPlanError where it does not fit."""

    @abstractmethod
    def capture(self, forward: Callable[[Ops], None], limits: StepLimits) -> Graph:
        """Record `forward` (which calls `output` at least once) for steps within `limits`."""

    @property
    @abstractmethod
    def sampling(self) -> SamplingOps:
        """The sampling ops."""

    @abstractmethod
    def to_numpy(self, array: Any) -> np.ndarray:
        """A tap as a numpy array (float32 for bfloat16 values); a view where possible."""

    def close(self) -> None:  # noqa: B027 - most back ends have nothing to release
        """Release threads and memory."""
