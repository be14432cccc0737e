"""Runs the command line in this process."""

from __future__ import annotations

import pytest

from octavo.entrypoints.cli import main


class Command:
    """`octavo …`, as its console script runs it."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        self._monkeypatch.setattr("sys.argv", ["octavo", *arguments])
        status = 0
        try:
            main.run()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        out, err = self._capsys.readouterr()
        return status, out, err

    def fails(self, *arguments: str, words: str, status: int = 1) -> None:
        """It must end with this status and one line on stderr that has `words`."""
        got, out, err = self(*arguments)
        assert (got, out) == (status, "")
        if status == 1:
            assert err.startswith("octavo: ")
            assert err.count("\n") == 1
        assert words in err
        assert "Traceback" not in err
