"""Exports hold the very same model: for transformers, for us, from either format."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from dataclasses import fields
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from octavo.contracts.tensor import DType, HostTensor, bf16_to_float32, float32_to_bf16
from octavo.engine.tokenizer_export import folder_files, gguf_metadata
from octavo.errors import ConfigError, UnsupportedModelError, WeightsError
from octavo.models import export_target
from octavo.models.export_gguf import _same, export_gguf
from octavo.models.export_hf import export_hf
from octavo.models.export_target import staged
from octavo.models.files import ModelFiles, resolve_model
from octavo.models.gguf import GGUFFile
from octavo.models.gguf_names import gguf_name, hf_name, permute_rows, unpermute_rows
from octavo.models.llama import LlamaConfig
from octavo.models.registry import build_model
from tests.engine.tokenizer_lab import CHATML, byte_level, save_folder
from tests.models.hf import TINY, HFModel
from tests.models.oracle import prompt_of
from tests.models.test_gemma import SHAPE, TIED, VISION
from tests.models.test_gguf_families import MODELS as FAMILIES
from tests.ropes import LLAMA3, YARN

BIASES = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-biases": ("LlamaForCausalLM", BIASES),
    "llama-head-dim": ("LlamaForCausalLM", {"head_dim": 24, "num_key_value_heads": 1}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 9}),
    "mistral-full": ("MistralForCausalLM", {"sliding_window": None}),
    **FAMILIES,
}
VOCAB = {"vocab_size": 512}


def write_folder(folder: Path, architecture: str, **options: Any) -> HFModel:
    """A whole model folder, written by transformers."""
    hf = HFModel(architecture, **VOCAB, **options)
    folder.mkdir(exist_ok=True)
    hf.model.save_pretrained(folder)
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    save_folder(folder, byte_level(), chat_template=CHATML, **tokens)
    return hf


def to_hf(files: ModelFiles, out: Path, dtype: str = "float32", **options: Any) -> ModelFiles:
    export_hf(files, out, dtype=dtype, tokenizer=folder_files(files), **options)
    return resolve_model(str(out))


def to_gguf(files: ModelFiles, out: Path, dtype: str = "float32", **options: Any) -> ModelFiles:
    export_gguf(files, out, dtype=dtype, tokenizer=gguf_metadata(files), **options)
    return resolve_model(str(out))


def values_of(files: ModelFiles) -> dict[str, np.ndarray]:
    return {name: tensor.to_float32() for name, tensor in files.weights()}


def config_of(files: ModelFiles) -> LlamaConfig:
    model = build_model(files.config)
    return type(model).read_config(files.config)  # type: ignore[attr-defined,no-any-return]


def assert_same_weights(a: ModelFiles, b: ModelFiles) -> None:
    ours, theirs = values_of(a), values_of(b)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert np.array_equal(value, theirs[name]), name


def assert_same_config(a: ModelFiles, b: ModelFiles) -> None:
    ours, theirs = config_of(a), config_of(b)
    for f in fields(LlamaConfig):
        assert _same(getattr(ours, f.name), getattr(theirs, f.name)), f.name


@torch.no_grad()
def transformers_logits(folder: Path, ids: list[int]) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model.eval()(torch.tensor([ids])).logits[0].float().numpy()


def original_logits(hf: HFModel, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return hf.model(torch.tensor([ids])).logits[0].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_float32_round_trip(name: str, tmp_path: Path) -> None:
    """Folder → folder and folder → GGUF → folder: what transformers computes stays the same, and
    we read the same weights and configuration from all of them."""
    architecture, options = MODELS[name]
    hf = write_folder(tmp_path / "source", architecture, **options)
    source = resolve_model(str(tmp_path / "source"))
    prompt = prompt_of(40)
    expected = original_logits(hf, prompt)

    folder = to_hf(source, tmp_path / "folder")
    assert_same_weights(folder, source)
    assert config_of(folder) == config_of(source)
    assert np.abs(transformers_logits(tmp_path / "folder", prompt) - expected).max() < 2e-5

    file = to_gguf(source, tmp_path / "m.gguf")
    again = to_hf(file, tmp_path / "again")
    assert_same_config(file, source)
    assert_same_config(again, source)
    assert_same_weights(again, file)
    if name.startswith("gemma"):  # its norms are stored plus 1: equal to the last bit of that sum
        theirs = values_of(file)
        for key, value in values_of(source).items():
            assert np.abs(value - theirs[key]).max() <= 2**-23, key
    else:
        assert_same_weights(file, source)
    assert np.abs(transformers_logits(tmp_path / "again", prompt) - expected).max() < 2e-5


@pytest.mark.parametrize("name", ["llama", "qwen2", "phi3", "gemma3"])
def test_bfloat16_is_rounded_once_and_everywhere(name: str, tmp_path: Path) -> None:
    architecture, options = MODELS[name]
    write_folder(tmp_path / "source", architecture, **options)
    source = resolve_model(str(tmp_path / "source"))
    rounded = {k: bf16_to_float32(float32_to_bf16(v)) for k, v in values_of(source).items()}
    folder = to_hf(source, tmp_path / "folder", "bfloat16")
    file = to_gguf(source, tmp_path / "m.gguf", "bfloat16")
    assert folder.checkpoint_dtype is file.checkpoint_dtype is DType.BF16
    assert all(tensor.dtype is DType.BF16 for _, tensor in folder.weights())
    for files in (folder, file, to_hf(file, tmp_path / "again", "bfloat16")):
        for key, value in values_of(files).items():
            assert np.array_equal(value, rounded[key]), key
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype="auto")
    assert model.dtype is torch.bfloat16


def test_q8_0(tmp_path: Path) -> None:
    write_folder(tmp_path / "source", "LlamaForCausalLM", intermediate_size=80)
    source = resolve_model(str(tmp_path / "source"))
    file = to_gguf(source, tmp_path / "m.gguf", "q8_0")
    assert file.checkpoint_dtype is DType.Q8_0
    kinds = {
        name: tensor.type_name for name, tensor in GGUFFile(tmp_path / "m.gguf").tensors.items()
    }
    assert kinds["blk.0.attn_q.weight"] == kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_down.weight"] == "F32"  # rows of 80 are no whole blocks
    assert kinds["output_norm.weight"] == "F32"
    stored = dict(file.weights())
    for name, value in values_of(source).items():
        tensor = stored[name]
        if tensor.dtype is DType.Q8_0:
            value = gguf.dequantize(
                gguf.quantize(value, gguf.GGMLQuantizationType.Q8_0),
                gguf.GGMLQuantizationType.Q8_0,
            )
        assert np.array_equal(tensor.to_float32(), value), name
    again = to_gguf(file, tmp_path / "again.gguf", "q8_0")
    assert_same_weights(again, file)


@pytest.mark.parametrize(
    "rope",
    [
        {**LLAMA3, "rope_theta": 10000.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        {**YARN, "rope_theta": 10000.0},
    ],
    ids=["llama3", "linear", "yarn"],
)
def test_rope_scaling_in_gguf(rope: dict[str, Any], tmp_path: Path) -> None:
    hf = write_folder(tmp_path / "source", "LlamaForCausalLM", rope_parameters=rope)
    source = resolve_model(str(tmp_path / "source"))
    file = to_gguf(source, tmp_path / "m.gguf")
    assert_same_config(file, source)
    to_hf(file, tmp_path / "again")
    prompt = prompt_of(90)
    difference = transformers_logits(tmp_path / "again", prompt) - original_logits(hf, prompt)
    assert np.abs(difference).max() < 1e-3


def test_the_text_of_a_model_that_sees(tmp_path: Path) -> None:
    hf = HFModel(
        "Gemma3ForConditionalGeneration",
        text_config=TINY | SHAPE | TIED | VOCAB | {"query_pre_attn_scalar": 16},
        vision_config=VISION,
        mm_tokens_per_image=4,
        tie_word_embeddings=True,
    )
    hf.model.save_pretrained(tmp_path / "source")
    save_folder(tmp_path / "source", byte_level(), eos_token="<|im_end|>")
    source = resolve_model(str(tmp_path / "source"))
    text = to_hf(source, tmp_path / "text")
    assert text.raw_config["architectures"] == ["Gemma3ForCausalLM"]
    prompt = prompt_of(20)
    expected = original_logits(hf, prompt)
    assert np.allclose(transformers_logits(tmp_path / "text", prompt), expected, atol=1e-5)
    assert_same_config(to_gguf(source, tmp_path / "m.gguf"), text)


def test_shards(tmp_path: Path) -> None:
    hf = write_folder(tmp_path / "source", "LlamaForCausalLM")
    source = resolve_model(str(tmp_path / "source"))
    sharded = to_hf(source, tmp_path / "folder", max_shard_bytes=100_000)
    names = sorted(p.name for p in (tmp_path / "folder").glob("*.safetensors"))
    assert names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    sizes = [(tmp_path / "folder" / name).stat().st_size for name in names]
    assert len(names) > 2
    assert sorted(sizes)[-3] < 110_000  # but for the embedding and the head, larger by themselves
    index = json.loads((tmp_path / "folder" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(p.numel() for p in hf.model.parameters())
    assert_same_weights(sharded, source)
    prompt = prompt_of(9)
    difference = transformers_logits(tmp_path / "folder", prompt) - original_logits(hf, prompt)
    assert np.abs(difference).max() < 2e-5


def test_progress_and_configuration(tmp_path: Path) -> None:
    write_folder(tmp_path / "source", "LlamaForCausalLM")
    (tmp_path / "source" / "generation_config.json").write_text('{"temperature": 0.5}')
    source = resolve_model(str(tmp_path / "source"))
    seen: list[tuple[int, int | None]] = []
    folder = to_hf(source, tmp_path / "folder", progress=lambda *n: seen.append(n))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    files = to_gguf(source, tmp_path / "m.gguf", progress=lambda *n: seen.append(n))
    assert seen[-1][0] == seen[-1][1]
    assert folder.generation_config == {"temperature": 0.5}
    assert folder.raw_config["torch_dtype"] == "float32"
    metadata = files.gguf_metadata
    assert metadata is not None
    assert metadata["general.name"] == "source"
    assert metadata["general.file_type"] == 0


# -------------------------------------------------------------------- what is refused


@pytest.fixture
def llama(tmp_path: Path) -> ModelFiles:
    write_folder(tmp_path / "source", "LlamaForCausalLM")
    return resolve_model(str(tmp_path / "source"))


def test_wrong_types(llama: ModelFiles, tmp_path: Path) -> None:
    for dtype in ("q8_0", "float16", ""):
        with pytest.raises(ConfigError, match="float32 or bfloat16"):
            to_hf(llama, tmp_path / "out", dtype)
    with pytest.raises(ConfigError, match="float32, bfloat16, q8_0"):
        to_gguf(llama, tmp_path / "out", "q4_0")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 8,
                              "max_window_layers": 1}, "windows"),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0,
                                                  "rope_theta": 10000.0}}, "max_position, ropes"),
        ("LlamaForCausalLM", {"hidden_act": "gelu_pytorch_tanh"}, "activation"),
        ("Gemma3ForCausalLM", SHAPE | {"query_pre_attn_scalar": 99}, "attention_scale"),
    ],
)  # fmt: skip
def test_configurations_that_gguf_cannot_hold(
    architecture: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "source", architecture, **options)
    source = resolve_model(str(tmp_path / "source"))
    with pytest.raises(UnsupportedModelError, match=f"does not keep this model's {words}"):
        to_gguf(source, tmp_path / "m.gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]
    assert config_of(to_hf(source, tmp_path / "folder")) == config_of(source)


def test_an_unknown_family(llama: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.models.export_gguf._ARCHITECTURES", {})
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM cannot be written as GGUF"):
        to_gguf(llama, llama.path / "m.gguf")


def test_a_broken_source_leaves_nothing(llama: ModelFiles, tmp_path: Path) -> None:
    config = json.loads((llama.path / "config.json").read_text())
    (llama.path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    source = resolve_model(str(llama.path))
    for write in (to_hf, to_gguf):
        with pytest.raises(WeightsError, match="missing"):
            write(source, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


# -------------------------------------------------------------------- the target


class TestTarget:
    def test_nothing_is_overwritten(self, llama: ModelFiles, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_text("mine")
        (tmp_path / "folder").mkdir()
        with pytest.raises(ConfigError, match=r"m.gguf exists; .*--force"):
            to_gguf(llama, tmp_path / "m.gguf")
        with pytest.raises(ConfigError, match=r"folder exists; .*--force"):
            to_hf(llama, tmp_path / "folder")
        assert (tmp_path / "m.gguf").read_text() == "mine"

    def test_force_replaces_what_an_export_made(self, llama: ModelFiles, tmp_path: Path) -> None:
        (tmp_path / "m.gguf").write_text("mine")
        to_gguf(llama, tmp_path / "m.gguf", force=True)
        to_hf(llama, tmp_path / "folder", "bfloat16", max_shard_bytes=1)
        files = to_hf(llama, tmp_path / "folder", force=True)
        assert files.checkpoint_dtype is DType.F32
        assert len(list((tmp_path / "folder").glob("*.safetensors"))) == 1
        assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "m.gguf", "source"]

    def test_force_does_not_replace_anything_else(self, tmp_path: Path) -> None:
        (tmp_path / "folder" / "thesis").mkdir(parents=True)
        (tmp_path / "file").write_text("x")
        (tmp_path / "link").symlink_to(tmp_path / "file")
        for name, is_folder, words in (
            ("folder", True, "holds thesis"),
            ("folder", False, "is not a file"),
            ("file", True, "is not a folder"),
            ("link", False, "is not a file"),
            ("absent/x", False, "is no folder; make it"),
        ):
            with (
                pytest.raises(ConfigError, match=words),
                staged(tmp_path / name, 1, force=True, is_folder=is_folder),
            ):
                pass
        assert (tmp_path / "file").read_text() == "x"

    def test_no_space(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, 2**30))
        with (
            pytest.raises(ConfigError, match="1024 MiB free, but 2049 MiB are needed"),
            staged(tmp_path / "x", 2**31, is_folder=False),
        ):
            pass

    @pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()])
    @pytest.mark.parametrize("is_folder", [False, True])
    def test_an_end_in_the_middle(
        self, tmp_path: Path, error: BaseException, is_folder: bool
    ) -> None:
        out = tmp_path / "x"
        if is_folder:
            out.mkdir()
            (out / "config.json").write_text("{}")
        else:
            out.write_text("mine")

        def write() -> None:
            with staged(out, 1, force=True, is_folder=is_folder) as path:
                (path / "config.json" if is_folder else path).write_text("half")
                raise error

        with pytest.raises(type(error)):
            write()
        assert [p.name for p in tmp_path.iterdir()] == ["x"]
        assert (out / "config.json" if is_folder else out).read_text() in ("{}", "mine")

    def test_a_rename_that_fails_puts_the_old_one_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "x"
        out.mkdir()
        (out / "config.json").write_text("old")
        rename = export_target.os.rename

        def failing(source: Any, target: Any) -> None:
            if str(source).endswith("new"):
                raise OSError("no")
            rename(source, target)

        monkeypatch.setattr(export_target.os, "rename", failing)
        with pytest.raises(OSError, match="no"), staged(out, 1, force=True, is_folder=True):
            pass
        assert (out / "config.json").read_text() == "old"


# -------------------------------------------------------------------- names and rows


@given(st.integers(1, 8), st.integers(1, 16))
def test_permuting_is_the_inverse_of_unpermuting(heads: int, half: int) -> None:
    data = np.arange(heads * half * 2 * 3, dtype=np.float32).reshape(-1, 3)
    tensor = HostTensor.of(data)
    assert np.array_equal(unpermute_rows(permute_rows(tensor, heads), heads).data, data)
    assert np.array_equal(permute_rows(unpermute_rows(tensor, heads), heads).data, data)


@pytest.mark.parametrize("name", MODELS)
def test_names_are_the_gguf_package_s(name: str, tmp_path: Path) -> None:
    architecture, options = MODELS[name]
    write_folder(tmp_path / "source", architecture, **options)
    file = to_gguf(resolve_model(str(tmp_path / "source")), tmp_path / "m.gguf")
    assert file.gguf_metadata is not None
    kind = file.gguf_metadata["general.architecture"]
    (key,) = [k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == kind]
    known = gguf.get_tensor_name_map(key, 16)
    for tensor in GGUFFile(tmp_path / "m.gguf").tensors:
        stem = tensor.rpartition(".")[0]
        assert stem in {n for _, n in known.mapping.values()}, tensor


def test_unknown_names() -> None:
    assert gguf_name("model.layers.0.self_attn.nope.weight") is None
    assert gguf_name("vision.x.weight") is None
    assert hf_name(gguf_name("model.layers.11.mlp.up_proj.bias") or "") == (
        "model.layers.11.mlp.up_proj.bias"
    )
