"""Quantized weights keep the promise of `test_bitwise`, on every tier of kernels."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from octavo.kernels.cpu import kernel_tiers
from octavo.models.export_gguf import export_gguf
from octavo.models.files import resolve_model
from tests.e2e.lab import TINY_VOCAB, Lab, write_tiny
from tests.e2e.test_bitwise import (
    PLAIN,
    SMALL_OPTIONS,
    TINY_MODELS,
    TINY_OPTIONS,
    Setup,
    check_alone,
    check_batches,
    check_preemptions,
    reference_of,
    tiny_probes,
)

FORMATS: dict[str, dict[str, Any]] = {
    "int8": {"quantization": "int8", "dtype": "bfloat16"},
    "int4": {"quantization": "int4", "dtype": "float32"},
    "q8_0": {"dtype": "auto"},  # a GGUF file, as it is stored
}

_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
GGUF_TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*_BYTES[:-1], _BYTES[0] + _BYTES[1], "<end>"],
    "tokenizer.ggml.token_type": np.array([1] * (TINY_VOCAB - 1) + [3], np.int32),
    "tokenizer.ggml.merges": [f"{_BYTES[0]} {_BYTES[1]}"],
}
"""One merge, because a GGUF file must have some; the prompts are ids."""


@dataclass(frozen=True, kw_only=True)
class QuantizedSetup(Setup):
    """A setup whose engines take the options of a format."""

    format: str

    def open(self, **options: Any) -> Lab:
        return self.lab(**FORMATS[self.format], **options)


CASES = [("int8", tier) for tier in kernel_tiers()] + [("int4", ""), ("q8_0", "")]  # "": the best


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Format → model."""
    folder = tmp_path_factory.mktemp("tiny")
    files = dict.fromkeys(FORMATS, write_tiny(folder, **TINY_MODELS["llama"]))
    files["q8_0"] = folder.with_suffix(".gguf")
    export_gguf(resolve_model(str(folder)), files["q8_0"], dtype="q8_0", tokenizer=GGUF_TOKENIZER)
    return files


def setup_of(format: str, path: Path) -> QuantizedSetup:
    return QuantizedSetup(
        format=format,
        path=path,
        vocab_size=TINY_VOCAB,
        max_model_len=320,
        probes=tiny_probes(),
        lengths=[1, 5, 15, 16, 17, 40, 64, 100],
        max_tokens=10,
        small_pool=25,
        num_steps_to_full=10,
    )


@pytest.mark.parametrize(("format", "tier"), CASES)
def test_answers_do_not_depend_on_scheduling(
    tiny_files: dict[str, Path], format: str, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = setup_of(format, tiny_files[format])
    monkeypatch.setenv("OCTAVO_CPU_ISA", tier)
    with closing(tiny.open(**PLAIN)) as lab:
        reference = reference_of(tiny, lab)
    for name, num_threads in (("budget-97", 1), ("all", 3)):
        with closing(tiny.open(**TINY_OPTIONS[name] | {"num_threads": num_threads})) as lab:
            if num_threads == 1:
                check_alone(tiny, reference, lab)
            check_batches(tiny, reference, lab)
    options = {"num_gpu_blocks_override": tiny.small_pool} | SMALL_OPTIONS["small-pool-all"]
    with closing(tiny.open(**options)) as lab:
        check_preemptions(tiny, reference, lab)
