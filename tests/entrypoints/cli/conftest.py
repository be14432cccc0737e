"""The command line in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.entrypoints.cli.command import Command


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def cli_at_home(cli: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """With `tmp_path` as its cache folder."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    return cli
