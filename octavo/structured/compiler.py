"""Grammars compiled beside the engine's loop, and kept by their content."""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from octavo.contracts.structured_outputs import GrammarSource
from octavo.log import get_logger
from octavo.structured.backend import GrammarError, clean_error, compile_text, start_compile_thread
from octavo.structured.probe import MAX_CPU_SECONDS, TOO_MUCH, Probe
from octavo.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = get_logger(__name__)

CACHE_BYTES = 256 << 20
MAX_GRAMMAR_BYTES = 64 << 20
"""Memory of one compiled grammar."""
CPU_SECONDS = (0.05, 0.4, MAX_CPU_SECONDS)
"""Processor time that a grammar gets to compile at its first try, its second and its last."""
_LEAST_BYTES = 256 << 10
"""What any compiled grammar counts for: its lexer grows while it is used."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of a grammar.

    Attributes:
        matcher: at its start, to be copied; None where there is an error.
        num_bytes: what it counts for in the cache, its text apart.
    """

    matcher: LLMatcher | None
    error: str = ""
    num_bytes: int = _LEAST_BYTES


@dataclass(order=True, slots=True)
class _Entry:
    """A grammar in the queue; the least goes first.

    Attributes:
        attempt: how often its time was over.
    """

    attempt: int
    num_chars: int
    index: int
    source: GrammarSource = field(compare=False)


