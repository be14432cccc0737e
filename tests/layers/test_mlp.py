from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from octavo.kernels.ops import Ops
from octavo.layers.linear import GatedLinear, RowParallelLinear
from octavo.layers.mlp import ACTIVATIONS, GatedMLP
from tests.layers.lab import fill, reference, run

X = np.random.default_rng(4).standard_normal((4, 6)).astype(np.float32)


def test_every_activation_name_is_torchs_function() -> None:
    functions = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
        "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }
    assert functions.keys() == ACTIVATIONS.keys()
    for name, function in functions.items():
        backend = reference()
        gate_up = GatedLinear({"gate": [5], "up": [5]}, 6, ACTIVATIONS[name])
        down = RowParallelLinear("down", 5, 6)
        mlp = GatedMLP(gate_up, down)
        t = fill(gate_up, backend) | fill(down, backend, seed=1)

        def forward(ops: Ops, mlp: GatedMLP = mlp) -> None:
            x = ops.input("x", 6)
            ops.output("y", mlp(ops, x))
            ops.output("sum", mlp(ops, x, ops.input("residual", 6)))

        taps = run(backend, forward, {"x": X, "residual": X})
        gate = function(torch.from_numpy(X @ t["gate.weight"].T)).numpy()
        expected = gate * (X @ t["up.weight"].T) @ t["down.weight"].T
        np.testing.assert_allclose(taps["y"], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(taps["sum"], expected + X, rtol=1e-4, atol=1e-5)
