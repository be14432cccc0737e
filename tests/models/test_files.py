from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from octavo.contracts.tensor import DType
from octavo.errors import ConfigError, DownloadError, ModelError, WeightsError
from octavo.kernels.torch_reference import TorchReferenceBackend
from octavo.models.files import ModelFiles, resolve_model, resolve_tokenizer
from octavo.models.loader import load_weights
from octavo.models.registry import build_model
from tests.models.gguf_lab import Tensors, llama_tensors, write_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    save_file({"w": torch.ones(4, 4, dtype=torch.bfloat16)}, folder / "model.safetensors")
    return folder


def test_without_a_generation_config_the_ends_are_the_configurations(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert resolve_model(str(folder)).generation_config == {}
    config = json.loads((folder / "config.json").read_text())
    for end in (7, [7, 8]):
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": end}))
        assert resolve_model(str(folder)).generation_config == {"eos_token_id": end}


def test_a_folder(folder: Path) -> None:
    files = resolve_model(str(folder))
    assert files.name == str(folder)
    assert files.path == folder
    assert files.config.int("hidden_size") == 4
    assert files.raw_config["architectures"] == ["LlamaForCausalLM"]
    assert files.generation_config == {"eos_token_id": [1, 2]}
    assert files.checkpoint_dtype is DType.BF16
    assert files.gguf_metadata is None
    assert [name for name, _ in files.weights()] == ["w"]


def test_a_gguf_file_and_a_folder_that_holds_just_one(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    for files in (resolve_model(str(path)), resolve_model(str(tmp_path), load_format="gguf")):
        assert files.path == path
        assert files.checkpoint_dtype is DType.Q4_1
        assert files.gguf_metadata is not None
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match=r"several GGUF files \(m\.gguf, other\.gguf\)"):
        resolve_model(str(tmp_path))


def test_safetensors_come_before_a_gguf_in_the_same_folder(folder: Path) -> None:
    write_gguf(folder / "m.gguf")
    assert resolve_model(str(folder)).path == folder
    assert resolve_model(str(folder), load_format="gguf").path == folder / "m.gguf"


def test_dummy_needs_no_weights(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    files = resolve_model(str(folder), load_format="dummy")
    assert files.checkpoint_dtype is DType.F16
    with pytest.raises(WeightsError, match="without its weights"):
        files.weights()
    with pytest.raises(WeightsError, match=r"no \*\.safetensors"):
        resolve_model(str(folder))


def test_closed_files_have_no_weights(folder: Path) -> None:
    files = resolve_model(str(folder))
    ((_, tensor),) = files.weights()
    files.close()
    files.close()
    with pytest.raises(WeightsError, match="closed"):
        files.weights()
    assert tensor.to_float32().sum() == 16, "tensors outlive it"


def _remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (_remove("config.json"), {}, ModelError, "neither config.json nor one GGUF file"),
        (_write("config.json", "{"), {}, ModelError, "not valid JSON"),
        (_write("config.json", "[]"), {}, ModelError, "must hold a JSON object"),
        (_write("generation_config.json", "5"), {}, ModelError, "must hold a JSON object"),
        (lambda folder: None, {"load_format": "gguf"}, ConfigError, "has no .*gguf file"),
        (lambda folder: None, {"load_format": "pickle"}, ConfigError, "must be one of"),
        (lambda folder: None, {"revision": "main"}, ConfigError, "revision='main' is for"),
    ],
)
def test_folders_that_do_not_fit(
    change: Callable[[Path], object],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    folder: Path,
) -> None:
    change(folder)
    with pytest.raises(error, match=message):
        resolve_model(str(folder), **options)


def test_a_file_is_not_safetensors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="GGUF is the only kind"):
        resolve_model(str(path), load_format="safetensors")


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="does not exist"):
        resolve_model(str(tmp_path / "nothing"))


def test_a_tokenizer_may_come_without_a_model(folder: Path) -> None:
    assert resolve_tokenizer(str(folder)).raw_config["hidden_size"] == 4
    (folder / "config.json").unlink()
    files = resolve_tokenizer(str(folder))
    assert files.path == folder
    assert files.raw_config == {}


# ---------------------------------------------------------------- user case 35, on a tiny model


def load(files: ModelFiles) -> int:
    return load_weights(
        build_model(files.config), files.weights(), TorchReferenceBackend(DType.F32, 1)
    )


def _without(tensors: Tensors, name: str) -> Tensors:
    return {key: value for key, value in tensors.items() if key != name}


def test_known_extras_change_nothing(tmp_path: Path) -> None:
    plain = resolve_model(str(write_gguf(tmp_path / "plain.gguf")))
    tensors = llama_tensors() | {"rope_freqs.weight": (np.ones(8, np.float32), "F32")}
    extra = resolve_model(str(write_gguf(tmp_path / "extra.gguf", tensors)))
    assert extra.raw_config == plain.raw_config
    assert load(extra) == load(plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: _without(t, "blk.3.attn_q.weight"),
            r"1 missing: model\.layers\.3\.self_attn\.q_proj\.weight",
        ),
        (
            lambda t: t | {"blk.0.foo.weight": (np.ones(8, np.float32), "F32")},
            r"1 unknown: blk\.0\.foo\.weight",
        ),
        (
            lambda t: t | {"blk.2.ffn_up.weight": (np.ones((80, 64), np.float32), "Q4_1")},
            r"1 misshapen: model\.layers\.2\.mlp\.up_proj\.weight \[80, 64\]",
        ),
        (
            lambda t: t | {"blk.2.attn_q.weight": (np.ones((36, 64), np.float32), "Q4_1")},
            r"1 misshapen: model\.layers\.2\.self_attn\.q_proj\.weight \[36, 64\]",
        ),
    ],
)
def test_wrong_tensors_are_named(
    change: Callable[[Tensors], Tensors], message: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", change(llama_tensors()))
    with pytest.raises(WeightsError, match=message):
        load(resolve_model(str(path)))


# ---------------------------------------------------------------- and on the default model


@pytest.mark.model
def test_default_model(smollm2_path: Path) -> None:
    files = resolve_model("smollm2-135m")
    assert files.path == smollm2_path
    assert files.raw_config["vocab_size"] == 49152
    assert files.raw_config["tie_word_embeddings"]
    assert files.generation_config == {"bos_token_id": 1, "eos_token_id": [2]}
    kinds = {name: tensor.dtype for name, tensor in files.weights()}
    assert len(kinds) == 272
    assert kinds["model.embed_tokens.weight"] is DType.Q8_0


@pytest.mark.model
def test_default_model_cut_by_a_megabyte(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    shutil.copyfile(smollm2_path, path)
    with path.open("r+b") as file:
        file.truncate(smollm2_path.stat().st_size - (1 << 20))
    with pytest.raises(WeightsError, match=r"truncated: tensor '\S+' ends at byte"):
        resolve_model(str(path))
