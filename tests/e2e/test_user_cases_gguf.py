"""User case 35: malformed copies of the default model's GGUF file, through `LLM`."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.entrypoints.llm import LLM
from octavo.errors import ModelError, UnsupportedModelError, WeightsError
from octavo.models.gguf import GGUFFile, _Reader

pytestmark = pytest.mark.model


@dataclass(frozen=True)
class Entry:
    """A tensor of a GGUF file.

    Attributes:
        shape: outermost first.
        kind: ggml's number of its type.
        data: its bytes.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes


Entries = list[Entry]


def copy_with(
    source: Path,
    target: Path,
    *,
    header: Callable[[bytes], bytes] = lambda keys: keys,
    tensors: Callable[[Entries], Entries] = lambda entries: entries,
) -> Path:
    """Copy a GGUF file and change the bytes of its keys, or its tensors."""
    with source.open("rb") as file:
        raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _Reader(raw)
    _, num_keys = reader.preamble()
    start = reader.pos
    reader.metadata(num_keys)
    keys = header(raw[start : reader.pos])
    entries = tensors(
        [
            Entry(
                t.name,
                t.shape,
                gguf.GGMLQuantizationType[t.type_name].value,
                raw[t.offset : t.offset + t.nbytes],
            )
            for t in GGUFFile(source).tensors.values()
        ]
    )
    infos, offset = b"", 0
    for e in entries:
        dims = e.shape[::-1]
        infos += struct.pack("<Q", len(e.name)) + e.name.encode()
        infos += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, e.kind, offset)
        offset += -(-len(e.data) // 32) * 32
    front = struct.pack("<4sIQQ", b"GGUF", 3, len(entries), num_keys) + keys + infos
    with target.open("wb") as file:
        file.write(front + bytes(-len(front) % 32))
        for e in entries:
            file.write(e.data + bytes(-len(e.data) % 32))
    return target


def extra(name: str, values: np.ndarray) -> Callable[[Entries], Entries]:
    entry = Entry(name, values.shape, gguf.GGMLQuantizationType.F32.value, values.tobytes())
    return lambda entries: [*entries, entry]


def other_shape(entries: Entries) -> Entries:
    return [
        replace(e, shape=(e.shape[0] // 2, *e.shape[1:])) if e.name == "blk.3.attn_q.weight" else e
        for e in entries
    ]


def test_case_35_known_extra_tensor(smollm2: LLM, smollm2_path: Path, tmp_path: Path) -> None:
    """Frequencies of ones change nothing."""
    ones = extra("rope_freqs.weight", np.ones(32, np.float32))
    path = copy_with(smollm2_path, tmp_path / "m.gguf", tensors=ones)
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3)
    prompt = "The capital of France is"
    (expected,) = smollm2.generate(prompt, params, use_tqdm=False)
    with LLM(str(path), dtype="float32", max_model_len=512, num_threads=1) as llm:
        (found,) = llm.generate(prompt, params, use_tqdm=False)
    path.unlink()
    assert found.outputs == expected.outputs
    (row, *_) = found.outputs[0].logprobs or []
    values = [entry.logprob for entry in row.values()]
    assert values == pytest.approx([-0.258, -2.741, -4.384], abs=0.02)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1_000_000)


def wrong_magic(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"GGML")


def llama9(keys: bytes) -> bytes:
    name = b"general.architecture" + struct.pack("<I", 8)
    old = name + struct.pack("<Q", 5) + b"llama"
    assert old in keys
    return keys.replace(old, name + struct.pack("<Q", 6) + b"llama9")


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (
            {"tensors": lambda es: [e for e in es if e.name != "blk.3.attn_q.weight"]},
            WeightsError,
            "model.layers.3.self_attn.q_proj.weight",
        ),
        (
            {"tensors": extra("blk.0.foo.weight", np.ones(8, np.float32))},
            WeightsError,
            "blk.0.foo.weight",
        ),
        ({"tensors": other_shape}, WeightsError, "model.layers.3.self_attn.q_proj.weight"),
        ({"header": llama9}, UnsupportedModelError, "llama9"),
        (cut, WeightsError, "truncated"),
        (wrong_magic, ModelError, "GGUF"),
    ],
    ids=["missing", "unknown", "misshapen", "architecture", "cut", "magic"],
)
def test_case_35_broken_copies(
    smollm2_path: Path,
    tmp_path: Path,
    change: dict[str, Callable[..., object]] | Callable[[Path], None],
    error: type[ModelError],
    named: str,
) -> None:
    path = tmp_path / "m.gguf"
    copy_with(smollm2_path, path, **({} if callable(change) else change))  # type: ignore[arg-type]
    if callable(change):
        change(path)
    with pytest.raises(error) as caught:
        LLM(str(path), dtype="float32", num_threads=1)
    path.unlink()
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
