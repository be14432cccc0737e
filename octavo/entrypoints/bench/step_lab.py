"""A model's forward, captured without an engine around it, for steps of chosen shapes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from octavo.config.engine import EngineConfig
from octavo.contracts.kv_spec import BLOCK_SIZE, KVCacheConfig, KVCacheGroup
from octavo.entrypoints.bench.costs import CountedOp, StepShape, count_ops
from octavo.errors import ConfigError, KernelError
from octavo.kernels.cpu import CpuBackend, CpuGraph
from octavo.kernels.ops import Ops, StepInputs, StepLimits
from octavo.kernels.registry import create_backend
from octavo.models.base import CausalLM
from octavo.models.files import resolve_model
from octavo.models.loader import dummy_weights, load_weights
from octavo.models.registry import build_model
from octavo.quant.registry import quantization_of
from octavo.worker.kv_planner import group_layers
from octavo.worker.worker import resolve_dtype

_PARTS = {
    "output": (),
    "qkv_rope_store": ("qkv_project", "qkv_finish"),
    "attention": ("attention", "attention_merge"),
    "host_call": ("copy", "host_call"),
    "all_reduce": ("copy", "host_call"),
}
"""Ops that are not one op of the native program but these."""

_LEFT_OUT = ("argmax", "argmax_merge")
"""What a step that asks for logits leaves out."""

_QUANTIZE = "quantize"
"""Comes before an op with a quantized weight; its time counts as that op's."""


