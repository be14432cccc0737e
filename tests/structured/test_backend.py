"""Compiling: what a user reads when it fails, and that limits hold."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured.backend import GrammarError, clean_error, start_compile_thread
from tests.structured.lab import follows, matcher_of


def test_errors_are_for_users() -> None:
    many = " ".join('"a"' for _ in range(70_000))  # more symbols than llguidance can count: a panic
    with pytest.raises(GrammarError) as caught:
        matcher_of(GrammarSource("lark", f"start: {many}"))
    assert "backtrace" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert clean_error("a" * 1000).count("a") == 400
    assert clean_error("why\n<non-verbose/>") == "why"


def test_a_rule_of_itself_alone() -> None:
    matcher = matcher_of(GrammarSource("lark", "start: start"))
    matcher.compute_bitmask()
    assert "refers to itself alone" in clean_error(matcher.get_error())


def test_a_grammar_that_grows_too_complex_stops() -> None:
    matcher = matcher_of(GrammarSource("lark", 'start: a\na: a a | "x" |'))
    assert not follows(matcher, b"x" * 2000)
    assert "items" in matcher.get_error()


def test_the_compile_thread_has_a_deep_stack() -> None:
    """Five thousand rules in a row overflow a usual one, which ends the process."""
    rules = "\n".join(f"a{i}: a{i + 1}" for i in range(8000))
    done = []
    source = GrammarSource("lark", f'start: a0\n{rules}\na8000: "x"')
    before = threading.stack_size()
    start_compile_thread(lambda: done.append(matcher_of(source))).join()
    assert follows(done[0], b"x")
    assert threading.stack_size() == before


@pytest.mark.skipif(sys.platform != "linux", reason="a policy of Linux")
def test_the_compile_thread_runs_where_a_core_is_idle() -> None:
    seen = []

    def look() -> None:
        seen.append((os.sched_getscheduler(0), os.sched_getaffinity(0)))

    cores = os.sched_getaffinity(0)
    start_compile_thread(look).join()
    ((policy, allowed),) = seen
    assert policy == os.SCHED_IDLE
    assert allowed == (cores - {min(cores)} or cores)
    assert os.sched_getaffinity(0) == cores
