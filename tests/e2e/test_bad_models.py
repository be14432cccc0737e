"""Engines that cannot be built: wrong options, wrong models, broken files."""

from __future__ import annotations

import json
import math
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.sampling_params import SamplingParams
from octavo.entrypoints.llm import LLM
from octavo.errors import (
    ConfigError,
    DownloadError,
    MemoryPlanError,
    ModelError,
    OctavoError,
    TokenizerError,
    UnsupportedModelError,
    WeightsError,
)
from tests.e2e.lab import TINY_VOCAB, assert_one_clear_line


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dtype": "float16"}, ConfigError),
        ({"dtype": 5}, ConfigError),
        ({"max_model_len": 0}, ConfigError),
        ({"max_model_len": "64"}, ConfigError),
        ({"max_model_len": 513}, ConfigError),
        ({"max_model_len": 10**30}, ConfigError),
        ({"max_num_seqs": 10**9}, ConfigError),
        ({"max_num_batched_tokens": "64"}, ConfigError),
        ({"num_gpu_blocks_override": 10**9}, MemoryPlanError),
        ({"kv_cache_memory_bytes": 1}, MemoryPlanError),
        ({"gpu_memory_utilization": math.nan}, ConfigError),
        ({"gpu_memory_utilization": 1e-12}, MemoryPlanError),
        ({"scheduling_policy": "lifo"}, ConfigError),
        ({"pipeline_depth": 0}, ConfigError),
        ({"num_threads": True}, ConfigError),
        ({"seed": -1}, ConfigError),
        ({"device": "abacus"}, ConfigError),
        ({"load_format": "pt"}, ConfigError),
        ({"chat_template": "/no/such/file"}, ConfigError),
        ({"chat_template": "{% for %}"}, ConfigError),
        ({"tokenizer": "/no/such/folder"}, DownloadError),
        ({"revision": "main"}, ConfigError),
        ({"enable_prefix_caching": "yes"}, ConfigError),
        ({"max_num_seq": 5}, ConfigError),
    ],
    ids=repr,
)
def test_wrong_options(tiny_path: Path, options: dict[str, Any], error: type[OctavoError]) -> None:
    with pytest.raises(error) as caught:
        LLM(str(tiny_path), **{"num_threads": 1} | options)
    assert_one_clear_line(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        *(None, 5, "", "no\0name", "/no/such", "./no.gguf", "a/b/c/d", "x" * 5000, "\ud800"),
        *("pypi:x", "pypi:x==1/../../y", "/dev/zero", "/dev/null", "/etc/hostname"),
    ],
    ids=repr,
)
def test_wrong_models(model: Any) -> None:
    with pytest.raises(OctavoError) as caught:
        LLM(model)
    assert_one_clear_line(caught.value)


def test_an_unknown_alias_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="smollm2-135m"):
        LLM("smollm3")


Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A change to the header of model.safetensors."""

    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        names = json.loads(raw[8 : 8 + size])
        change(names)
        text = json.dumps(names).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])

    return apply


def content(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return apply


def config(**changes: Any) -> Callable[[Path], None]:
    return content("config.json", lambda raw: json.dumps(json.loads(raw) | changes).encode())


def renamed(names: dict[str, Any]) -> None:
    names["model.layers.0.self_attn.foo.weight"] = names.pop(Q_PROJ)


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (header(renamed), WeightsError, "foo.weight"),
        (header(lambda n: n[Q_PROJ].update(shape=[16, 64])), WeightsError, Q_PROJ),
        (header(lambda n: n[Q_PROJ].update(dtype="I32")), WeightsError, Q_PROJ),
        (header(lambda n: n[Q_PROJ].update(dtype="F8")), UnsupportedModelError, "F8"),
        (header(lambda n: n[Q_PROJ].update(shape=[2**40] * 2)), WeightsError, Q_PROJ),
        (header(lambda n: n[Q_PROJ].update(data_offsets=[9, 1])), WeightsError, Q_PROJ),
        (content("model.safetensors", lambda raw: raw[:-1]), WeightsError, "truncated"),
        (content("model.safetensors", lambda raw: b""), WeightsError, "empty"),
        (content("model.safetensors", lambda raw: b"\xff" * 99), WeightsError, "header"),
        (
            content("model.safetensors", lambda raw: raw[:3000] + b"\xff" * (len(raw) - 3000)),
            ModelError,
            "not finite",
        ),
        (lambda f: (f / "model.safetensors").unlink(), WeightsError, "safetensors"),
        (config(architectures=["LlamaFor9"]), UnsupportedModelError, "LlamaForCausalLM"),
        (config(hidden_act="relu9"), UnsupportedModelError, "silu"),
        (config(rope_scaling={"rope_type": "warp"}), UnsupportedModelError, "yarn"),
        (config(hidden_size=2**31 - 2, head_dim=8), WeightsError, "misshapen"),
        (config(vocab_size=TINY_VOCAB - 1), WeightsError, "embed_tokens"),
        (config(num_hidden_layers=3), WeightsError, "model.layers.2"),
        (config(eos_token_id="x"), ModelError, "eos_token_id"),
        (content("config.json", lambda raw: raw[:-5]), ModelError, "JSON"),
        (content("config.json", lambda raw: b"[" * 100_000), ModelError, "JSON"),
        (content("tokenizer.json", lambda raw: raw[:-5]), TokenizerError, "tokenizer.json"),
        (lambda f: (f / "tokenizer.json").unlink(), TokenizerError, "tokenizer.json"),
        (content("tokenizer_config.json", lambda raw: b"7"), ModelError, "tokenizer_config"),
    ],
)
def test_broken_folders(
    tiny_path: Path,
    tmp_path: Path,
    change: Callable[[Path], None],
    error: type[ModelError],
    named: str,
) -> None:
    folder = shutil.copytree(tiny_path, tmp_path / "model")
    change(folder)
    with pytest.raises((error, MemoryPlanError)) as caught:
        LLM(str(folder), num_threads=1)
    assert_one_clear_line(caught.value)
    assert named in str(caught.value) or isinstance(caught.value, MemoryPlanError)


def test_weights_that_cannot_fit(tiny_path: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_path, tmp_path / "model")
    config(hidden_size=2**24, num_attention_heads=2**10)(folder)
    with pytest.raises(MemoryPlanError, match="weights"):
        LLM(str(folder), num_threads=1, load_format="dummy")


@settings(max_examples=80)
@given(
    name=st.sampled_from(
        ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
    ),
    place=st.floats(0, 1),
    removed=st.integers(0, 8),
    added=st.binary(max_size=8) | st.sampled_from([b"null", b"-1", b"99999999999", b"1e999", b"{"]),
)
def test_damaged_files(
    tiny_path: Path, name: str, place: float, removed: int, added: bytes
) -> None:
    """A few bytes of one file are others: it is refused, or runs. Most go into a header."""
    with tempfile.TemporaryDirectory() as parent:
        folder = shutil.copytree(tiny_path, Path(parent) / "model")
        raw = (folder / name).read_bytes()
        at = int(place * min(len(raw), 3000))
        (folder / name).write_bytes(raw[:at] + added + raw[at + removed :])
        try:
            with LLM(str(folder), num_threads=1, max_num_seqs=4) as llm:
                llm.generate("x", SamplingParams(max_tokens=2), use_tqdm=False)
        except OctavoError as error:
            assert_one_clear_line(error)
