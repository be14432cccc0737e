"""The protocol between the session and its drivers, with a fake driver in a real process."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks.side_by_side.driver_process import DriverError, DriverProcess

FAKE = Path(__file__).parent / "fake_driver.py"
QUESTION = {"command": "generate", "prompts": [[5], [1, 7]], "num_tokens": 2}


def fake(tmp_path: Path, **arguments: str) -> DriverProcess:
    command = [sys.executable, str(FAKE), json.dumps(arguments)]
    return DriverProcess("fake", command, {}, tmp_path / "logs" / "fake.log")


def test_a_driver_answers(tmp_path: Path) -> None:
    with fake(tmp_path) as driver:
        driver.wait_ready(30)
        assert driver.versions == {"fake": "1"}
        answer = driver.ask(QUESTION, 30)
        assert answer["token_ids"] == [[6, 7], [8, 9]]
        assert 0 <= answer["seconds"] < 30
    assert "prints to stdout" in (tmp_path / "logs" / "fake.log").read_text()


def test_an_error_is_told_and_the_driver_goes_on(tmp_path: Path) -> None:
    with fake(tmp_path) as driver:
        driver.wait_ready(30)
        with pytest.raises(DriverError, match="fake: ValueError: unknown command 'dance'"):
            driver.ask({"command": "dance"}, 30)
        assert driver.ask(QUESTION, 30)["token_ids"]


@pytest.mark.parametrize(
    ("fails", "words"),
    [("load", "no such weights"), ("exit at load", "fake ended: .*killed by its own hand")],
)
def test_one_that_cannot_load_says_why(tmp_path: Path, fails: str, words: str) -> None:
    with fake(tmp_path, fails=fails) as driver, pytest.raises(DriverError, match=words):
        driver.wait_ready(30)


def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    with fake(tmp_path, fails="time") as driver:
        driver.wait_ready(30)
        with pytest.raises(DriverError, match="did not answer within"):
            driver.ask(QUESTION, 0.2)
        driver.kill()


def test_a_paused_driver_stands_still(tmp_path: Path) -> None:
    with fake(tmp_path) as driver:
        driver.wait_ready(30)
        driver.pause()
        with pytest.raises(DriverError, match="did not answer"):
            driver.ask(QUESTION, 0.3)
        driver.resume()
        assert driver.ask(QUESTION, 30)  # the late answer


def test_one_that_is_gone_is_noticed(tmp_path: Path) -> None:
    with fake(tmp_path) as driver:
        driver.wait_ready(30)
        driver.kill()
        start = time.monotonic()
        with pytest.raises(DriverError, match="fake ended"):
            driver.ask(QUESTION, 30)
        assert time.monotonic() - start < 20
