from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

class Device:
    def __init__(self, num_threads: int, cpus: Sequence[int], isa_cap: str) -> None: ...
    @property
    def isa_tiers(self) -> list[str]: ...
    @property
    def num_threads(self) -> int: ...
    def close(self) -> None: ...
    def mask(self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray) -> None: ...
    def add_bias(
        self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, bias: np.ndarray
    ) -> None: ...
    def allow(self, logits: np.ndarray, rows: np.ndarray, bitmask: np.ndarray) -> None: ...
    def penalize(
        self,
        logits: np.ndarray,
        rows: np.ndarray,
        repetition: np.ndarray,
        frequency: np.ndarray,
        presence: np.ndarray,
        starts: np.ndarray,
        token_ids: np.ndarray,
        counts: np.ndarray,
    ) -> None: ...
    def process(
        self,
        logits: np.ndarray,
        rows: np.ndarray,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        seed: np.ndarray,
        sample_index: np.ndarray,
        position: np.ndarray,
    ) -> None: ...
    def sample(
        self,
        logits: np.ndarray,
        temperature: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        seed: np.ndarray,
        sample_index: np.ndarray,
        position: np.ndarray,
        out: np.ndarray,
    ) -> None: ...
    def logprobs(
        self,
        logits: np.ndarray,
        rows: np.ndarray,
        token_ids: np.ndarray,
        normalized: bool,
        ids: np.ndarray,
        values: np.ndarray,
        ranks: np.ndarray,
    ) -> None: ...

class PackedLinear:
    def __init__(
        self, device: Device, format: str, n: int, k: int, gated: bool, bias: bool
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def put_rows(self, device: Device, first: int, rows: np.ndarray) -> None: ...
    def put_blocks(self, device: Device, first: int, format: str, rows: np.ndarray) -> None: ...
    def put_bias(self, first: int, bias: np.ndarray) -> None: ...

def dequantize(device: Device, format: str, rows: np.ndarray, out: np.ndarray) -> None: ...

class PackedTable:
    def __init__(self, device: Device, dtype: str, rows: int, columns: int) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def put_rows(self, device: Device, first: int, rows: np.ndarray) -> None: ...

class PackedVector:
    def __init__(self, data: np.ndarray) -> None: ...

class RopeTable:
    def __init__(self, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> None: ...

class KvCache:
    def __init__(self, num_tensors: int, num_blocks: int, page_bytes: int) -> None: ...
    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None: ...
    def clear_blocks(self, blocks: Sequence[int]) -> None: ...

class KvLayer:
    def __init__(
        self, cache: KvCache, tensor: int, group: int, num_kv_heads: int, head_dim: int
    ) -> None: ...

class HeadShape:
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None: ...

class HeadNorm:
    def __init__(self, q: PackedVector, k: PackedVector, eps: float, offset: float) -> None: ...

class Program:
    def __init__(
        self,
        device: Device,
        act: str,
        max_tokens: int,
        max_requests: int,
        max_logit_rows: int,
        max_position: int,
    ) -> None: ...
    def input(self, name: str, width: int, dtype: str) -> int: ...
    def output(self, name: str, x: int) -> None: ...
    def embedding(self, table: PackedTable | PackedLinear, scale: float) -> int: ...
    def select_rows(self, x: int) -> int: ...
    def rms_norm(
        self, x: int, weight: PackedVector, residual: int, eps: float, offset: float
    ) -> int: ...
    def linear(self, x: int, weight: PackedLinear, residual: int) -> int: ...
    def gated_linear(self, x: int, weight: PackedLinear, activation: str) -> int: ...
    def qkv_rope_store(
        self,
        x: int,
        weight: PackedLinear,
        kv: KvLayer,
        heads: HeadShape,
        rope: RopeTable | None,
        norm: HeadNorm | None,
    ) -> int: ...
    def attention(
        self,
        q: int,
        kv: KvLayer,
        heads: HeadShape,
        scale: float,
        window: int,
        soft_cap: float,
        sinks: PackedVector | None,
    ) -> int: ...
    def logits(self, x: int, weight: PackedLinear, scale: float, soft_cap: float) -> int: ...
    def finish(self) -> None: ...
    def run(
        self,
        token_ids: np.ndarray,
        positions: np.ndarray,
        query_start: np.ndarray,
        seq_lens: np.ndarray,
        block_tables: Sequence[np.ndarray],
        slot_mapping: Sequence[np.ndarray],
        logit_rows: np.ndarray,
        extra: Mapping[str, np.ndarray],
    ) -> None: ...
    def taps(self) -> dict[str, Any]: ...
    @property
    def nbytes(self) -> int: ...
    def set_profiling(self, on: bool) -> None: ...
    def profile(self) -> list[tuple[str, float]]: ...

def measure_bandwidth(threads: int, bytes: int = 536870912, seconds: float = 0.5) -> float:
    """Bytes per second that `threads` threads read from memory, one sequential stream each: the
    median of the passes over `bytes` bytes within `seconds`. Raises KernelError,
    MemoryPlanError."""

def measure_peak(kind: Literal["f32", "bf16", "int8"], threads: int, seconds: float = 0.2) -> float:
    """Operations per second (a multiply-add is two) of `threads` threads in registers, by the
    machine's best instruction for products of `kind`. Raises KernelError."""
