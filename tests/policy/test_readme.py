"""What the README shows, runs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.models.registry import supported_architectures
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


def test_refused_sampling_parameters_are_not_claimed() -> None:
    """The table's "today" names only parameters that work."""
    (row,) = re.findall(r"^\| Sampling \| ([^|]*) \|", README, re.MULTILINE)
    for name in ("temperature", "top-p", "top-k", "min-p", "seed", "min_tokens", "logprobs"):
        assert name in row
        assert name.replace("-", "_") in SamplingParams.__struct_fields__


def test_every_family_is_named() -> None:
    (row,) = re.findall(r"^\| Model families \| ([^|]*) \|", README, re.MULTILINE)
    families = {re.findall(r"[A-Z][a-z]+|$", name)[0] for name in supported_architectures()}
    assert families
    assert not {family for family in families if family not in row}
