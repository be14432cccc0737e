from __future__ import annotations

import numpy as np
import pytest

from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import WeightsError
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import Activation
from octavo.layers.base import Module, WeightSlot
from octavo.layers.embedding import Embedding, LMHead
from octavo.layers.linear import ColumnParallelLinear, GatedLinear, RowParallelLinear
from octavo.layers.norm import RMSNorm
from octavo.quant.registry import quantization_of
from tests.layers.lab import fill, reference


class Block(Module):
    def __init__(self, name: str) -> None:
        self.size = 4
        self.norm = RMSNorm(f"{name}.norm", 4, 1e-5)
        self.proj = ColumnParallelLinear({f"{name}.proj": [2]}, 4)


class Model(Module):
    def __init__(self) -> None:
        self.embed = Embedding("embed", 8, 4, tied=True)
        self.blocks = [Block("0"), Block("1")]
        self.head = LMHead(self.embed)


def test_find_walks_in_order_of_definition_and_once() -> None:
    model = Model()
    names = [next(iter(s.expected())) for s in model.find(WeightSlot)]
    assert names == [
        "embed.weight",
        "0.norm.weight",
        "0.proj.weight",
        "1.norm.weight",
        "1.proj.weight",
    ]
    assert model.find(Block) == model.blocks
    assert model.find(LMHead) == [model.head]


def test_a_slot_packs_itself_when_the_last_tensor_arrives() -> None:
    backend = reference()
    linear = ColumnParallelLinear({"q": [3], "k": [2]}, 4, bias=True)
    assert linear.expected() == {
        "q.weight": (3, 4),
        "q.bias": (3,),
        "k.weight": (2, 4),
        "k.bias": (2,),
    }
    with pytest.raises(WeightsError, match=r"q\.weight.*before it was loaded"):
        _ = linear.weight
    fill(linear, backend)
    assert linear.weight.shape == (5, 4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["auto", "int8", "int4"])
def test_what_slots_will_take(name: str, tied: bool) -> None:
    """Within what norms in float32 and scales per output add."""
    quantization = quantization_of(name, "auto")
    backend = CpuBackend(DType.BF16, 1)
    slots = [
        Embedding("embed_tokens", 512, 256, tied=tied),
        ColumnParallelLinear({"q_proj": [64], "k_proj": [32], "v_proj": [32]}, 256),
        GatedLinear({"gate_proj": [320], "up_proj": [320]}, 256, Activation.SILU),
        RowParallelLinear("down_proj", 320, 256),
        RMSNorm("norm", 256, 1e-5),
    ]
    for slot in slots:
        estimated = slot.estimated_bytes(DType.BF16, DType.BF16, quantization)
        packed = sum(
            slot.put(name, HostTensor.of(np.zeros(shape, np.float32)), backend, quantization)
            for name, shape in slot.expected().items()
        )
        assert estimated <= packed
        assert packed <= 1.06 * (estimated + 512)
    backend.close()
