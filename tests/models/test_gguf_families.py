from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from octavo.config.model import ConfigReader
from octavo.contracts.tensor import DType
from octavo.errors import UnsupportedModelError, WeightsError
from octavo.models.files import resolve_model
from octavo.models.gguf_families import ARCHITECTURES
from octavo.models.registry import build_model
from tests.kernels.backends import make_backend
from tests.models.gguf_families import write_hf_gguf
from tests.models.hf import HFModel
from tests.models.oracle import prompt_of
from tests.models.runner import Runner
from tests.models.test_gemma import FULL, SHAPE, SLIDING
from tests.models.test_phi import longrope

GEMMA = SHAPE | {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "tie_word_embeddings": True}
ROPES = {
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},  # the file has no key for it
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 24}),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": 9}),
    "phi3-full": ("Phi3ForCausalLM", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    "phi3-longrope": ("Phi3ForCausalLM", longrope(16)),
    "gemma2": ("Gemma2ForCausalLM", GEMMA | {"final_logit_softcapping": 6.0}),
    "gemma3": ("Gemma3ForCausalLM", GEMMA | {"final_logit_softcapping": 6.0}),
    "gemma3-ropes": ("Gemma3ForCausalLM", GEMMA | {"rope_parameters": ROPES}),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(name: str, tmp_path: Path) -> None:
    """The model that became the file is the oracle, over a text longer than its windows."""
    architecture, options = MODELS[name]
    hf = HFModel(architecture, **options)
    files = resolve_model(str(write_hf_gguf(tmp_path / "m.gguf", hf)))
    model = build_model(files.config)
    runner = Runner(
        model, list(files.weights()), make_backend("cpu", DType.F32, 1), max_model_len=64
    )
    prompt = prompt_of(50)
    _, logprobs = runner.greedy(prompt, 1, [17, 5])
    assert np.abs(logprobs - hf.logprobs(prompt)).max() < 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_names_and_values_are_transformers(name: str, tmp_path: Path) -> None:
    """Oracle: transformers' own reading of the same file."""
    architecture, options = MODELS[name]
    hf = HFModel(architecture, **options)
    path = write_hf_gguf(tmp_path / "m.gguf", hf)
    checkpoint = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=hf.model)
    theirs = checkpoint["tensors"]
    ours = dict(resolve_model(str(path)).weights())
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        assert np.array_equal(tensor.to_float32(), theirs[key].numpy()), key


def test_every_architecture_is_tested() -> None:
    assert {name.split("-")[0] for name in MODELS} | {"llama"} == set(ARCHITECTURES)


def family_of(architecture: str, **values: Any) -> dict[str, Any]:
    metadata = {f"{architecture}.{k.replace('__', '.')}": v for k, v in values.items()}
    return ARCHITECTURES[architecture].family(ConfigReader(metadata, "m.gguf"))


def test_gemmas_of_27b_scale_scores_by_the_share_of_a_head() -> None:
    sizes = {"attention__key_length": 128, "embedding_length": 4608, "attention__head_count": 32}
    for layers, scalar in ((26, 128), (46, 144)):
        config = family_of("gemma2", **sizes, block_count=layers)
        assert config["query_pre_attn_scalar"] == scalar
    sizes = {"attention__key_length": 128, "embedding_length": 5376, "attention__head_count": 32}
    for layers, scalar in ((48, 128), (62, 168)):
        config = family_of("gemma3", **sizes, block_count=layers)
        assert config["query_pre_attn_scalar"] == scalar
    with pytest.raises(UnsupportedModelError, match=r"gemma3\.attention\.key_length is missing"):
        family_of("gemma3", block_count=18)


def test_what_gemma_files_leave_out_or_say() -> None:
    sizes = {"attention__key_length": 256, "block_count": 18}
    config = family_of("gemma2", **sizes)
    assert config["sliding_window"] == 4096
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)
    config = family_of("gemma3", **sizes, attention__sliding_window=512)
    assert (config["sliding_window"], config["sliding_window_pattern"]) == (512, 6)
    assert config["rope_local_base_freq"] == 10000.0
    assert "final_logit_softcapping" not in config
    more = {"rope__freq_base_swa": 500.0, "attention__sliding_window_pattern": 3}
    config = family_of("gemma3", **sizes, attention__sliding_window=512, **more)
    assert (config["rope_local_base_freq"], config["sliding_window_pattern"]) == (500.0, 3)
    config = family_of("gemma3", **sizes)  # every layer sees everything
    assert (config["sliding_window"], config["sliding_window_pattern"]) == (None, 1)


def test_longrope_needs_both_tensors(tmp_path: Path) -> None:
    path = write_hf_gguf(tmp_path / "m.gguf", HFModel("Phi3ForCausalLM", **longrope(16)))
    path.write_bytes(path.read_bytes().replace(b"rope_factors_short", b"rope_factors_other"))
    with pytest.raises(WeightsError, match=r"rope_factors_short\.weight is missing"):
        resolve_model(str(path))
