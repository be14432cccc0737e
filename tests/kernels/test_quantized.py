"""Quantized weights on every tier: values, exactness, ragged shapes, rows alone and in a batch."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.tensor import DType, HostTensor
from octavo.contracts.weight_format import WeightFormat
from octavo.errors import KernelError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Activation, HeadShape, Ops, Weight
from octavo.kernels.torch_quantized import quantize_row, round_weight
from octavo.quant.gguf import smallest_format
from tests.kernels.blocks import BLOCK_DTYPES, random_blocks
from tests.kernels.cpu_steps import gathered, make_cache, randn, run_rows, tensor

TIERS = [t for t in CpuBackend(DType.F32, 1).isa_tiers if t != "avx512_bf16"]  # adds none of this
BACKENDS = {(tier, n): CpuBackend(DType.F32, n, isa=tier) for tier in TIERS for n in (1, 2, 3)}
QUANTIZED = [f for f in WeightFormat if f.grouping is not None]

all_tiers = pytest.mark.parametrize("tier", TIERS)
all_formats = pytest.mark.parametrize("format", QUANTIZED, ids=lambda f: f.value)
all_blocks = pytest.mark.parametrize("dtype", BLOCK_DTYPES, ids=lambda d: d.value)


def source_of(format: WeightFormat, rng: np.random.Generator, n: int, k: int) -> HostTensor:
    """A tensor for a format: floats that it rounds, or, for formats of K-quants alone, blocks."""
    dtype = {
        WeightFormat.INT4_G32_MIN_F32: DType.Q4_K,
        WeightFormat.INT8_G32_MIN: DType.Q5_K,
        WeightFormat.INT8_G16: DType.Q6_K,
        WeightFormat.INT8_G16_MIN: DType.Q4_K,
    }.get(format)
    if dtype is None:
        return HostTensor.of((rng.standard_normal((n, k)) * k**-0.5).astype(np.float32))
    return random_blocks(rng, dtype, n, -(-k // 256) * 256)


def linear_rows(backend: CpuBackend, weight: Weight, x: np.ndarray) -> np.ndarray:
    def forward(ops: Ops) -> None:
        ops.output("out", ops.linear(ops.input("x", x.shape[1]), weight))

    return run_rows(backend, forward, {"x": x})["out"]


def twin(tensor: HostTensor, format: WeightFormat, x: np.ndarray) -> np.ndarray:
    """In float64, over the values of the weight and of the activations, both as rounded."""
    grouping = format.grouping
    assert grouping is not None
    rows = torch.stack([quantize_row(row, grouping) for row in torch.from_numpy(x)])
    return (rows @ round_weight(tensor, format).T).numpy()


@settings(max_examples=40)
@given(
    format=st.sampled_from(QUANTIZED),
    tier=st.sampled_from(TIERS),
    threads=st.integers(1, 3),
    rows=st.integers(1, 80),
    n=st.integers(1, 100),
    k=st.one_of(st.integers(1, 300), st.integers(2040, 2120)),
    row=st.integers(0, 79),
)
def test_linear_of_any_shape(
    format: WeightFormat, tier: str, threads: int, rows: int, n: int, k: int, row: int
) -> None:
    tensor = source_of(format, np.random.default_rng(n), n, k)
    x = randn(1, rows, tensor.shape[1])
    x[:, 0] *= 30  # an outlier decides its group's scale
    backend = BACKENDS[tier, threads]
    out = linear_rows(backend, backend.pack_linear([tensor], format=format), x)
    expected = twin(tensor, format, x)
    assert np.abs(out - expected).max() <= 1e-5 * (1 + np.abs(expected).max())
    row %= rows
    other = BACKENDS[tier, 1]
    alone = linear_rows(other, other.pack_linear([tensor], format=format), x[row : row + 1])
    assert np.array_equal(alone[0], out[row])


@all_tiers
@all_formats
def test_every_number_of_rows_about_a_tile(tier: str, format: WeightFormat) -> None:
    """A lone tile has more rows than one of several, and walks a long K at once."""
    tensor = source_of(format, np.random.default_rng(1), 40, 2100)
    x = randn(2, 10, tensor.shape[1])
    for threads in (1, 3):
        backend = BACKENDS[tier, threads]
        weight = backend.pack_linear([tensor], format=format)
        whole = linear_rows(backend, weight, x)
        for rows in range(1, 10):
            assert np.array_equal(linear_rows(backend, weight, x[-rows:]), whole[-rows:])


@pytest.mark.parametrize("format", [f for f in QUANTIZED if f.value.startswith("int4")])
def test_panels_unpacked_for_many_rows(format: WeightFormat) -> None:
    """Where K takes several parts, rows more than one pass, and heads more than one panel."""
    heads = HeadShape(num_heads=1, num_kv_heads=1, head_dim=64)
    tensor = source_of(format, np.random.default_rng(8), 3 * heads.head_dim, 1100)
    x = randn(9, 300, tensor.shape[1])
    for threads in (1, 2):
        backend = BACKENDS[TIERS[-1], threads]
        weight = backend.pack_linear([tensor], format=format)
        kv = make_cache(backend, heads).layer("layer")

        def forward(ops: Ops, weight=weight, kv=kv) -> None:
            act = ops.input("x", x.shape[1])
            ops.output("linear", ops.linear(act, weight))
            ops.output("q", ops.qkv_rope_store(act, weight, kv, heads, None))

        many, sixteen, few = (run_rows(backend, forward, {"x": x[-rows:]}) for rows in (300, 16, 5))
        for name, rows in many.items():
            assert np.array_equal(rows[-16:], sixteen[name])
            assert np.array_equal(rows[-5:], few[name])


@pytest.mark.parametrize(("rows", "size"), [(1849, 1984), (2601, 2016)], ids=["16", "8"])
@pytest.mark.parametrize("format", [f for f in QUANTIZED if f.value.startswith("int4")])
def test_a_last_pass_of_one_row(format: WeightFormat, rows: int, size: int) -> None:
    """One row more than whole passes, where a group of activations comes with so many bytes."""
    tensor = source_of(format, np.random.default_rng(8), 32, size)
    x = randn(9, rows, tensor.shape[1])
    backend = BACKENDS[TIERS[-1], 1]
    weight = backend.pack_linear([tensor], format=format)
    whole = linear_rows(backend, weight, x)
    assert np.array_equal(linear_rows(backend, weight, x[-5:]), whole[-5:])


@all_tiers
@pytest.mark.parametrize("groups", [6, 5], ids=["whole groups per thread", "cut groups"])
def test_threads_round_what_they_have_written(tier: str, groups: int) -> None:
    """Without a barrier: norms by rows, gated activations by whole groups."""
    rng = np.random.default_rng(6)
    size, hidden = 128, 64 * groups
    gate, up = (source_of(WeightFormat.INT8, rng, hidden, size) for _ in range(2))
    down = source_of(WeightFormat.INT8, rng, size, hidden)
    x = randn(7, 40, size)
    results: dict[int, list[np.ndarray]] = {}
    for threads in (1, 2, 3):
        backend = BACKENDS[tier, threads]
        ones = backend.pack_vector(HostTensor.of(np.ones(size, np.float32)))
        wide = backend.pack_linear([gate, up], gated=True, format=WeightFormat.INT8)
        narrow = backend.pack_linear([down], format=WeightFormat.INT8)

        def forward(ops: Ops, ones=ones, wide=wide, narrow=narrow) -> None:
            y = ops.input("x", size)
            for _ in range(20):
                z = ops.gated_linear(ops.rms_norm(y, ones, eps=1e-6), wide, Activation.SILU)
                y = ops.linear_add(z, narrow, y)
            ops.output("out", y)

        for rows in (1, 2, 3, 8, 13, 40):
            results.setdefault(rows, []).append(
                run_rows(backend, forward, {"x": x[:rows]})["out"].copy()
            )
    for rows, outs in results.items():
        assert all(np.array_equal(out, results[40][0][:rows]) for out in outs)


def unit_blocks(dtype: DType) -> HostTensor:
    """Random codes with scales of 1, [40, two blocks]."""
    kind = gguf.GGMLQuantizationType[dtype.name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (40, 2, size), dtype=np.uint8)
    one = np.array([1, 1], dtype=np.float16).view(np.uint8)
    halves = 2 if dtype in (DType.Q4_1, DType.Q5_1, DType.Q4_K, DType.Q5_K) else 1
    start = 208 if dtype is DType.Q6_K else 0
    blocks[..., start : start + 2 * halves] = one[: 2 * halves]
    return HostTensor(blocks.reshape(40, -1), dtype, (40, 2 * values))


@all_tiers
@all_blocks
@pytest.mark.parametrize("outliers", [False, True], ids=["plain", "outliers"])
def test_sums_are_exact_integers(tier: str, dtype: DType, outliers: bool) -> None:
    """Scales of 1, and activations whose codes are themselves: the result is an integer."""
    tensor = unit_blocks(dtype)
    rng = np.random.default_rng(4)
    x = rng.integers(-127, 128, (9, tensor.shape[1])).astype(np.float32)
    x[:, ::4] = 127  # every quad's largest: the scale is 1
    if outliers:  # one quad of every group needs 16 bits; at any place, of either sign
        group = smallest_format({dtype}).grouping.group
        quads = x.reshape(len(x), -1, group // 4, 4)
        first = rng.integers(0, group // 4, quads.shape[:2])
        at = (*np.indices(first.shape), first)
        quads[at] = rng.integers(-300, 301, (*first.shape, 4))
        quads[(*at, 1)] = rng.choice([-640, -384, -129, 128, 383, 385, 641], first.shape)
        assert np.abs(x).max() > 600
    backend = BACKENDS[tier, 2]
    weight = backend.pack_linear([tensor], format=smallest_format({dtype}))
    exact = x.astype(np.int64) @ tensor.to_float32().astype(np.int64).T
    assert np.abs(exact).max() < 2**24
    assert np.array_equal(linear_rows(backend, weight, x), exact)


@all_tiers
@all_formats
def test_extreme_codes_do_not_saturate(tier: str, format: WeightFormat) -> None:
    tensor = source_of(format, np.random.default_rng(0), 33, 256)
    if not tensor.dtype.is_block_format:
        tensor = HostTensor.of(np.where(np.arange(256) % 3, 1, -1) * np.ones((33, 1), np.float32))
    x = np.where(np.arange(256) % 3, 1, -1) * np.ones((5, 1), np.float32)
    backend = BACKENDS[tier, 1]
    out = linear_rows(backend, backend.pack_linear([tensor], format=format), x.astype(np.float32))
    expected = twin(tensor, format, x.astype(np.float32))
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@all_blocks
def test_gathered_rows_are_the_formats_values(dtype: DType) -> None:
    """Bit for bit what the `gguf` package makes of them, from every format that holds them."""
    backend = BACKENDS[TIERS[-1], 2]
    tensor = random_blocks(np.random.default_rng(5), dtype, 50, 512)
    formats = [f for f in QUANTIZED if f.holds(dtype)]
    assert smallest_format({dtype}) in formats
    for format in formats:
        out = gathered(backend, backend.pack_embedding(tensor, format=format))
        if format.grouping.has_min and smallest_format({dtype}).grouping.has_min is False:
            # scale * code - scale * zero_point rounds once more than scale * (code - zero_point)
            assert np.allclose(out, tensor.to_float32(), rtol=1e-5, atol=1e-6)
        else:
            assert np.array_equal(out, tensor.to_float32())


@pytest.mark.parametrize(
    "format", [WeightFormat.INT8, WeightFormat.INT8_G32, WeightFormat.INT4_G32_MIN]
)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_online_rounding_is_the_specifications(format: WeightFormat, dtype: DType) -> None:
    backend = BACKENDS[TIERS[-1], 3]
    values = randn(7, 50, 70, scale=0.1)
    values[3], values[4, 5], values[5] = 0, 9, -0.25
    tensor = HostTensor.of(values.astype(dtype.value))
    out = gathered(backend, backend.pack_linear([tensor], format=format))
    assert np.array_equal(out, round_weight(tensor, format).float().numpy())


def test_online_int4_is_better_than_the_extremes_alone() -> None:
    values = randn(8, 200, 320)
    groups = values.reshape(-1, 32)
    step = (groups.max(-1) - groups.min(-1)) / 15
    error = round_weight(HostTensor.of(values), WeightFormat.INT4_G32_MIN).numpy() - values
    assert np.square(error).mean() < 0.95 * np.square(step).mean() / 12


@all_tiers
def test_nan_stays_in_its_row(tier: str) -> None:
    backend = BACKENDS[tier, 2]
    weight = backend.pack_linear([HostTensor.of(randn(1, 40, 70))], format=WeightFormat.INT8)
    x = randn(2, 50, 70)
    clean = linear_rows(backend, weight, x)
    x[20, 5], x[21, 69] = np.nan, np.inf
    dirty = linear_rows(backend, weight, x)
    others = np.delete(np.arange(50), [20, 21])
    assert np.array_equal(dirty[others], clean[others])
    assert np.isnan(dirty[20:22]).all()


@all_tiers
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_what_lies_behind_a_row_does_not_matter(tier: str, dtype: DType) -> None:
    """Activations of 48 columns end inside a group; the memory behind them held other values."""
    backend = CpuBackend(dtype, 1, isa=tier)
    gated = backend.pack_linear([HostTensor.of(randn(i, 48, 96)) for i in (1, 2)], gated=True)
    down = backend.pack_linear([HostTensor.of(randn(3, 96, 48))], format=WeightFormat.INT8)

    def forward(ops: Ops) -> None:
        x = ops.input("x", 96, dtype)
        for _ in range(3):
            h = ops.gated_linear(x, gated, Activation.SILU)
            x = ops.rms_norm(ops.linear(h, down), unit, eps=1e-6)
        ops.output("out", x)

    unit = backend.pack_vector(HostTensor.of(np.ones(96, dtype=np.float32)))
    x = randn(4, 40, 96, scale=0.3)
    together = run_rows(backend, forward, {"x": x})["out"]
    for row in range(0, 40, 13):
        alone = run_rows(backend, forward, {"x": x[row : row + 1]})["out"]
        assert np.array_equal(alone[0], together[row])
    backend.close()


@all_tiers
def test_tiny_and_zero_rows(tier: str) -> None:
    backend = BACKENDS[tier, 1]
    weight = backend.pack_linear([HostTensor.of(randn(1, 8, 64))], format=WeightFormat.INT8_G32)
    x = np.zeros((3, 64), dtype=np.float32)
    x[1] = 1e-38
    x[2] = 1e30 * randn(3, 64)
    out = linear_rows(backend, weight, x)
    assert (out[:2] == 0).all()
    assert np.isfinite(out[2]).all()


def test_a_format_that_cannot_hold_blocks_rounds_their_values() -> None:
    backend = BACKENDS[TIERS[-1], 1]
    tensor = random_blocks(np.random.default_rng(1), DType.Q8_0, 50, 64)
    out = gathered(backend, backend.pack_linear([tensor], format=WeightFormat.INT4_G32_MIN))
    values = tensor.to_float32()
    assert not np.array_equal(out, values)
    step = (values.max() - values.min()) / 15
    assert np.abs(out - values).max() <= step


@pytest.mark.parametrize("format", [None, WeightFormat.INT8, WeightFormat.INT4_G32_MIN])
def test_threads_pack_a_large_weight_as_one_does(format: WeightFormat | None) -> None:
    large = tensor(3, 2100, 1024, scale=0.1)
    x = randn(4, 2, 1024)
    one, three = (
        linear_rows(backend, backend.pack_linear([large], format=format), x)
        for backend in (BACKENDS[TIERS[-1], 1], BACKENDS[TIERS[-1], 3])
    )
    assert one.any(axis=0).all()
    assert np.array_equal(one, three)


def test_unknown_blocks_are_refused_natively() -> None:
    from octavo import _cpu

    device = _cpu.Device(1, [], "")
    packed = _cpu.PackedLinear(device, "int4_g32", 2, 64, False, False)
    rows = np.zeros((2, 68), dtype=np.uint8)
    with pytest.raises(KernelError, match="unknown"):
        packed.put_blocks(_cpu.PackTasks(), 0, "q9", rows)
    with pytest.raises(KernelError, match="unknown weight format"):
        _cpu.PackedLinear(device, "int3", 2, 64, False, False)


def test_an_unloaded_weight_takes_no_rows() -> None:
    from octavo import _cpu

    device = _cpu.Device(1, [], "")
    packed = _cpu.PackedLinear(device, "int8_g32", 2, 64, False, False)
    packed.unload()
    with pytest.raises(KernelError, match="unloaded"):
        packed.put_rows(_cpu.PackTasks(), 0, np.zeros((2, 64), dtype=np.float32))
    with pytest.raises(KernelError, match="unloaded"):
        packed.put_blocks(_cpu.PackTasks(), 0, "q8_0", np.zeros((2, 68), dtype=np.uint8))