class GrammarCompiler:
    """Compiles beside the loop, where a core is idle: each grammar in a process of its own first
    (`probe`), and then here. Results, errors too, are kept by content, the least recently used ones
    go when there are too many bytes.

    Grammars come in the order of their length, and those whose time was over at the first try after
    all others (a multilevel feedback queue). Of two threads one takes first tries only, so that no
    grammar waits for costly ones.

    These threads have the usual priority: they start processes and read vocabularies, which holds
    the interpreter's lock, and who holds that must not wait for the processor.

    Args:
        vocabulary: makes the vocabulary; called once, in a thread.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Condition()
        self._queue: list[_Entry] = []
        self._pending: set[GrammarSource] = set()
        self._unwanted: set[GrammarSource] = set()  # of the pending ones, those being tried
        self._done: OrderedDict[GrammarSource, Compiled] = OrderedDict()
        self._num_bytes = 0
        self._num_submitted = 0
        self._threads: list[threading.Thread] = []
        self._probes: list[Probe] = []
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to compile."""
        return bool(self._pending)

    def wait(self, seconds: float) -> None:
        """Wait for all that is to be compiled, at most so long."""
        with self._lock:
            self._lock.wait_for(lambda: not self._pending, seconds)

    def result(self, source: GrammarSource) -> Compiled | None:
        """What became of a grammar; None while it is not compiled, which this sees to."""
        with self._lock:
            compiled = self._done.get(source)
            self._unwanted.discard(source)
            if compiled is not None:
                self._done.move_to_end(source)
            elif source not in self._pending and not self._is_closed:
                self._pending.add(source)
                self._put(0, source)
                if not self._threads:
                    self._start(self._begin)
            return compiled

    def forget(self, source: GrammarSource) -> None:
        """Nobody waits for this grammar any more: it need not be compiled, or tried again."""
        with self._lock:
            waiting = [entry for entry in self._queue if entry.source != source]
            if len(waiting) < len(self._queue):
                self._queue = waiting
                self._drop(source)
            elif source in self._pending:
                self._unwanted.add(source)

    def close(self) -> None:
        """Stop the threads. What this process compiles it compiles to its end: seconds."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            self._pending.clear()
            self._unwanted.clear()
            self._lock.notify_all()
            probes, threads = list(self._probes), list(self._threads)
        for probe in probes:
            probe.kill()
        for thread in threads:
            thread.join()

    def _put(self, attempt: int, source: GrammarSource) -> None:
        """Into the queue, under the lock."""
        self._num_submitted += 1
        self._queue.append(_Entry(attempt, len(source.text), self._num_submitted, source))
        self._lock.notify_all()

    def _put_back(self, entry: _Entry) -> None:
        """Its time was over: it tries again, if anybody still waits for it."""
        with self._lock:
            if entry.source in self._unwanted:
                self._drop(entry.source)
            else:
                self._put(entry.attempt + 1, entry.source)

    def _drop(self, source: GrammarSource) -> None:
        """It is not to be compiled any more, or is; under the lock."""
        self._pending.discard(source)
        self._unwanted.discard(source)
        self._lock.notify_all()

    def _start(self, target: Callable[[], None]) -> None:
        """Start a thread, under the lock, unless the end has come."""
        if self._is_closed:
            return
        thread = threading.Thread(target=target, name="octavo-grammars", daemon=True)
        self._threads.append(thread)
        thread.start()

    # ---------------------------------------------------------------- the threads

    def _begin(self) -> None:
        start = time.monotonic()
        try:
            vocabulary = self._vocabulary()
            if not vocabulary.eos_token_ids:
                raise GrammarError("the model has no end-of-sequence token, so no text could end")
            tokenizer = vocabulary.tokenizer()
        except Exception as error:
            if not isinstance(error, GrammarError):
                logger.exception("no vocabulary for grammars")
            self._fail_all(f"structured outputs cannot be used: {error}")
            return
        logger.info("grammars: vocabulary ready in %.1f s", time.monotonic() - start)
        with self._lock:
            self._start(lambda: self._work(vocabulary, tokenizer, range(1, len(CPU_SECONDS))))
        self._work(vocabulary, tokenizer, range(1))

    def _work(self, vocabulary: Vocabulary, tokenizer: LLTokenizer, attempts: range) -> None:
        """Work off the queue, as far as these tries go."""
        probe = Probe(vocabulary)
        with self._lock:
            self._probes.append(probe)
        try:
            while (entry := self._next(attempts)) is not None:
                compiled = self._compile(probe, tokenizer, entry)
                if compiled is not None:
                    self._keep(entry.source, compiled)
                else:
                    self._put_back(entry)
        finally:
            probe.close()

    def _compile(self, probe: Probe, tokenizer: LLTokenizer, entry: _Entry) -> Compiled | None:
        """What became of a grammar; None if it needs another try."""
        try:
            verdict = probe.check(entry.source, CPU_SECONDS[entry.attempt])
            if verdict.is_late:
                is_last = entry.attempt == len(CPU_SECONDS) - 1
                return Compiled(None, TOO_MUCH) if is_last else None
            if verdict.error is not None:
                return Compiled(None, verdict.error)
            if verdict.num_bytes > MAX_GRAMMAR_BYTES:
                raise GrammarError(
                    f"compiled it has {verdict.num_bytes >> 20} MB; at most "
                    f"{MAX_GRAMMAR_BYTES >> 20} MB"
                )
            matcher = _compile_slowly(tokenizer, verdict.text)
        except GrammarError as error:
            return Compiled(None, str(error))
        except Exception as error:
            logger.exception("a grammar could not be compiled")
            return Compiled(None, f"internal error: {error}")
        return Compiled(matcher, num_bytes=max(_LEAST_BYTES, verdict.num_bytes))

    def _next(self, attempts: range) -> _Entry | None:
        """The next grammar for one of these tries; None at the end."""
        with self._lock:
            while not self._is_closed:
                entry = min((e for e in self._queue if e.attempt in attempts), default=None)
                if entry is not None:
                    self._queue.remove(entry)
                    return entry
                self._lock.wait()
            return None

    def _keep(self, source: GrammarSource, compiled: Compiled) -> None:
        dropped = []  # freed outside of the lock: a grammar's memory takes milliseconds
        with self._lock:
            self._drop(source)
            self._done[source] = compiled
            self._num_bytes += compiled.num_bytes + sys.getsizeof(source.text)
            while self._num_bytes > CACHE_BYTES and len(self._done) > 1:
                of_oldest, oldest = self._done.popitem(last=False)
                self._num_bytes -= oldest.num_bytes + sys.getsizeof(of_oldest.text)
                dropped.append(oldest)
        dropped.clear()

    def _fail_all(self, error: str) -> None:
        """Without a vocabulary nothing can be compiled, now or later."""
        while (entry := self._next(range(1))) is not None:
            self._keep(entry.source, Compiled(None, error))


def _compile_slowly(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Compile in a thread with a deep stack, where a core is idle. Raises as `compile_text`."""
    result: Future[LLMatcher] = Future()

    def run() -> None:
        try:
            matcher = compile_text(tokenizer, text)
            matcher.compute_bitmask()  # the first mask may be the dearest; all copies share it
            if matcher.is_error():
                raise GrammarError(clean_error(matcher.get_error()))
            result.set_result(matcher)
        except BaseException as error:
            result.set_exception(error)

    start_compile_thread(run).join()
    return result.result()
