"""What the README shows, runs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.models.registry import supported_architectures
from tests.engine.fakes import fake_engine
from tests.policy.tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.model
def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert code.count("\n") <= 12
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)
    assert shown
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in shown)


SAMPLING = {
    "temperature": {"temperature": 0.5},
    "top-p": {"top_p": 0.5},
    "top-k": {"top_k": 5},
    "min-p": {"min_p": 0.1},
    "seed": {"seed": 1},
    "stop strings and ids": {"stop": ["x"], "stop_token_ids": [1]},
    "min_tokens": {"min_tokens": 1},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 1.0, "frequency_penalty": 1.0},
    "logit bias": {"logit_bias": {1: 1.0}},
    "allowed ids": {"allowed_token_ids": [1, 2]},
    "bad words": {"bad_words": ["x"]},
    "logprobs of output and prompt": {"logprobs": 1, "prompt_logprobs": 1},
    "best_of": {"best_of": 3},
    "stop regexes": {"stop_regex": "a+b"},
    "repetition detection": {
        "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
    },
    "thinking budgets": {"thinking_token_budget": 5},
    "deadlines": {"max_time_ms": 1000, "ttft_deadline_ms": 500},
    "logits processors": {"logits_processors": [lambda output_ids, logits: None]},
}
"""What the README calls it → what one asks for."""


def test_sampling_parameters_that_are_claimed_are_accepted() -> None:
    """By the same way as a user's request goes: validation, input processor, core."""
    (row,) = re.findall(r"^\| Sampling \| ([^|]*) \|", README, re.MULTILINE)
    claimed = [name for name in row.split(", ") if name != "beam search"]  # not a parameter
    assert not [name for name in SAMPLING if name not in claimed]
    for name in claimed:
        assert name in SAMPLING, f"add {name!r} to SAMPLING above, or do not claim it"
        engine = fake_engine()
        engine.add_request("r", "text", SamplingParams(max_tokens=2, **SAMPLING[name]))
        assert engine.has_unfinished_requests()


def test_every_family_is_named() -> None:
    (row,) = re.findall(r"^\| Model families \| ([^|]*) \|", README, re.MULTILINE)
    families = {re.findall(r"[A-Z][a-z]+|$", name)[0] for name in supported_architectures()}
    assert families
    assert not {family for family in families if family not in row}
