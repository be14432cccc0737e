"""Octavo is light: what an import loads, how fast the command starts, and life without torch."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama

HEAVY = {
    *("torch", "triton", "transformers", "numpy", "tokenizers", "safetensors", "gguf", "jinja2"),
    *("huggingface_hub", "fastapi", "uvicorn", "uvloop", "zmq", "rich", "openai"),
}
TORCHLESS = "import sys; sys.modules.update(dict.fromkeys(['torch', 'triton', 'transformers'])); "


def python(code: str, *, cwd: Path | None = None) -> str:
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import octavo; dir(octavo)",
        "import octavo; octavo.SamplingParams(temperature=0)",
        "import octavo.entrypoints.cli.main",
        "import sys; sys.argv = ['octavo', '--help']\n"
        "import octavo.entrypoints.cli.main as m\n"
        "try: m.run()\n"
        "except SystemExit: pass\n",
    ],
    ids=["import", "params", "command", "help"],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    printed = python(f"{code}\nimport sys; print(*(n for n in sys.modules if '.' not in n))")
    loaded = set(printed.splitlines()[-1].split())
    assert "octavo" in loaded
    assert not loaded & HEAVY


def test_the_command_starts_fast() -> None:
    """`octavo --help` within 20 times a bare interpreter; measured in turn, medians compared."""

    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    pairs = [(seconds("-c", "pass"), seconds("-m", "octavo", "--help")) for _ in range(9)]
    bare, help_ = (statistics.median(times) for times in zip(*pairs, strict=True))
    assert help_ < 20 * bare, f"{help_ * 1e3:.0f} ms against {bare * 1e3:.0f} ms"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


def test_generating_without_torch(tiny_model: Path) -> None:
    """`LLM` and `octavo generate` give the same text, with torch unimportable."""
    code = f"""{TORCHLESS}
import json, octavo
with octavo.LLM({str(tiny_model)!r}, num_threads=1, max_model_len=64) as llm:
    params = octavo.SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    outputs = llm.generate(["one", "two words"], params, use_tqdm=False)
assert sys.modules["torch"] is None
print(json.dumps([[len(o.outputs[0].token_ids), o.outputs[0].text] for o in outputs]))
"""
    (num_tokens, text), (other_num_tokens, other_text) = json.loads(python(code))
    assert num_tokens == other_num_tokens == 8
    assert text != other_text

    command = ["octavo", "generate", "one", "--no-chat", "--json", "--model", str(tiny_model)]
    command += ["--max-tokens", "8", "--temperature", "0", "--ignore-eos", "--max-model-len", "64"]
    code = f"{TORCHLESS}sys.argv = {command!r}; import octavo.entrypoints.cli.main as m; m.run()"
    (answer,) = json.loads(python(code))
    assert answer["outputs"][0]["text"] == text
