"""What the reference refuses: it checks models (when recording) and workers (when replaying)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.contracts.kv_spec import FullAttentionSpec, KVCacheConfig, KVCacheGroup, MLASpec
from octavo.contracts.tensor import DType, HostTensor, float32_to_bf16
from octavo.errors import ConfigError, KernelError, MemoryPlanError
from octavo.kernels.ops import Activation, HeadNorm, HeadShape, Ops, StepInputs, StepLimits, Value
from octavo.kernels.torch_reference import TorchReferenceBackend

LIMITS = StepLimits(
    max_tokens=8,
    max_requests=2,
    max_logit_rows=4,
    max_blocks_per_request=2,
    max_position=32,
)
HEADS = HeadShape(num_heads=2, num_kv_heads=1, head_dim=4)


def tensor(*shape: int) -> HostTensor:
    return HostTensor.of(np.ones(shape, dtype=np.float32))


class Model:
    """Weights of all kinds on a back end, and a forward that uses them rightly."""

    def __init__(self, dtype: DType = DType.F32) -> None:
        self.backend = b = TorchReferenceBackend(dtype)
        spec = FullAttentionSpec(num_kv_heads=1, head_size=4, head_size_v=4, dtype=dtype)
        group = KVCacheGroup(layer_names=("layer",), spec=spec)
        self.cache = b.allocate_kv(KVCacheConfig(num_blocks=4, groups=(group,)))
        self.kv = self.cache.layer("layer")
        self.table = b.pack_embedding(tensor(10, 6))
        self.norm = b.pack_vector(tensor(6))
        self.head_norm = b.pack_vector(tensor(3))
        self.qkv = b.pack_linear([tensor(8, 6), tensor(4, 6), tensor(4, 6)])
        self.square = b.pack_linear([tensor(8, 8)])
        self.out = b.pack_linear([tensor(6, 8)])
        self.gated = b.pack_linear([tensor(5, 6), tensor(5, 6)], gated=True)
        self.rope = b.pack_rope(*np.ones((2, 32, 2), "f4"), interleaved=False)
        self.wide_rope = b.pack_rope(*np.ones((2, 32, 3), "f4"), interleaved=False)

    def act(self, ops: Ops) -> Value:
        return ops.rms_norm(ops.embedding(self.table), self.norm, eps=1e-5)

    def forward(self, ops: Ops) -> None:
        x = ops.embedding(self.table)
        q = ops.qkv_rope_store(self.act(ops), self.qkv, self.kv, HEADS, self.rope)
        x = ops.linear_add(ops.attention(q, self.kv, HEADS, scale=1.0), self.out, x)
        x = ops.select_rows(x)
        head = self.table
        ops.output("logits", ops.logits(ops.rms_norm(x, self.norm, eps=1e-5), head))


MISUSES: dict[str, Callable[[Model, Ops], Any]] = {
    "a residual read as an activation": lambda m, o: o.linear(o.embedding(m.table), m.qkv),
    "an activation read as a residual": lambda m, o: o.rms_norm(m.act(o), m.norm, eps=0.0),
    "linear of another width": lambda m, o: o.linear(m.act(o), m.out),
    "linear of a gated weight": lambda m, o: o.linear(m.act(o), m.gated),
    "embedding of a gated weight": lambda m, o: o.embedding(m.gated),
    "gated linear of a plain weight": lambda m, o: o.gated_linear(m.act(o), m.qkv, Activation.SILU),
    "norm of another width": lambda m, o: o.rms_norm(o.input("x", 5), m.norm, eps=0.0),
    "residual of another width": lambda m, o: o.linear_add(m.act(o), m.qkv, o.input("x", 6)),
    "residual of other rows": lambda m, o: o.linear_add(
        o.select_rows(m.act(o)), m.qkv, o.input("x", 16)
    ),
    "logits of token rows": lambda m, o: o.logits(m.act(o), m.table),
    "rows selected twice": lambda m, o: o.select_rows(o.select_rows(m.act(o))),
    "qkv of other sizes": lambda m, o: o.qkv_rope_store(m.act(o), m.gated, m.kv, HEADS, None),
    "heads other than the cache's": lambda m, o: o.qkv_rope_store(
        m.act(o), m.qkv, m.kv, replace(HEADS, num_kv_heads=2), None
    ),
    "rope wider than a head": lambda m, o: o.qkv_rope_store(
        m.act(o), m.qkv, m.kv, HEADS, m.wide_rope
    ),
    "head norm of another size": lambda m, o: o.qkv_rope_store(
        m.act(o), m.qkv, m.kv, HEADS, None, HeadNorm(q=m.head_norm, k=m.head_norm, eps=0.0)
    ),
    "q of another width": lambda m, o: o.attention(m.act(o), m.kv, HEADS, scale=1.0),
    "an empty window": lambda m, o: o.attention(
        o.qkv_rope_store(m.act(o), m.qkv, m.kv, HEADS, None),
        m.kv,
        HEADS,
        scale=1.0,
        sliding_window=0,
    ),
    "an output twice": lambda m, o: [o.output("x", m.act(o)) for _ in range(2)],
    "an input of integers": lambda m, o: o.input("x", 3, DType.I32),
    "no output": lambda m, o: m.act(o),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_wrong_model_is_refused_when_recorded(misuse: str) -> None:
    model = Model()
    with pytest.raises(KernelError):
        model.backend.capture(lambda ops: MISUSES[misuse](model, ops), LIMITS)


def test_bfloat16_keeps_the_formats_apart_by_type() -> None:
    model = Model(DType.BF16)
    with pytest.raises(KernelError):
        model.backend.capture(lambda ops: ops.linear(ops.input("x", 6), model.qkv), LIMITS)

    def forward(ops: Ops) -> None:
        act = ops.input("x", 6, DType.BF16)
        ops.output("x", act)
        ops.output("y", ops.linear(act, model.qkv))

    graph = model.backend.capture(forward, LIMITS)
    x = np.linspace(0.1, 3, 24, dtype=np.float32).reshape(4, 6)
    taps = graph.replay(step(extra={"x": x}))
    bits = graph.replay(step(extra={"x": float32_to_bf16(x)}))
    assert np.array_equal(model.backend.to_numpy(taps["x"]), model.backend.to_numpy(bits["x"]))
    assert np.array_equal(taps["y"], bits["y"])


def i32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def step(**change: Any) -> StepInputs:
    """Two requests: three new tokens after one, and one token."""
    good = StepInputs(
        token_ids=i32(1, 2, 3, 4),
        positions=i32(1, 2, 3, 0),
        query_start=i32(0, 3, 4),
        seq_lens=i32(4, 1),
        block_tables=[np.array([[2, 0], [1, 0]], dtype=np.int32)],
        slot_mapping=[i32(33, 34, 35, 16)],
        logit_rows=i32(2, 3),
    )
    return replace(good, **change)


def test_a_right_step_runs() -> None:
    model = Model()
    taps = model.backend.capture(model.forward, LIMITS).replay(step())
    assert model.backend.to_numpy(taps["logits"]).shape == (2, 10)


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": i32(1, 2, 3)},
        {"token_ids": i32(1, 2, 3, 10)},
        {"token_ids": i32(-1, 2, 3, 4)},
        {"positions": i32(1, 2, 3)},
        {"positions": i32(0, 1, 2, 0)},
        {"positions": i32(1, 3, 3, 0)},
        {"positions": i32(30, 31, 32, 0), "seq_lens": i32(33, 1)},
        {"positions": i32(15, 16, 17, 0), "seq_lens": i32(18, 1)},  # needs a second block
        {"query_start": i32(0, 4)},
        {"query_start": i32(0, 3, 3)},
        {"query_start": i32(0, 4, 4)},
        {"seq_lens": i32(4, 1, 1)},
        {"block_tables": [np.array([[2, 0]], dtype=np.int32)]},
        {"block_tables": [np.array([[0, 2], [1, 0]], dtype=np.int32)]},
        {"block_tables": [np.array([[9, 0], [1, 0]], dtype=np.int32)]},
        {"block_tables": [np.zeros((2, 3), dtype=np.int32)]},
        {"slot_mapping": [i32(33, 34, 35)]},
        {"slot_mapping": [i32(33, 34, 35, 3)]},
        {"slot_mapping": [i32(33, 34, 35, 64)]},
        {"slot_mapping": [i32(33, 34, 35, -1)]},
        {"logit_rows": i32(3, 2)},
        {"logit_rows": i32(0, 1, 2, 3, 3)},
    ],
    ids=str,
)
def test_a_step_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    model = Model()
    graph = model.backend.capture(model.forward, LIMITS)
    with pytest.raises(KernelError):
        graph.replay(step(**change))


def test_extra_inputs_are_checked() -> None:
    backend = TorchReferenceBackend(DType.F32)
    graph = backend.capture(lambda ops: ops.output("x", ops.input("x", 3)), LIMITS)
    with pytest.raises(KernelError, match="no extra input 'x'"):
        graph.replay(step())
    with pytest.raises(KernelError, match=r"is \(4, 2\), not \(4, 3\)"):
        graph.replay(step(extra={"x": np.zeros((4, 2), dtype=np.float32)}))


def test_what_a_cache_refuses() -> None:
    model = Model()
    with pytest.raises(KernelError, match="no layer 'other'"):
        model.cache.layer("other")
    spec = FullAttentionSpec(num_kv_heads=1, head_size=4, head_size_v=4, dtype=DType.BF16)
    latent = MLASpec(latent_size=8, dtype=DType.F32)
    for wrong in (spec, latent):
        group = KVCacheGroup(layer_names=("layer",), spec=wrong)
        with pytest.raises(KernelError, match="float32 cache"):
            model.backend.allocate_kv(KVCacheConfig(num_blocks=4, groups=(group,)))
    huge = FullAttentionSpec(num_kv_heads=1024, head_size=512, head_size_v=512, dtype=DType.F32)
    group = KVCacheGroup(layer_names=("layer",), spec=huge)
    with pytest.raises(MemoryPlanError, match="cannot be allocated"):
        model.backend.allocate_kv(KVCacheConfig(num_blocks=2**31 - 1, groups=(group,)))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match="supported: float32, bfloat16"):
        TorchReferenceBackend(DType.F16)


@pytest.mark.parametrize(
    "pack",
    [
        lambda b: b.pack_linear([tensor(2, 3)], [tensor(3)]),
        lambda b: b.pack_linear([tensor(2, 3), tensor(3, 3)], gated=True),
        lambda b: b.pack_linear([tensor(2, 3)], gated=True),
        lambda b: b.pack_rope(np.ones((4, 2), "f4"), np.ones((4, 3), "f4"), interleaved=True),
    ],
)
def test_weights_that_do_not_fit_are_refused(pack: Callable[[Any], Any]) -> None:
    with pytest.raises(KernelError):
        pack(TorchReferenceBackend(DType.F32))
