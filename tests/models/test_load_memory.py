"""The memory that loading takes, in a process of its own, on a checkpoint of some hundred MB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.config.model import ConfigReader
from octavo.models.registry import build_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}

LOAD = """
import resource, sys
from pathlib import Path
from octavo.contracts.tensor import DType
from octavo.kernels.cpu import CpuBackend
from octavo.models.files import resolve_model
from octavo.models.loader import load_weights
from octavo.models.registry import build_model

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

files = resolve_model(sys.argv[1])
model, backend = build_model(files.config), CpuBackend(DType.BF16, 1)
before = peak()
with backend.loading():
    packed = load_weights(model, files.weights(), backend)
print(packed, peak() - before)
"""


def write_checkpoint(folder: Path) -> int:
    """Random bfloat16 weights of CONFIG's shapes. Returns their bytes."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes: dict[str, tuple[int, ...]] = {}
    for slot in build_model(ConfigReader(CONFIG, "config.json")).slots():
        shapes.update(slot.expected())
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        offsets = [end, end + size]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": offsets}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = np.full(1 << 22, 0x3C00, dtype=np.uint16).tobytes()  # 2^-7
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, len(block)):
            file.write(block[: end - start])
    return end


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_the_peak_is_little_more_than_the_packed_weights(tmp_path: Path) -> None:
    pytest.importorskip("octavo._cpu")
    assert write_checkpoint(tmp_path) > 250 << 20
    result = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    packed, peak = map(int, result.stdout.split())
    assert packed > 250 << 20
    assert peak <= 1.3 * packed, f"{peak} bytes for {packed}"
