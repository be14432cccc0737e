from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.policy.tree import ROOT


@pytest.mark.parametrize(
    ("write", "unbuffered"),
    [
        ("stdout.print_now('text')", False),
        ("stdout.print_now('text')", True),
        ("sys.stdout.write('text')", False),
    ],
)
def test_a_full_disk_is_told_once(write: str, unbuffered: bool) -> None:
    code = f"""
import sys
from octavo.entrypoints import stdout
try:
    try:
        {write}
    finally:
        stdout.flush()
except OSError as error:
    print(error.strerror, file=sys.stderr)
stdout.print_now("and on")
stdout.flush()
"""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "No space left on device\n")


def test_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.entrypoints import stdout

    monkeypatch.setattr(sys, "stdout", None)
    stdout.print_now("text")
    stdout.flush()
