"""The CPU back end: ops recorded into a native step program, replayed on a persistent thread pool.

Weights are packed into panels of 32 output columns, the KV cache lies in pages per block and kv
head; `csrc/api/types.h` describes the layouts. bfloat16 is the activation format of bfloat16
weights; the residual stream and all accumulation are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from octavo import _cpu
from octavo.contracts.kv_spec import BLOCK_SIZE, BlockCopy, FullAttentionSpec, KVCacheConfig
from octavo.contracts.tensor import DType, HostTensor, bf16_to_float32
from octavo.contracts.weight_format import WeightFormat
from octavo.env import cpu_isa_cap
from octavo.errors import ConfigError, KernelError
from octavo.kernels.cpu_packer import Packer
from octavo.kernels.cpu_recorder import CpuRecorder
from octavo.kernels.cpu_sampling import CpuSampling
from octavo.kernels.cpu_threads import available_cpus, default_num_threads
from octavo.kernels.ops import (
    Backend,
    Graph,
    KVCache,
    KVLayer,
    Ops,
    RopeTable,
    SamplingOps,
    StepInputs,
    StepLimits,
    Weight,
)
from octavo.kernels.sync import Counters

_BF16_BITS = np.dtype(np.uint16)


def kernel_tiers(cap: str | None = None) -> list[str]:
    """Kernel tiers that run on this machine, lowest first, up to `cap` (a tier's name). Raises
    ConfigError."""
    try:
        return _cpu.Device(1, [], cap or "").isa_tiers
    except ValueError as error:
        raise ConfigError(str(error)) from error


class CpuBackend(Backend):
    """Ops on the CPU.

    Args:
        dtype: F32 or BF16.
        num_threads: compute threads, the caller's included; None: one per physical core that the
            affinity mask and the cgroup's quota leave.
        isa: the highest kernel tier to use; None: OCTAVO_CPU_ISA's, or all the machine supports.

    Raises:
        ConfigError: another dtype, or a name that is no kernel tier's.
    """

    name = "cpu"

    def __init__(
        self, dtype: DType, num_threads: int | None = None, *, isa: str | None = None
    ) -> None:
        if dtype not in (DType.F32, DType.BF16):
            raise ConfigError(f"dtype={dtype.value!r} must be 'float32' or 'bfloat16' on the CPU")
        self.dtype = dtype
        cpus = available_cpus()
        try:
            self._device = _cpu.Device(
                default_num_threads(cpus) if num_threads is None else num_threads,
                cpus,
                isa or cpu_isa_cap() or "",
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._packer = Packer(self._device)
        self._sampling = CpuSampling(self._device)

    @property
    def num_threads(self) -> int:
        return self._device.num_threads

    @property
    def isa_tiers(self) -> list[str]:
        """Kernel tiers in force, lowest first; the last is the one that runs."""
        return self._device.isa_tiers

    @property
    def sampling(self) -> SamplingOps:
        return self._sampling

    def loading(self) -> AbstractContextManager[None]:
        return self._packer.in_background()

    def pack_linear(
        self,
        parts: Sequence[HostTensor],
        bias: Sequence[HostTensor] | None = None,
        *,
        gated: bool = False,
        format: WeightFormat | None = None,
    ) -> Weight:
        shapes = [part.shape for part in parts]
        if not shapes or any(len(s) != 2 or s[1] != shapes[0][1] for s in shapes):
            raise KernelError(f"parts of a linear weight are [n_i, K] with one K, not {shapes}")
        if gated and (len(shapes) != 2 or shapes[0] != shapes[1]):
            raise KernelError(
                f"a gated weight has a gate and an up part of one shape, not {shapes}"
            )
        n, k = sum(s[0] for s in shapes), shapes[0][1]
        format = format or WeightFormat(self.dtype.value)
        packed = _cpu.PackedLinear(self._device, format.value, n, k, gated, bias is not None)
        first = 0
        for part in parts:
            self._packer.put(packed, first, part)
            first += part.shape[0]
        first = 0
        for part in bias or ():
            values = np.ascontiguousarray(part.to_float32(), dtype=np.float32)
            packed.put_bias(first, values)
            first += len(values)
        if bias is not None and first != n:
            raise KernelError(f"bias has {first} values for {n} outputs")
        return Weight(packed, (n, k), packed.nbytes, format)

    def pack_embedding(self, table: HostTensor, *, format: WeightFormat | None = None) -> Weight:
        if len(table.shape) != 2:
            raise KernelError(f"an embedding table is [vocab, dim], not {table.shape}")
        if format is not None:
            return self.pack_linear([table], format=format)
        packed = _cpu.PackedTable(self._device, self.dtype.value, *table.shape)
        self._packer.put(packed, 0, table)
        return Weight(packed, table.shape, packed.nbytes)

    def pack_vector(self, vector: HostTensor) -> Weight:
        if len(vector.shape) != 1:
            raise KernelError(f"a norm weight is [D], not {vector.shape}")
        values = np.ascontiguousarray(vector.to_float32(), dtype=np.float32)
        return Weight(_cpu.PackedVector(values), vector.shape, values.nbytes)

    def pack_rope(self, cos: np.ndarray, sin: np.ndarray, *, interleaved: bool) -> RopeTable:
        if cos.ndim != 2 or cos.shape != sin.shape:
            raise KernelError(
                f"cos and sin are [max_model_len, rotary_dim / 2], not {cos.shape}, {sin.shape}"
            )
        table = _cpu.RopeTable(
            np.ascontiguousarray(cos, dtype=np.float32),
            np.ascontiguousarray(sin, dtype=np.float32),
            interleaved,
        )
        return RopeTable(table, 2 * cos.shape[1], interleaved)

    def swap(self, weight: Weight, other: Weight) -> None:
        try:
            weight.handle.swap(other.handle)
        except TypeError as error:
            raise KernelError("only weights that were packed alike can be swapped") from error

    def unload(self, weight: Weight) -> None:
        weight.handle.unload()

    def allocate_kv(self, config: KVCacheConfig) -> KVCache:
        return CpuKVCache(config, self.dtype)

    def capture(self, forward: Callable[[Ops], None], limits: StepLimits) -> Graph:
        recorder = CpuRecorder(self._device, self.dtype, limits)
        forward(recorder)
        return CpuGraph(recorder.finish())

    def to_numpy(self, array: Any) -> np.ndarray:
        return bf16_to_float32(array) if array.dtype == _BF16_BITS else array

    def close(self) -> None:
        self._device.close()


class CpuKVCache(KVCache):
    """Pages in native memory, zero-filled and touched lazily."""

    def __init__(self, config: KVCacheConfig, dtype: DType) -> None:
        page_bytes = {group.spec.page_bytes for group in config.groups}
        if len(page_bytes) != 1:
            raise KernelError(f"KV groups share one page size, not {sorted(page_bytes)}")
        self._cache = _cpu.KvCache(config.num_tensors, config.num_blocks, page_bytes.pop())
        self._layers: dict[str, KVLayer] = {}
        for group, entry in enumerate(config.groups):
            spec = entry.spec
            if not isinstance(spec, FullAttentionSpec):
                raise KernelError(f"{type(spec).__name__} is not supported by the CPU back end")
            if spec.dtype is not dtype or spec.head_size != spec.head_size_v:
                raise KernelError(
                    f"the KV cache must be {dtype.value} with equal key and value heads, not {spec}"
                )
            if spec.block_size != BLOCK_SIZE:
                raise KernelError(f"KV blocks have {BLOCK_SIZE} tokens, not {spec.block_size}")
            for tensor, name in enumerate(entry.layer_names):
                layer = _cpu.KvLayer(self._cache, tensor, group, spec.num_kv_heads, spec.head_size)
                self._layers[name] = KVLayer(layer, group, tensor)

    def layer(self, name: str) -> KVLayer:
        if name not in self._layers:
            raise KernelError(f"no KV layer {name!r}; there are {', '.join(self._layers)}")
        return self._layers[name]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._cache.copy_blocks([(c.src, c.dst) for c in copies])

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        self._cache.clear_blocks(list(blocks))


class CpuGraph(Graph):
    """A recorded program. Taps are views of its memory: float32, or uint16 for bfloat16 values."""

    def __init__(self, program: _cpu.Program) -> None:
        self._program = program
        self._counters = CpuCounters(program.counters)
        self._taps: Mapping[str, Any] = {}

    @property
    def counters(self) -> Counters:
        return self._counters

    @property
    def nbytes(self) -> int:
        return self._program.nbytes

    def replay(self, step: StepInputs) -> Mapping[str, Any]:
        try:
            are_same = self._program.run(
                step.token_ids,
                step.positions,
                step.query_start,
                step.seq_lens,
                step.block_tables,
                step.slot_mapping,
                step.logit_rows,
                step.extra,
                step.outputs,
                step.counter_targets,
            )
        except TypeError as error:
            if "incompatible function arguments" not in str(error):
                raise  # a host call's own
            raise KernelError(
                "step arrays must be contiguous int32 (inputs float32, or uint16 for bfloat16)"
            ) from error
        if not are_same:
            self._taps = self._program.taps()
        return self._taps

    def set_profiling(self, on: bool) -> None:
        """Time every op from now on."""
        self._program.set_profiling(on)

    def profile(self) -> list[tuple[str, float]]:
        """(op, seconds) in order of the program, then ("wait", seconds at barriers)."""
        return self._program.profile()


class CpuCounters(Counters):
    """Counters in native memory: waiting releases the GIL."""

    def __init__(self, counters: _cpu.Counters) -> None:
        self._counters = counters

    def __len__(self) -> int:
        return len(self._counters)

    def value(self, counter: int) -> int:
        return self._counters.value(counter)

    def add(self, counter: int, n: int = 1) -> None:
        self._counters.add(counter, n)

    def wait(self, counter: int, target: int, timeout: float | None = None) -> bool:
        return self._counters.wait(counter, target, -1.0 if timeout is None else max(0.0, timeout))

    def cancel(self, reason: str) -> None:
        self._counters.cancel(reason)
