"""Every format of weights, on every tier of kernels, keeps the promise of `test_bitwise`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.tensor import DType
from octavo.contracts.weight_format import WeightFormat
from octavo.kernels.cpu import kernel_tiers
from octavo.quant.gguf import smallest_format
from tests.e2e.lab import TINY_VOCAB, Ask, Lab, write_tiny
from tests.e2e.test_bitwise import (
    PLAIN,
    SMALL_OPTIONS,
    TINY_OPTIONS,
    Setup,
    arriving,
    check,
    check_alone,
    check_batches,
    check_preemptions,
    reference_of,
    tiny_run,
)
from tests.kernels.blocks import random_blocks
from tests.models.gguf_lab import Tensors, llama_metadata, write_gguf

HIDDEN = 256
"""Values of a K-quant's block: the width of all of a file's rows."""
OPTIONS: dict[WeightFormat, dict[str, Any]] = {
    WeightFormat.F32: {"dtype": "float32"},
    WeightFormat.BF16: {"dtype": "bfloat16"},
    WeightFormat.INT8: {"dtype": "bfloat16", "quantization": "int8"},
    WeightFormat.INT4_G32_MIN: {"dtype": "float32", "quantization": "int4"},
}
"""Formats that the engine makes of float weights."""
STORED: dict[WeightFormat, tuple[DType, DType]] = {
    WeightFormat.INT8_G32: (DType.Q8_0, DType.Q5_0),
    WeightFormat.INT8_G32_MIN: (DType.Q5_K, DType.Q5_1),
    WeightFormat.INT8_G16: (DType.Q6_K, DType.Q6_K),
    WeightFormat.INT8_G16_MIN: (DType.Q6_K, DType.Q4_K),
    WeightFormat.INT4_G32: (DType.Q4_0, DType.Q4_0),
    WeightFormat.INT4_G32_MIN_F32: (DType.Q4_K, DType.Q4_1),
}
"""Formats of a GGUF file as it is stored → the blocks of q and k, and those of v, which meet in one
weight. All others are as those of q."""

_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
GGUF_TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*_BYTES[:-1], _BYTES[0] + _BYTES[1], "<end>"],
    "tokenizer.ggml.token_type": [1] * (TINY_VOCAB - 1) + [3],
    "tokenizer.ggml.merges": [f"{_BYTES[0]} {_BYTES[1]}"],
    "tokenizer.ggml.eos_token_id": TINY_VOCAB - 1,
}
"""One merge, because a GGUF file must have some; the prompts are ids."""


@dataclass(frozen=True, kw_only=True)
class FormatSetup(Setup):
    """A setup whose engines keep weights in a format."""

    format: WeightFormat

    def open(self, **options: Any) -> Lab:
        return self.lab(**{"dtype": "auto"} | OPTIONS.get(self.format, {}) | options)


def write_blocks(path: Path, of_q: DType, of_v: DType) -> Path:
    """A Llama of random blocks."""
    rng = np.random.default_rng(0)
    tensors: Tensors = {}

    def add(name: str, rows: int, dtype: DType) -> None:
        tensors[f"{name}.weight"] = (random_blocks(rng, dtype, rows, HIDDEN).data, dtype.name)

    add("token_embd", TINY_VOCAB, of_q)
    add("output", TINY_VOCAB, of_q)
    for i in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{i}.{norm}.weight"] = (np.ones(HIDDEN, np.float32), "F32")
        for name in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            add(f"blk.{i}.{name}", HIDDEN, of_q)
        add(f"blk.{i}.attn_v", HIDDEN, of_v)
    tensors["output_norm.weight"] = (np.ones(HIDDEN, np.float32), "F32")
    sizes = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": HIDDEN,
        "rope.dimension_count": HIDDEN // 4,
        "attention.head_count_kv": 4,
    }
    metadata = llama_metadata(**{f"llama.{key}": value for key, value in sizes.items()})
    return write_gguf(path, tensors, metadata | GGUF_TOKENIZER)


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[WeightFormat], Path]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "float").mkdir()
    floats = write_tiny(folder / "float", hidden_size=96, num_attention_heads=6)

    def path(format: WeightFormat) -> Path:
        if format not in STORED:
            return floats
        file = folder / f"{format.value}.gguf"
        return file if file.exists() else write_blocks(file, *STORED[format])

    return path


def test_every_format_is_there() -> None:
    assert {*OPTIONS, *STORED} == set(WeightFormat)
    for format, dtypes in STORED.items():
        assert smallest_format(set(dtypes)) is format


def probes() -> list[Ask]:
    rng = np.random.default_rng(1)

    def probe(name: str, length: int, **values: Any) -> Ask:
        prompt = rng.integers(10, TINY_VOCAB - 1, length).tolist()
        return Ask(name=name, prompt=prompt, params=SamplingParams(ignore_eos=True, **values))

    return [
        probe("greedy", 35, max_tokens=5, temperature=0.0, logprobs=-1),
        probe("two", 17, max_tokens=4, temperature=0.9, seed=5, top_p=0.9, n=2, logprobs=3),
        probe("one-token", 1, max_tokens=6, temperature=0.0, logprobs=3),
    ]


@pytest.mark.parametrize("tier", kernel_tiers())
@pytest.mark.parametrize("format", WeightFormat, ids=lambda f: f.value)
def test_threads_chunks_and_company(
    path_of: Callable[[WeightFormat], Path],
    format: WeightFormat,
    tier: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On 1, 2 and 3 threads, each with chunks and company of its own."""
    monkeypatch.setenv("OCTAVO_CPU_ISA", tier)
    tiny = FormatSetup(
        format=format,
        path=path_of(format),
        vocab_size=TINY_VOCAB,
        max_model_len=64,
        probes=probes(),
        lengths=[1, 5, 15, 16, 17, 40],
        max_tokens=5,
        small_pool=12,
        num_steps_to_full=4,
    )
    with closing(tiny.open(**PLAIN)) as lab:
        reference = reference_of(tiny, lab)
    with closing(tiny.open(num_threads=1, max_num_batched_tokens=19)) as lab:
        check_alone(tiny, reference, lab)
    for num_threads, budget, size in ((1, 64, 17), (2, 97, 7), (3, 41, 9)):
        options = {"num_threads": num_threads, "max_num_batched_tokens": budget}
        with closing(tiny.open(**options)) as lab:
            for heat in ("cold", "hot"):
                condition = f"{num_threads} threads, among {size}, {heat}"
                check(lab.run(arriving(tiny, size)), reference, condition)


@pytest.mark.slow
@pytest.mark.parametrize("tier", kernel_tiers())
@pytest.mark.parametrize("format", WeightFormat, ids=lambda f: f.value)
def test_every_option(
    path_of: Callable[[WeightFormat], Path],
    format: WeightFormat,
    tier: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that `test_bitwise` asks of float weights."""
    monkeypatch.setenv("OCTAVO_CPU_ISA", tier)
    tiny = FormatSetup(
        format=format,
        path=path_of(format),
        **tiny_run(),
    )
    with closing(tiny.open(**PLAIN)) as lab:
        reference = reference_of(tiny, lab)
    for options in TINY_OPTIONS.values():
        with closing(tiny.open(**{"num_threads": 1} | options)) as lab:
            check_alone(tiny, reference, lab)
            check_batches(tiny, reference, lab)
    for options in SMALL_OPTIONS.values():
        small = {"num_threads": 1, "num_gpu_blocks_override": tiny.small_pool}
        with closing(tiny.open(**small | options)) as lab:
            check_preemptions(tiny, reference, lab)
