"""Kernels of every tier this machine has, at shapes that the contract's cases do not reach."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.tensor import DType, HostTensor
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Activation, HeadShape, Ops
from tests.kernels.cpu_steps import LIMITS, bf16, make_cache, make_step, randn, run_rows, tensor
from tests.kernels.op_cases import CASES
from tests.kernels.op_lab import Lab
from tests.kernels.test_contract import Bench, _assert_same, plans

TIERS = CpuBackend(DType.F32, 1).isa_tiers
DTYPES = [DType.F32, DType.BF16]
BACKENDS = {
    (tier, dtype, threads): CpuBackend(dtype, threads, isa=tier)
    for tier in TIERS
    for dtype in DTYPES
    for threads in (1, 2, 3)
}

# avx512_bf16 adds nothing to float32.
COMBINATIONS = [(t, d) for t in TIERS for d in DTYPES if (t, d) != ("avx512_bf16", DType.F32)]

all_tiers = pytest.mark.parametrize("tier", [t for t in TIERS if t != "avx512_bf16"])
all_kernels = pytest.mark.parametrize(
    ("tier", "dtype"), COMBINATIONS, ids=[f"{t}-{d.value}" for t, d in COMBINATIONS]
)


def rounded(values: np.ndarray, dtype: DType) -> np.ndarray:
    return (bf16(values) if dtype is DType.BF16 else values).astype(np.float64)


def tolerance(dtype: DType) -> float:
    return 2e-5 if dtype is DType.F32 else 2e-2


@all_kernels
@pytest.mark.parametrize(
    "name",
    [
        "linear-parts",
        "linear_add-long",
        "gated_linear-gelu-80-16",
        "logits-97-scale-2.0-cap-3.0",
        "rms_norm-576-offset-1.0",
        "rms_norm_add-33-offset-0.0",
        "embedding-tied-33-scale-1.0",
        "qkv_rope_store-gqa-3",
        "qkv_rope_store-head-norm-offset",
        "qkv_rope_store-partial-interleaved",
        "attention-window-5",
        "attention-long-window",
        "attention-long-cap",
        "attention-sinks-window",
        "attention-sinks-long",
    ],
)
def test_the_contract_holds_in_every_tier(tier: str, dtype: DType, name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    expected = None
    for threads, plan in ((1, "together"), (1, "sevens"), (2, "mixed"), (3, "decode")):
        bench = Bench(case, Lab(BACKENDS[tier, dtype, threads], case.name))
        taps = bench.run(plans(case.lengths)[plan], seed=threads)
        expected = expected or taps
        _assert_same(taps, expected, f"{plan} on {threads} threads")


@settings(max_examples=25)
@given(
    rows=st.integers(1, 300),
    n=st.integers(1, 200),
    k=st.one_of(st.integers(1, 70), st.integers(1530, 1545), st.integers(2040, 2060)),
    kernels=st.sampled_from(COMBINATIONS),
    threads=st.integers(1, 3),
    row=st.integers(0, 299),
)
def test_linear_of_any_shape(
    rows: int, n: int, k: int, kernels: tuple[str, DType], threads: int, row: int
) -> None:
    tier, dtype = kernels
    backend = BACKENDS[tier, dtype, threads]
    weight, bias, gate = (randn(i, n, k, scale=k**-0.5) for i in range(3))
    bias = bias[:, 0].copy()
    plain = backend.pack_linear([HostTensor.of(weight)], [HostTensor.of(bias)])
    gated = backend.pack_linear([HostTensor.of(gate), HostTensor.of(weight)], gated=True)

    def forward(ops: Ops) -> None:
        x = ops.input("x", k, dtype)
        ops.output("linear", ops.linear_add(x, plain, ops.input("residual", n)))
        ops.output("gated", ops.gated_linear(x, gated, Activation.SILU))

    x, residual = randn(5, rows, k), randn(6, rows, n)
    taps = run_rows(backend, forward, {"x": x, "residual": residual})
    x64, w64, g64 = (rounded(a, dtype) for a in (x, weight, gate))
    up = x64 @ w64.T
    assert np.allclose(taps["linear"], residual + up + bias, rtol=1e-4, atol=1e-4)
    act = x64 @ g64.T
    expected = act / (1 + np.exp(-act)) * up
    assert np.allclose(taps["gated"], expected, rtol=tolerance(dtype), atol=tolerance(dtype))
    row %= rows
    alone = run_rows(
        BACKENDS[tier, dtype, 1],
        forward,
        {"x": x[row : row + 1], "residual": residual[row : row + 1]},
    )
    assert all(np.array_equal(alone[name][0], taps[name][row]) for name in taps)


def attention_twin(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: HeadShape, scale: float
) -> np.ndarray:
    """Causal attention of a whole sequence in float64. q [T, H, D], k and v [T, Hkv, D]."""
    repeat = heads.num_heads // heads.num_kv_heads
    k, v = np.repeat(k, repeat, axis=1), np.repeat(v, repeat, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1)


@all_kernels
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [
        (1, 1, 2),
        (3, 1, 6),
        (2, 2, 80),
        (4, 1, 96),
        (2, 1, 128),
        (4, 2, 256),
        (1, 1, 512),
        (17, 1, 64),
    ],
)
def test_attention_of_any_head_shape(
    tier: str, dtype: DType, num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    backend = BACKENDS[tier, dtype, 2]
    heads = HeadShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    width, tokens = (num_heads + 2 * num_kv_heads) * head_dim, 275
    weight = randn(1, width, 16, scale=0.25)
    packed = backend.pack_linear([HostTensor.of(weight)])
    kv = make_cache(backend, heads).layer("layer")

    def forward(ops: Ops) -> None:
        q = ops.qkv_rope_store(ops.input("x", 16, dtype), packed, kv, heads, None)
        ops.output("out", ops.attention(q, kv, heads, scale=head_dim**-0.5))

    graph = backend.capture(forward, LIMITS)
    x = randn(2, tokens, 16)
    taps = graph.replay(make_step([(0, tokens)], extra={"x": x}))
    qkv = (rounded(x, dtype) @ rounded(weight, dtype).T).reshape(tokens, -1, head_dim)
    qkv = rounded(qkv.astype(np.float32), dtype)
    q, k, v = np.split(qkv, [num_heads, num_heads + num_kv_heads], axis=1)
    expected = attention_twin(q, k, v, heads, head_dim**-0.5)
    out = backend.to_numpy(taps["out"])
    assert np.allclose(out, expected, rtol=tolerance(dtype), atol=tolerance(dtype))


@all_kernels
def test_a_long_prompt_decodes_as_it_was_prefilled(tier: str, dtype: DType) -> None:
    """Over several softmax chunks: whole, in pieces across their borders, and token by token."""
    heads = HeadShape(num_heads=6, num_kv_heads=2, head_dim=32)
    results = []
    for threads, pieces in (
        (1, [560]),
        (2, [255, 2, 303]),
        (3, [100] * 5 + [60]),
        (2, [550] + [1] * 10),
    ):
        backend = BACKENDS[tier, dtype, threads]
        packed = backend.pack_linear([tensor(1, 10 * 32, 16, scale=0.25)])
        kv = make_cache(backend, heads).layer("layer")

        def forward(ops: Ops, packed=packed, kv=kv) -> None:
            q = ops.qkv_rope_store(ops.input("x", 16, dtype), packed, kv, heads, None)
            ops.output("out", ops.attention(q, kv, heads, scale=0.2))

        graph = backend.capture(forward, LIMITS)
        blocks = np.random.default_rng(threads).permutation(np.arange(1, 64))[:36]
        x, out, start = randn(2, 560, 16), [], 0
        for n in pieces:
            extra = {"x": x[start : start + n]}
            taps = graph.replay(
                make_step([(start, n)], [blocks[: (start + n + 15) // 16]], extra=extra)
            )
            out.append(taps["out"].copy())
            start += n
        results.append(np.concatenate(out))
    assert all(np.array_equal(result, results[0]) for result in results)


@all_kernels
def test_a_sink_takes_its_share_of_the_softmax(tier: str, dtype: DType) -> None:
    """One of nothing changes no bit, one of all leaves nothing, one of as much leaves half."""
    backend = BACKENDS[tier, dtype, 2]
    heads = HeadShape(num_heads=3, num_kv_heads=1, head_dim=32)
    weight = tensor(1, 5 * 32, 16, scale=0.25)
    packed = backend.pack_linear([weight])
    kv = make_cache(backend, heads).layer("layer")
    sinks = backend.pack_vector(HostTensor.of(np.array([-1e30, 1e30, np.log(270)], np.float32)))

    def forward(ops: Ops) -> None:
        q = ops.qkv_rope_store(ops.input("x", 16, dtype), packed, kv, heads, None)
        # A scale so small that the softmax of 270 tokens is uniform, and its sum is 270.
        ops.output("plain", ops.attention(q, kv, heads, scale=1e-30))
        ops.output("sinks", ops.attention(q, kv, heads, scale=1e-30, sinks=sinks))

    graph = backend.capture(forward, LIMITS)
    taps = graph.replay(make_step([(0, 270)], extra={"x": randn(2, 270, 16)}))
    plain, with_sinks = (
        backend.to_numpy(taps[name])[-1].reshape(3, 32).copy() for name in ("plain", "sinks")
    )
    assert np.array_equal(with_sinks[0], plain[0])
    assert not with_sinks[1].any()
    assert np.allclose(with_sinks[2], plain[2] / 2, rtol=tolerance(dtype))


@all_tiers
def test_activations_are_accurate_from_tail_to_tail(tier: str) -> None:
    """gate = x, up = 1: the activation itself, against float64."""
    backend = BACKENDS[tier, DType.F32, 1]
    x = np.linspace(-30, 30, 4000, dtype=np.float32)
    x[:4] = 0.0, 1e-20, -1e-20, 1e-3
    eye, zero = HostTensor.of(np.eye(8, dtype=np.float32)), HostTensor.of(np.zeros((8, 8), "f4"))
    bias = [HostTensor.of(np.zeros(8, "f4")), HostTensor.of(np.ones(8, "f4"))]
    weight = backend.pack_linear([eye, zero], bias, gated=True)
    x64 = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (x64 + 0.044715 * x64**3)
    expected = {
        Activation.SILU: x64 / (1 + np.exp(-x64)),
        Activation.GELU: x64 * np.array([0.5 * math.erfc(-v / 2**0.5) for v in x64]),
        Activation.GELU_TANH: 0.5 * x64 * (1 + np.tanh(inner)),
    }
    for activation, values in expected.items():

        def forward(ops: Ops, activation: Activation = activation) -> None:
            ops.output("out", ops.gated_linear(ops.input("x", 8), weight, activation))

        out = run_rows(backend, forward, {"x": x.reshape(500, 8)})["out"].ravel()
        assert np.allclose(out, values, rtol=1e-5, atol=5e-7), activation


@all_kernels
def test_nan_stays_in_its_row(tier: str, dtype: DType) -> None:
    backend = BACKENDS[tier, dtype, 2]
    weight = backend.pack_linear([tensor(1, 40, 33)])
    gated = backend.pack_linear([tensor(2, 40, 33), tensor(3, 40, 33)], gated=True)
    norm = backend.pack_vector(tensor(4, 33))

    def forward(ops: Ops) -> None:
        act = ops.rms_norm(ops.input("x", 33), norm, eps=1e-6)
        ops.output("act", act)
        ops.output("linear", ops.linear(act, weight))
        ops.output("gated", ops.gated_linear(act, gated, Activation.GELU_TANH))

    x = randn(5, 150, 33)
    clean = run_rows(backend, forward, {"x": x})
    x[70, 5], x[71, 32] = np.nan, np.inf
    dirty = run_rows(backend, forward, {"x": x})
    others = np.delete(np.arange(150), [70, 71])
    for name in clean:
        assert np.array_equal(dirty[name][others], clean[name][others])
        assert np.isnan(dirty[name][70]).all()
