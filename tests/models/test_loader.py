from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.config.model import ConfigReader
from octavo.contracts.tensor import DType, HostTensor, float32_to_bf16
from octavo.errors import WeightsError
from octavo.kernels.torch_reference import TorchReferenceBackend
from octavo.models.base import CausalLM
from octavo.models.loader import dummy_weights, load_weights
from octavo.models.registry import build_model
from tests.models.runner import Runner
from tests.models.test_llama import CONFIG


def make(layers: range | None = None, **change: Any) -> CausalLM:
    return build_model(ConfigReader(CONFIG | change, "config.json"), layers)


def load(model: CausalLM, weights: dict[str, HostTensor] | list[tuple[str, HostTensor]]) -> int:
    items = list(weights.items()) if isinstance(weights, dict) else weights
    return load_weights(model, items, TorchReferenceBackend(DType.F32, 1))


def good(**change: Any) -> dict[str, HostTensor]:
    return dict(dummy_weights(make(**change), seed=0))


def test_returns_the_bytes_packed() -> None:
    weights = good()
    num_values = sum(tensor.data.size for tensor in weights.values())
    assert load(make(), weights) == 8 * num_values  # the reference keeps float64


def test_order_does_not_matter() -> None:
    load(make(), dict(reversed(good().items())))


def test_all_faults_are_named_in_one_error() -> None:
    weights = list(good().items())
    names = [name for name, _ in weights]
    by_name = dict(weights)
    del by_name["model.layers.1.mlp.up_proj.weight"]
    by_name["model.layers.0.self_attn.q_proj.weight"] = HostTensor.of(np.zeros((32, 31), "f4"))
    by_name["model.norm.weight"] = HostTensor.of(np.ones(32, dtype=np.int32))
    by_name["model.layers.7.foo"] = HostTensor.of(np.zeros(3, "f4"))
    stream = [*by_name.items(), (names[0], by_name[names[0]])]
    with pytest.raises(WeightsError) as caught:
        load(make(), stream)
    message = str(caught.value)
    for text in (
        "1 missing: model.layers.1.mlp.up_proj.weight",
        "1 unknown: model.layers.7.foo",
        f"1 twice: {names[0]}",
        "1 misshapen: model.layers.0.self_attn.q_proj.weight [32, 31] instead of [32, 32]",
        "1 integer: model.norm.weight int32",
    ):
        assert text in message


def test_many_faults_are_counted() -> None:
    with pytest.raises(WeightsError, match=r"30 missing: .* and 22 more") as caught:
        load(make(), {})
    assert len(str(caught.value)) < 1000


def test_nothing_is_packed_after_a_fault() -> None:
    class Counting(TorchReferenceBackend):
        packed = 0

        def pack_vector(self, vector: HostTensor) -> Any:
            self.packed += 1
            return super().pack_vector(vector)

    backend = Counting(DType.F32, 1)
    stream = [("model.embed_tokens.weight", HostTensor.of(np.zeros((1, 1), "f4"))), *good().items()]
    with pytest.raises(WeightsError):
        load_weights(make(), stream, backend)
    assert backend.packed == 0


@pytest.mark.parametrize(
    "extra", ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"]
)
def test_known_extras_are_ignored(extra: str) -> None:
    tied = {"tie_word_embeddings": True}
    weights = good(**tied)
    assert extra not in weights
    load(make(**tied), weights | {extra: HostTensor.of(np.zeros(3, "f4"))})


def test_a_stage_takes_its_part_of_a_checkpoint() -> None:
    first, last = make(range(2)), make(range(2, 3))
    weights = good()
    total = load(make(), weights)
    assert load(first, weights) + load(last, weights) == total
    with pytest.raises(WeightsError, match=r"1 unknown: model\.layers\.3\."):
        load(last, weights | {"model.layers.3.mlp.up_proj.weight": weights["model.norm.weight"]})


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_half_precision_checkpoints(dtype: DType) -> None:
    def half(tensor: HostTensor) -> HostTensor:
        if dtype is DType.BF16:
            return HostTensor(float32_to_bf16(tensor.data), dtype, tensor.shape)
        return HostTensor.of(tensor.data.astype(np.float16))

    def logits(weights: dict[str, HostTensor]) -> np.ndarray:
        backend = TorchReferenceBackend(DType.F32, 1)
        runner = Runner(make(), list(weights.items()), backend, max_model_len=32)
        return runner.step([1, 2, 3])["logits"]

    weights = {name: half(tensor) for name, tensor in good().items()}
    exact = {name: HostTensor.of(tensor.to_float32()) for name, tensor in weights.items()}
    assert np.array_equal(logits(weights), logits(exact))


def test_dummy_weights_depend_on_seed_and_name_alone() -> None:
    first, again = good(), good()
    other = dict(dummy_weights(make(), seed=1))
    stage = dict(dummy_weights(make(range(1, 2)), seed=0))
    name = "model.layers.1.mlp.down_proj.weight"
    assert np.array_equal(first[name].data, again[name].data)
    assert np.array_equal(first[name].data, stage[name].data)
    assert not np.array_equal(first[name].data, other[name].data)
    up = first["model.layers.1.mlp.up_proj.weight"].data
    assert not np.array_equal(up, first["model.layers.1.mlp.gate_proj.weight"].data)


@pytest.mark.parametrize("change", [{}, {"tie_word_embeddings": True, "attention_bias": True}])
def test_dummy_weights_give_sensible_logits(change: dict[str, Any]) -> None:
    backend = TorchReferenceBackend(DType.F32, 1)
    model = make(**change)
    runner = Runner(model, list(dummy_weights(model, seed=3)), backend, max_model_len=64)
    logits = runner.step(list(range(60)))["logits"]
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3
