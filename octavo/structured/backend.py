"""Compiling grammars with llguidance, within limits."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

STACK_BYTES = 256 << 20
"""Stack of a thread that compiles: llguidance descends once per rule, with some kilobytes each.
Only what is used is ever touched."""

_MAX_ERROR_CHARS = 400
_PLAIN = {
    "NoExtensionBias": "nothing can begin a text of it; a rule that refers to itself alone has "
    "none",
}
"""llguidance's words for programmers."""


class GrammarError(Exception):
    """A grammar cannot be used; the text says why."""


def compile_text(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """A matcher of what `native.native_text` gave, at its start. Releases the GIL.

    Raises:
        GrammarError: it is wrong, not supported, or over a limit.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_grammar_size=250_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        max_lexer_states=50_000,
        # To take a token costs time cubic in this, at the default of 2,000 up to 60 ms. An object
        # needs four for each property that may be left out.
        max_items_in_row=400,
        step_max_items=10_000,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(clean_error(matcher.get_error()))
    return matcher


def clean_error(text: str) -> str:
    """llguidance's message without backtraces, and not longer than a user reads."""
    text = text.partition("\n<backtrace>")[0].partition("\n<non-verbose/>")[0].strip()
    text = _PLAIN.get(text, text)
    half = _MAX_ERROR_CHARS // 2
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:half]} … {text[-half:]}"


def run_when_idle(native_id: int) -> None:
    """From now on a thread, or a process that has but one, runs only where a core is idle. A low
    priority would not do: it holds a core for milliseconds that a thread at a barrier waits for.

    Nor does it run on the first core: compute threads are bound to all others, and the engine's own
    thread, found elsewhere than there, would share one with them until the kernel moves it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may not know of it
            os.sched_setscheduler(native_id, os.SCHED_IDLE, os.sched_param(0))
            cores = os.sched_getaffinity(native_id)
            os.sched_setaffinity(native_id, cores - {min(cores)} or cores)


def start_compile_thread(target: Callable[[], None]) -> threading.Thread:
    """Run `target` in a thread with a deep stack, where a core is idle."""

    def run() -> None:
        run_when_idle(threading.get_native_id())
        target()

    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="octavo-grammar", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
