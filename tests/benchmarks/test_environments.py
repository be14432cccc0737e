"""Environments are made once; what cannot be had says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.side_by_side import environments
from benchmarks.side_by_side.environments import Environment, InstallError, install

TOOL = Environment(name="tool", requirements=("tool==1",), unwanted=("ballast",))


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run, in place of running it: a venv is made as a folder, pip knows "tool" only."""
    seen: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        fails = "install" in command and "tool==1" not in command
        return subprocess.CompletedProcess(command, int(fails), "", "a\nb\nno such package\n")

    monkeypatch.setattr(environments.subprocess, "run", run)
    return seen


def test_made_once(tmp_path: Path, commands: list[list[str]]) -> None:
    python = install(TOOL, tmp_path)
    assert python == tmp_path / "venvs" / "tool" / "bin" / "python"
    assert [c[2:4] for c in commands] == [
        ["venv", "--clear"],
        ["pip", "install"],
        ["pip", "uninstall"],
    ]
    assert install(TOOL, tmp_path) == python
    assert len(commands) == 3


def test_made_anew_when_the_requirements_change(tmp_path: Path, commands: list[list[str]]) -> None:
    install(TOOL, tmp_path)
    install(Environment(name="tool", requirements=("tool==1", "more")), tmp_path)
    assert len(commands) == 5


def test_a_failure_says_what_pip_said(tmp_path: Path, commands: list[list[str]]) -> None:
    other = Environment(name="other", requirements=("other",))
    with pytest.raises(InstallError, match=r"^python -m pip install …: a / b / no such package"):
        install(other, tmp_path)
    with pytest.raises(InstallError):
        install(other, tmp_path)  # nothing is taken for made


def test_preloads_are_those_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_tcmalloc", lambda cache: None)
    python = tmp_path / "bin" / "python"
    assert environments.preloads(python, tmp_path) == []
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert environments.preloads(python, tmp_path) == [tmp_path / "lib" / "libiomp5.so"]
