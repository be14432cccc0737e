from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.entrypoints.openai import ledger as ledger_module
from octavo.entrypoints.openai.errors import APIError
from octavo.entrypoints.openai.ledger import Ledger
from octavo.entrypoints.openai.quotas import KeyAccount, KeyLimits
from octavo.errors import ConfigError

NAME = "n" * 64


def front_ends(path: Path, num: int = 2) -> list[Ledger]:
    return [Ledger(path, front_end=i, num_front_ends=num) for i in range(num)]


def accounts(ledgers: list[Ledger], **limits: int) -> list[KeyAccount]:
    """One key's, in each front end."""
    return [
        KeyAccount(KeyLimits(**limits), lambda: 1000.0, usage=ledger.usage(NAME))
        for ledger in ledgers
    ]


def test_limits_hold_over_all_front_ends(tmp_path: Path) -> None:
    one, two = accounts(
        front_ends(tmp_path / "ledger"),
        requests_per_minute=3,
        max_concurrent_requests=2,
        tokens_per_minute=100,
    )
    one.enter()
    two.enter()
    assert one.num_concurrent == two.num_concurrent == 2
    with pytest.raises(APIError, match="2 requests in progress"):
        one.enter()
    two.leave()
    one.enter()
    two.leave()  # of which it had one more
    with pytest.raises(APIError, match="3 requests per minute"):
        two.enter()
    one.take_prompt(60)
    two.take_generated(50)
    assert one.headers() == two.headers()
    with pytest.raises(APIError, match="0 are left"):
        one.check_tokens()
    with one.in_background(), two.in_background(), pytest.raises(APIError, match="2 requests in"):
        one.in_background().__enter__()
    assert one.num_in_background == 0


def test_one_that_is_started_anew_has_used_what_it_had_used(tmp_path: Path) -> None:
    ledgers = front_ends(tmp_path / "ledger")
    limits = {"requests_per_minute": 5, "max_concurrent_requests": 5}
    one, two = accounts(ledgers, **limits)
    one.enter()
    two.enter()
    two.in_background().__enter__()
    ledgers[1] = Ledger(tmp_path / "ledger", front_end=1, num_front_ends=2)
    one, two = accounts(ledgers, **limits)
    assert (one.num_concurrent, one.num_in_background) == (1, 0)
    assert dict(two.headers())[b"x-ratelimit-remaining-requests"] == b"3"


def test_keys_have_rows_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_NAMES", 3)
    one, two = front_ends(tmp_path / "ledger")
    one.usage("b").tokens[0] = 7.0
    assert two.usage("a").tokens[0] == 0.0
    assert two.usage("b").tokens[0] == 7.0
    two.usage("c").tokens[0] = 9.0
    assert one.usage("c").tokens[0] == 9.0
    with pytest.raises(ConfigError, match="3 names"):
        one.usage("d")
    assert one.usage("a").tokens[0] == 0.0


def test_nothing_is_lost_between_processes(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from octavo.entrypoints.openai.ledger import Ledger
from octavo.entrypoints.openai.quotas import KeyAccount, KeyLimits
ledger = Ledger(Path(sys.argv[1]), front_end=int(sys.argv[2]), num_front_ends=3)
account = KeyAccount(KeyLimits(tokens_per_minute=10**9), lambda: 1.0, usage=ledger.usage("a"))
print(flush=True)
sys.stdin.read()
for _ in range(30_000):
    account.take_generated(1)
"""
    path = tmp_path / "ledger"
    ledger = Ledger(path, num_front_ends=3)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(i)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for i in (1, 2)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:  # both at once
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(30) for process in processes] == [0, 0]
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    assert ledger.usage("a").tokens[0] == 60_000


def test_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Ledger(tmp_path / "nowhere" / "ledger", num_front_ends=2)
    with pytest.raises(ConfigError, match="No such file"):
        Ledger(tmp_path / "ledger", front_end=1, num_front_ends=2)
