"""The process that tries grammars first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured import probe
from octavo.structured.probe import Probe, Start
from tests.structured.lab import vocabulary

GOOD = GrammarSource("regex", "a+")
BAD = GrammarSource("regex", "(")


@pytest.fixture
def checked() -> Iterator[Probe]:
    checked = Probe(vocabulary())
    yield checked
    checked.close()


def test_verdicts(checked: Probe) -> None:
    assert checked.check(GOOD, 3).error is None
    assert checked.check(GrammarSource("json", '{"type": "object"}'), 3).error is None
    assert checked.check(GrammarSource("lark", 'start: "a" <|im_end|>'), 3).error is None
    assert "unclosed group" in (checked.check(BAD, 3).error or "")
    gbnf = checked.check(GrammarSource("gbnf", 'root ::= "a"'), 3)
    assert gbnf.error is None
    assert 'start: \\"a\\"' in gbnf.text


def test_what_it_takes_is_told(checked: Probe) -> None:
    many = "|".join(f"w{i}" for i in range(20_000))
    assert checked.check(GrammarSource("regex", many), 3).num_bytes > 4 << 20


def test_the_death_of_its_fork_is_that_of_one_grammar(checked: Probe) -> None:
    """Thousands of terminals within each other: the kernel ends the fork when its time is over."""
    terminals = "\n".join(f'A{i}: A{i + 1} "y"' for i in range(9000))
    hostile = GrammarSource("lark", f'start: A0\n{terminals}\nA9000: "x"')
    assert checked.check(GOOD, 3).error is None
    first = checked._process
    late = checked.check(hostile, 0.05)
    assert late.is_late
    assert late.error is None
    assert checked.check(GOOD, 3).error is None
    assert checked._process is first


def test_a_fork_that_dies_by_itself(checked: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stack that overflows, say: here of one that it cannot have."""
    monkeypatch.setattr(probe, "MAX_BYTES", 1 << 30)
    many = "(" * 100_000 + "a" + ")" * 100_000
    assert checked.check(GrammarSource("lark", f"start: /{many}/"), 3).error
    assert checked.check(GOOD, 3).error is None


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
def test_there_is_one_thread_to_fork(checked: Probe) -> None:
    """The others would be missing in the fork, with the locks that they hold."""
    assert checked.check(GOOD, 3).error is None
    assert checked._process is not None
    assert len(list(Path(f"/proc/{checked._process.pid}/task").iterdir())) == 1


def test_a_killed_process_is_started_anew(checked: Probe) -> None:
    assert checked.check(GOOD, 3).error is None
    assert checked._process is not None
    checked._process.kill()
    checked._process.wait()
    assert checked.check(GOOD, 3).error is None
    checked.kill()  # the engine's end: nothing is started anew
    assert "more than" in (checked.check(GOOD, 3).error or "")
    assert checked._process is None


def test_a_process_that_always_dies(checked: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []

    def launch() -> object:
        launched.append(1)
        process = Probe._launch(checked)
        process.kill()
        process.wait()
        return process

    monkeypatch.setattr(checked, "_launch", launch)
    assert "more than" in (checked.check(GOOD, 3).error or "")
    assert len(launched) == 2


def test_a_process_that_does_not_start(checked: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="does not start"):
        checked.check(GOOD, 3)


def test_the_engine_sends_what_a_grammar_may_name() -> None:
    start = Probe(vocabulary())._start
    assert isinstance(start, Start)
    assert start.special_tokens[258] == b"<|im_end|>"
