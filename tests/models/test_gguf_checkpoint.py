from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from octavo.contracts.tensor import DType
from octavo.models.files import resolve_model
from tests.models.gguf_lab import llama_tensors, write_gguf


@pytest.mark.parametrize("matrix_type", ["F32", "Q4_1"])
@pytest.mark.parametrize("tied", [True, False])
def test_names_and_values_are_transformers(matrix_type: str, tied: bool, tmp_path: Path) -> None:
    """Oracle: transformers' own reading of the same file."""
    tensors = llama_tensors(matrix_type)
    if not tied:
        values, kind = tensors["token_embd.weight"]
        tensors["output.weight"] = (values[::-1].copy(), kind)
    path = write_gguf(tmp_path / "m.gguf", tensors)
    files = resolve_model(str(path))
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**files.raw_config))
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    ours = dict(files.weights())
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert np.array_equal(tensor.to_float32(), theirs[name].numpy()), name


def test_raw_rows_stay_raw(tmp_path: Path) -> None:
    files = resolve_model(str(write_gguf(tmp_path / "m.gguf")))
    kinds = {name: tensor.dtype for name, tensor in files.weights()}
    assert kinds["model.embed_tokens.weight"] is DType.Q8_0
    assert kinds["model.layers.0.self_attn.q_proj.weight"] is DType.Q4_1
    assert kinds["model.norm.weight"] is DType.F32
    assert files.checkpoint_dtype is DType.Q4_1


def test_weights_can_be_read_again(tmp_path: Path) -> None:
    files = resolve_model(str(write_gguf(tmp_path / "m.gguf")))
    assert [n for n, _ in files.weights()] == [n for n, _ in files.weights()]
