"""`octavo export`: from the command line to a model that others load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.tensor import DType
from octavo.entrypoints.llm import LLM
from octavo.models.files import resolve_model
from tests.engine.tokenizer_lab import CHATML, byte_level, save_folder
from tests.entrypoints.cli.command import Command
from tests.models.hf import HFModel

PROMPTS = ["The quick brown fox", "def encode(", "1, 2, 3"]
GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that transformers has written."""
    folder = tmp_path_factory.mktemp("tiny")
    vocab_size = byte_level().get_vocab_size()
    HFModel("LlamaForCausalLM", vocab_size=vocab_size).model.save_pretrained(folder)
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return save_folder(folder, byte_level(), chat_template=CHATML, **tokens)


def answers(model: Path, dtype: str) -> list[object]:
    """Ids, text and log probabilities, to the bit."""
    with LLM(str(model), dtype=dtype, max_model_len=256) as llm:
        return [
            (c.token_ids, c.text, c.logprobs)
            for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            for c in output.outputs
        ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_formats_answer_the_same_to_the_bit(
    cli: Command, model: Path, tmp_path: Path, dtype: str
) -> None:
    folder, file, again = (tmp_path / name for name in ("folder", "m.gguf", "again"))
    assert cli("export", str(model), str(folder), "--dtype", dtype) == (0, f"{folder}\n", "")
    status, out, _ = cli("export", str(model), str(file), "--dtype", dtype, "--format", "gguf")
    assert (status, out) == (0, f"{file}\n")
    assert cli("export", str(file), str(again), "--dtype", dtype)[0] == 0
    expected = answers(folder, dtype)
    assert answers(file, dtype) == expected
    assert answers(again, dtype) == expected
    if dtype == "float32":
        assert answers(model, dtype) == expected


def test_auto_follows_the_source(cli: Command, model: Path, tmp_path: Path) -> None:
    cli("export", str(model), str(tmp_path / "a"))
    cli("export", str(model), str(tmp_path / "b"), "--dtype", "bfloat16")
    cli("export", str(tmp_path / "b"), str(tmp_path / "c.gguf"), "--format", "gguf")
    cli("export", str(model), str(tmp_path / "q.gguf"), "--format", "gguf", "--dtype", "q8_0")
    cli("export", str(tmp_path / "q.gguf"), str(tmp_path / "d"))
    for name, dtype in (("a", "F32"), ("b", "BF16"), ("c.gguf", "BF16"), ("d", "F32")):
        assert resolve_model(str(tmp_path / name)).checkpoint_dtype is DType[dtype], name


def test_progress_on_a_terminal(
    cli: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    status, out, err = cli("export", str(model), str(tmp_path / "out"))
    assert (status, out) == (0, f"{tmp_path / 'out'}\n")
    assert "writing out" in err


def test_wrong_command_lines(cli: Command, model: Path, tmp_path: Path) -> None:
    out, source = str(tmp_path / "out"), str(model)
    cli.fails("export", source, words="OUT", status=2)
    cli.fails("export", source, out, "--format", "pt", words="format='pt' must be one of hf, gguf")
    cli.fails("export", source, out, "--dtype", "q8_0", words="float32 or bfloat16")
    cli.fails("export", "/no/model", out, words="does not exist")
    cli.fails("export", source, str(tmp_path / "no" / "out"), words="make it first")
    cli.fails("export", source, source, words="--force")
    cli.fails("export", source, source, "--force", words="is the model itself")
    cli.fails("export", "/no/model", source, words="exists")  # told before anything is fetched
    assert list(tmp_path.iterdir()) == []
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"architectures": ["Nope"]}))
    cli.fails("export", str(broken), out, words="safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["broken"]


@pytest.mark.model
def test_the_default_model_in_transformers(
    cli: Command, smollm2_path: Path, tmp_path: Path
) -> None:
    """Peers and oracles run the very same weights, on the same ids."""
    torch.set_num_threads(1)
    assert cli("export", str(smollm2_path), str(tmp_path / "hf"), "--dtype", "float32")[0] == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.dtype is torch.float32
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=0, ignore_eos=True)
    with LLM(str(tmp_path / "hf"), dtype="float32", max_model_len=256) as llm:
        for output in llm.generate(PROMPTS, params, use_tqdm=False):
            prompt = tokenizer(output.prompt).input_ids
            assert prompt == output.prompt_token_ids
            (completion,) = output.outputs
            with torch.no_grad():
                ids = torch.tensor([prompt + completion.token_ids])
                logprobs = torch.log_softmax(theirs(ids).logits[0, len(prompt) - 1 : -1], -1)
            assert logprobs.argmax(-1).tolist() == completion.token_ids
            assert completion.logprobs is not None
            ours = [entry[i].logprob for entry, i in zip(completion.logprobs, completion.token_ids)]
            assert np.abs(logprobs.max(-1).values.numpy() - ours).max() < 1e-3
