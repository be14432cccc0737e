from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.tensor import DType, HostTensor, float32_to_bf16
from octavo.errors import ConfigError
from octavo.kernels.ops import Activation, Backend, Ops
from octavo.layers.linear import ColumnParallelLinear, GatedLinear, RowParallelLinear, Shard
from tests.layers.lab import fill, reference, run

X = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)


def apply(layer: ColumnParallelLinear | RowParallelLinear, backend: Backend, x: np.ndarray):
    def forward(ops: Ops) -> None:
        ops.output("y", layer(ops, ops.input("x", x.shape[1])))

    return run(backend, forward, {"x": x})["y"]


def test_column_parallel_stacks_its_parts() -> None:
    backend = reference()
    layer = ColumnParallelLinear({"q": [3], "k": [2]}, 8, bias=True)
    t = fill(layer, backend)
    expected = np.concatenate(
        [X @ t["q.weight"].T + t["q.bias"], X @ t["k.weight"].T + t["k.bias"]], axis=1
    )
    np.testing.assert_allclose(apply(layer, backend, X), expected, rtol=1e-5, atol=1e-5)


def test_one_checkpoint_tensor_may_hold_several_maps() -> None:
    """Phi-3's qkv_proj and gate_up_proj."""
    backend = reference()
    apart = ColumnParallelLinear({"q": [4], "k": [2]}, 8, bias=True)
    t = fill(apart, backend)
    fused = ColumnParallelLinear({"qk": [4, 2]}, 8, bias=True)
    for kind in ("weight", "bias"):
        both = np.concatenate([t[f"q.{kind}"], t[f"k.{kind}"]])
        fused.put(f"qk.{kind}", HostTensor.of(both), backend)
    assert np.array_equal(apply(fused, backend, X), apply(apart, backend, X))


@pytest.mark.parametrize("parts", [{"gate": [6], "up": [6]}, {"gate_up": [6, 6]}])
def test_gated(parts: dict[str, list[int]]) -> None:
    backend = reference()
    layer = GatedLinear(parts, 8, Activation.SILU)
    weight = np.concatenate(list(fill(layer, backend).values()))
    gate, up = (X @ weight.T)[:, :6], (X @ weight.T)[:, 6:]
    expected = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(apply(layer, backend, X), expected, rtol=1e-5, atol=1e-6)


def test_row_parallel_adds_to_a_residual() -> None:
    backend = reference()
    layer = RowParallelLinear("o", 8, 3, bias=True)
    fill(layer, backend)
    residual = np.ones((5, 3), dtype=np.float32)

    def forward(ops: Ops) -> None:
        ops.output("y", layer(ops, ops.input("x", 8), ops.input("residual", 3)))

    y = run(backend, forward, {"x": X, "residual": residual})["y"]
    np.testing.assert_allclose(y, apply(layer, backend, X) + 1, rtol=1e-6, atol=1e-6)


def test_column_shards_are_the_outputs_in_parts() -> None:
    backend = reference()
    whole = ColumnParallelLinear({"qkv": [4, 2, 2]}, 8, bias=True)
    t = fill(whole, backend)
    shards = []
    for rank in range(2):
        shard = ColumnParallelLinear(
            {"qkv": [4, 2, 2]}, 8, bias=True, shard=Shard(rank=rank, size=2)
        )
        assert shard.expected() == whole.expected()
        for name, array in t.items():
            shard.put(name, HostTensor.of(array), backend)
        shards.append(apply(shard, backend, X))
    y = apply(whole, backend, X)
    assert np.array_equal(shards[0], y[:, [0, 1, 4, 6]])
    assert np.array_equal(shards[1], y[:, [2, 3, 5, 7]])


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_row_shards_add_up(dtype: DType) -> None:
    backend = reference()
    layers = [RowParallelLinear("o", 8, 3, bias=True, shard=Shard(rank=r, size=2)) for r in (0, 1)]
    whole = RowParallelLinear("o", 8, 3, bias=True)
    t = fill(whole, backend)
    weight = HostTensor.of(t["o.weight"])
    if dtype is DType.BF16:
        weight = HostTensor(float32_to_bf16(t["o.weight"]), dtype, weight.shape)
        whole.put("o.weight", weight, backend)
        whole.put("o.bias", HostTensor.of(t["o.bias"]), backend)
    for layer in layers:
        layer.put("o.weight", weight, backend)
        layer.put("o.bias", HostTensor.of(t["o.bias"]), backend)
    parts = [apply(layer, backend, X[:, 4 * r : 4 * r + 4]) for r, layer in enumerate(layers)]
    y = apply(whole, backend, X)
    np.testing.assert_allclose(parts[0] + parts[1], y, rtol=1e-5, atol=1e-6)


def test_unequal_shards_are_refused() -> None:
    backend = reference()
    layer = ColumnParallelLinear({"q": [3]}, 8, shard=Shard(rank=0, size=2))
    with pytest.raises(ConfigError, match=r"3 .* into 2 equal parts"):
        fill(layer, backend)
