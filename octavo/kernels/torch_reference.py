"""The reference back end: plain torch on the CPU. Its ops (`torch_ops`) are the specification.

`capture` runs the forward once on a step without tokens, which checks every shape; `replay` runs it
again on the step's data, which it checks first: a step that contradicts itself is a worker's bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from octavo.contracts.kv_spec import BlockCopy, FullAttentionSpec, KVCacheConfig, KVCacheSpec
from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.errors import ConfigError, KernelError, MemoryPlanError
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
from octavo.kernels.sync import Counters, ThreadCounters
from octavo.kernels.torch_ops import TORCH_DTYPES, Linear, Packed, Pages, TorchOps, need
from octavo.kernels.torch_quantized import round_weight
from octavo.kernels.torch_sampling import TorchSampling


class _TorchGraph(Graph):
    def __init__(self, dtype: DType, forward: Callable[[Ops], None], limits: StepLimits) -> None:
        self._dtype, self._forward, self._limits = dtype, forward, limits
        self._counters = ThreadCounters()
        empty = np.empty(0, dtype=np.int32)
        nothing = StepInputs(
            token_ids=empty,
            positions=empty,
            query_start=np.zeros(1, dtype=np.int32),
            seq_lens=empty,
            block_tables=[],
            slot_mapping=[],
            logit_rows=empty,
        )
        need(len(self._run(nothing, is_trial=True)) > 0, "the forward has no output")

    @property
    def nbytes(self) -> int:
        """0: buffers live only while a step runs."""
        return 0

    @property
    def counters(self) -> Counters:
        return self._counters

    def replay(self, step: StepInputs) -> Mapping[str, torch.Tensor]:
        _check_step(step, self._limits, len(self._counters))
        taps = self._run(step)
        if step.outputs is None:
            return taps
        need(taps.keys() >= set(step.outputs), f"outputs {step.outputs} of {list(taps)}")
        return {name: taps[name] for name in step.outputs}

    @torch.no_grad()
    def _run(self, step: StepInputs, *, is_trial: bool = False) -> Mapping[str, torch.Tensor]:
        ops = TorchOps(self._dtype, step, self._counters, is_trial=is_trial)
        self._forward(ops)
        return ops.taps


def _check_step(step: StepInputs, limits: StepLimits, num_counters: int) -> None:
    """A step that contradicts itself is a bug in the worker: KernelError."""
    tokens, requests = len(step.token_ids), len(step.seq_lens)
    for name, count, limit in (
        ("tokens", tokens, limits.max_tokens),
        ("requests", requests, limits.max_requests),
        ("logits rows", len(step.logit_rows), limits.max_logit_rows),
        (
            "blocks",
            max((t.shape[1] for t in step.block_tables), default=0),
            limits.max_blocks_per_request,
        ),
        ("positions", int(step.positions.max(initial=-1)) + 1, limits.max_position),
    ):
        need(count <= limit, f"{count} {name} in a step made for {limit}")
    need(len(step.positions) == tokens, "positions and token_ids differ in length")
    need(all(len(s) == tokens for s in step.slot_mapping), "slot_mapping is not one per token")
    need(all(len(t) == requests for t in step.block_tables), "block tables are not one per request")
    starts = step.query_start
    need(
        len(starts) == requests + 1 and starts[0] == 0 and starts[-1] == tokens,
        f"query_start {starts.tolist()} for {requests} requests of {tokens} tokens",
    )
    need(bool((np.diff(starts) > 0).all()), "query_start is not rising")
    expected = np.repeat(step.seq_lens - starts[1:], np.diff(starts)) + np.arange(tokens)
    need(
        bool((step.positions == expected).all()),
        "a request's positions are not the last ones of its sequence",
    )
    need(bool((np.diff(step.logit_rows) > 0).all()), "logit_rows is not rising")
    targets = step.counter_targets
    need(targets is None or len(targets) == num_counters, "counter_targets is not one per counter")


class _TorchKVCache(KVCache):
    """Pool tensors [blocks, elements of a page]; a page holds K [16, Hkv, D], then V."""

    def __init__(self, config: KVCacheConfig, dtype: DType) -> None:
        page_bytes = max(g.spec.page_bytes for g in config.groups)
        shape = (config.num_blocks, page_bytes // dtype.itemsize)
        try:
            self._pools = [
                torch.zeros(shape, dtype=TORCH_DTYPES[dtype]) for _ in range(config.num_tensors)
            ]
        except RuntimeError as error:
            raise MemoryPlanError(
                f"a KV cache of {config.total_bytes} bytes cannot be allocated; lower "
                "max_model_len, max_num_seqs or kv_cache_memory_bytes"
            ) from error
        self._layers: dict[str, KVLayer] = {}
        for g, group in enumerate(config.groups):
            for i, name in enumerate(group.layer_names):
                pages = _pages(self._pools[i], group.spec, dtype)
                self._layers[name] = KVLayer(pages, group=g, tensor=i)

    def layer(self, name: str) -> KVLayer:
        need(name in self._layers, f"no layer {name!r} in the KV cache")
        return self._layers[name]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            for pool in self._pools:
                pool[copy.dst] = pool[copy.src]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        for pool in self._pools:
            pool[list(blocks)] = 0


def _pages(pool: torch.Tensor, spec: KVCacheSpec, dtype: DType) -> Pages:
    if not isinstance(spec, FullAttentionSpec) or spec.dtype is not dtype:
        raise KernelError(f"{spec} cannot be kept in a {dtype.value} cache of keys and values")
    shape = (spec.block_size, spec.num_kv_heads)
    k_size = spec.block_size * spec.num_kv_heads * spec.head_size
    v_size = spec.block_size * spec.num_kv_heads * spec.head_size_v
    return Pages(
        k=pool[:, :k_size].view(len(pool), *shape, spec.head_size),
        v=pool[:, k_size : k_size + v_size].view(len(pool), *shape, spec.head_size_v),
        spec=spec,
    )


class TorchReferenceBackend(Backend):
    """Plain torch on the CPU, float64 inside each op (see the module's docstring).

    Args:
        dtype: F32 or BF16.
        num_threads: torch's threads (a setting of the whole process); None leaves them alone.

    Raises:
        ConfigError: another dtype.
    """

    name = "reference"

    def __init__(self, dtype: DType, num_threads: int | None = None) -> None:
        if dtype not in TORCH_DTYPES:
            raise ConfigError(
                f"dtype={dtype.value!r} is not supported; supported: float32, bfloat16"
            )
        self.dtype = dtype
        self._sampling = TorchSampling()
        if num_threads is not None:
            torch.set_num_threads(num_threads)

    def pack_linear(
        self,
        parts: Sequence[HostTensor],
        bias: Sequence[HostTensor] | None = None,
        *,
        gated: bool = False,
        format: WeightFormat | None = None,
    ) -> Weight:
        need(not gated or (len(parts) == 2 and parts[0].shape == parts[1].shape), "gate and up")
        format = format or WeightFormat(self.dtype.value)
        grouping = format.grouping
        rounded = [round_weight(p, format) if grouping else self._rounded(p) for p in parts]
        weight = torch.cat(rounded)
        bias_row = None if bias is None else torch.cat([_float64(part) for part in bias])
        need(bias_row is None or len(bias_row) == len(weight), "bias and weight differ in rows")
        nbytes = weight.nbytes + (0 if bias_row is None else bias_row.nbytes)
        linear = Linear(weight, bias_row, gated, grouping)
        return Weight(Packed(linear), tuple(weight.shape), nbytes)

    def pack_embedding(self, table: HostTensor, *, format: WeightFormat | None = None) -> Weight:
        return self.pack_linear([table], format=format)

    def pack_vector(self, vector: HostTensor) -> Weight:
        data = _float64(vector)
        return Weight(Packed(data), tuple(data.shape), data.nbytes)

    def swap(self, weight: Weight, other: Weight) -> None:
        first, second = weight.handle, other.handle
        need(
            weight.shape == other.shape, f"weights {weight.shape}, {other.shape} cannot be swapped"
        )
        first.content, second.content = second.content, first.content

    def unload(self, weight: Weight) -> None:
        weight.handle.content = None

    def pack_rope(self, cos: np.ndarray, sin: np.ndarray, *, interleaved: bool) -> RopeTable:
        need(cos.shape == sin.shape and cos.ndim == 2, f"rope tables {cos.shape}, {sin.shape}")
        tables = tuple(torch.tensor(t, dtype=torch.float32) for t in (cos, sin))
        return RopeTable(tables, rotary_dim=2 * cos.shape[1], interleaved=interleaved)

    def allocate_kv(self, config: KVCacheConfig) -> KVCache:
        return _TorchKVCache(config, self.dtype)

    def capture(self, forward: Callable[[Ops], None], limits: StepLimits) -> Graph:
        return _TorchGraph(self.dtype, forward, limits)

    @property
    def sampling(self) -> SamplingOps:
        return self._sampling

    def to_numpy(self, array: torch.Tensor) -> np.ndarray:
        return array.float().numpy()

    def _rounded(self, tensor: HostTensor) -> torch.Tensor:
        """The values as this back end keeps them, in float64."""
        return _float64(tensor).to(TORCH_DTYPES[self.dtype]).double()


def _float64(tensor: HostTensor) -> torch.Tensor:
    return torch.tensor(tensor.to_float32(), dtype=torch.float64)