@dataclass(frozen=True, kw_only=True)
class StepLab:
    """A captured forward.

    Attributes:
        backend: where it runs.
        counted: its ops, in order.
        groups: the layers that share a block table.
    """

    backend: CpuBackend
    graph: CpuGraph
    counted: Sequence[CountedOp]
    groups: Sequence[KVCacheGroup]
    vocab_size: int

    def seconds(self, shape: StepShape, repeats: int) -> float:
        """Median time of the forward in a step, after one that is not measured."""
        inputs = self._inputs(shape)
        self.graph.replay(inputs)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.graph.replay(inputs)
            times.append(time.perf_counter() - start)
        return float(np.median(times))

    def op_seconds(self, shape: StepShape, repeats: int) -> tuple[list[float], float]:
        """Median time of every counted op in a step, and of waiting at barriers, both on the
        calling thread."""
        inputs = self._inputs(shape)
        self.graph.replay(inputs)
        times, waits = [], []
        for _ in range(repeats):
            self.graph.set_profiling(True)
            self.graph.replay(inputs)
            *ops, (_, waited) = self.graph.profile()
            times.append(_by_op(self.counted, ops))
            waits.append(waited)
        self.graph.set_profiling(False)
        return np.median(times, axis=0).tolist(), float(np.median(waits))

    def _inputs(self, shape: StepShape) -> StepInputs:
        """A step of that shape, its requests' blocks one after the other."""
        rng = np.random.default_rng(0)
        query_lens, seq_lens = np.array(shape.query_lens), np.array(shape.seq_lens)
        starts = np.concatenate(([0], np.cumsum(query_lens))).astype(np.int32)
        request = np.repeat(np.arange(len(query_lens)), query_lens)
        positions = np.arange(shape.num_tokens) - starts[request] + (seq_lens - query_lens)[request]
        tables = _block_tables(shape, len(self.groups))
        slots = [
            table[request, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
            for table in tables
        ]
        rows = starts[1:] - 1
        return StepInputs(
            token_ids=rng.integers(0, self.vocab_size, shape.num_tokens).astype(np.int32),
            positions=positions.astype(np.int32),
            query_start=starts,
            seq_lens=seq_lens.astype(np.int32),
            block_tables=tables,
            slot_mapping=[s.astype(np.int32) for s in slots],
            logit_rows=rows[: shape.num_logit_rows],
            outputs=("logits",),
        )


@contextmanager
def step_lab(config: EngineConfig, shapes: Sequence[StepShape]) -> Iterator[StepLab]:
    """Load a model and capture its forward for steps of these shapes.

    Raises:
        ConfigError: another device than the CPU, or a shape that the model is too short for.
        ModelError, MemoryPlanError: as the engine's start.
    """
    source = config.model
    with ExitStack() as stack:
        files = resolve_model(
            source.model, revision=source.revision, load_format=source.load_format
        )
        stack.callback(files.close)
        model = build_model(files.config)
        length = max(n for shape in shapes for n in shape.seq_lens)
        if length > model.max_position:
            raise ConfigError(
                f"a step with {length} tokens of context is more than the model's "
                f"{model.max_position} positions; ask for shorter ones"
            )
        dtype = resolve_dtype(source.dtype, files.checkpoint_dtype)
        backend = create_backend(config.device.device, dtype, config.device.num_threads)
        stack.callback(backend.close)
        if not isinstance(backend, CpuBackend):
            raise ConfigError(f"device={config.device.device!r}: only the CPU's ops are timed")
        is_dummy = source.load_format == "dummy"
        weights = dummy_weights(model, source.seed) if is_dummy else files.weights()
        quantization = quantization_of(source.quantization, source.dtype)
        with backend.loading():
            load_weights(model, weights, backend, quantization)
        groups = group_layers(model.kv_specs(dtype))
        counted, graph = _capture(model, backend, groups, shapes)
        yield StepLab(
            backend=backend,
            graph=graph,
            counted=counted,
            groups=groups,
            vocab_size=model.vocab_size,
        )


def _capture(
    model: CausalLM,
    backend: CpuBackend,
    groups: tuple[KVCacheGroup, ...],
    shapes: Sequence[StepShape],
) -> tuple[list[CountedOp], CpuGraph]:
    """The forward's ops, and the forward, over a KV cache that holds the largest shape. Its pages
    are written once: reading memory never written to would be reading one page of zeros."""
    num_blocks = 1 + max(_num_blocks(shape) for shape in shapes) * len(groups)
    kv = backend.allocate_kv(KVCacheConfig(num_blocks=num_blocks, groups=groups))
    kv.clear_blocks(range(1, num_blocks))
    length = max(n for shape in shapes for n in shape.seq_lens)
    model.bind(backend, kv, max_model_len=length)
    limits = StepLimits(
        max_tokens=max(shape.num_tokens for shape in shapes),
        max_requests=max(len(shape.seq_lens) for shape in shapes),
        max_logit_rows=max(1, *(shape.num_logit_rows for shape in shapes)),
        max_blocks_per_request=-(-length // BLOCK_SIZE),
        max_position=length,
    )
    counted: list[CountedOp] = []

    def forward(ops: Ops) -> None:
        everything = count_ops(model.forward, ops, backend.dtype)
        counted.extend(op for op in everything if op.name not in _LEFT_OUT)

    graph = backend.capture(forward, limits)
    assert isinstance(graph, CpuGraph)
    return counted, graph


def _num_blocks(shape: StepShape) -> int:
    return sum(-(-n // BLOCK_SIZE) for n in shape.seq_lens)


def _block_tables(shape: StepShape, num_groups: int) -> list[np.ndarray]:
    """Per KV group [B, most blocks] int32: each request's own blocks, in a row, from block 1 on."""
    counts = [-(-n // BLOCK_SIZE) for n in shape.seq_lens]
    tables, first = [], 1
    for _ in range(num_groups):
        table = np.zeros((len(counts), max(counts)), dtype=np.int32)
        for row, count in enumerate(counts):
            table[row, :count] = np.arange(first, first + count)
            first += count
        tables.append(table)
    return tables


def _by_op(counted: Sequence[CountedOp], profile: Sequence[tuple[str, float]]) -> list[float]:
    """Seconds of every counted op, from a program's profile: its ops in order, some in parts.
    Raises KernelError where they do not fit together."""
    entries = deque(entry for entry in profile if entry[0] not in _LEFT_OUT)
    seconds = []
    for op in counted:
        spent = 0.0
        for part in _PARTS.get(op.name, (op.name,)):
            while entries and entries[0][0] == _QUANTIZE:
                spent += entries.popleft()[1]
            if not entries or entries[0][0] != part:
                raise KernelError(f"the native program has {list(entries)[:1]} in place of {part}")
            spent += entries.popleft()[1]
        seconds.append(spent)
    if entries:
        raise KernelError(f"the native program has more ops than the forward: {list(entries)}")
    return seconds
