"""Grammars compiled beside the engine's loop, and kept by their content."""

from __future__ import annotations

import heapq
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.contracts.structured_outputs import GrammarSource
from octavo.log import get_logger
from octavo.structured.backend import GrammarError, clean_error, compile_text, start_compile_thread
from octavo.structured.probe import Probe
from octavo.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = get_logger(__name__)

CACHE_BYTES = 256 << 20
MAX_GRAMMAR_BYTES = 64 << 20
"""Memory of one compiled grammar."""
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


class GrammarCompiler:
    """Compiles beside the loop, short grammars first, each once in a process of its own (`probe`)
    and then here, in a thread of the lowest priority. Results, errors too, are kept by content, the
    least recently used ones go when there are too many bytes.

    The thread that works off the queue has the usual priority: it starts processes and reads
    vocabularies, which holds the interpreter's lock, and who holds that must not wait for the
    processor.

    Args:
        vocabulary: makes the vocabulary; called once, in the thread.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Condition()
        self._queue: list[tuple[int, int, GrammarSource]] = []
        self._pending: set[GrammarSource] = set()
        self._done: OrderedDict[GrammarSource, Compiled] = OrderedDict()
        self._num_bytes = 0
        self._num_submitted = 0
        self._thread: threading.Thread | None = None
        self._probe: Probe | None = None
        self._is_closed = False

    def result(self, source: GrammarSource) -> Compiled | None:
        """What became of a grammar; None while it is not compiled, which this sees to."""
        with self._lock:
            compiled = self._done.get(source)
            if compiled is not None:
                self._done.move_to_end(source)
            elif source not in self._pending and not self._is_closed:
                self._pending.add(source)
                self._num_submitted += 1
                heapq.heappush(self._queue, (len(source.text), self._num_submitted, source))
                self._lock.notify()
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._work, name="octavo-grammars", daemon=True
                    )
                    self._thread.start()
            return compiled

    def forget(self, source: GrammarSource) -> None:
        """Nobody waits for this grammar any more: it need not be compiled."""
        with self._lock:
            waiting = [entry for entry in self._queue if entry[2] != source]
            if len(waiting) < len(self._queue):
                heapq.heapify(waiting)
                self._queue = waiting
                self._pending.discard(source)

    def close(self) -> None:
        """Stop the thread. What this process compiles it compiles to its end: seconds."""
        with self._lock:
            self._is_closed = True
            self._queue.clear()
            self._pending.clear()
            self._lock.notify()
        if self._thread is not None:
            if self._probe is not None:
                self._probe.kill()
            self._thread.join()

    # ---------------------------------------------------------------- the thread

    def _work(self) -> None:
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
        probe = self._probe = Probe(vocabulary)
        try:
            while (source := self._next()) is not None:
                self._keep(source, self._compile(probe, tokenizer, source))
        finally:
            probe.close()

    def _compile(self, probe: Probe, tokenizer: LLTokenizer, source: GrammarSource) -> Compiled:
        try:
            verdict = probe.check(source)
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

    def _next(self) -> GrammarSource | None:
        """The next grammar to compile; None at the end."""
        with self._lock:
            while not self._queue and not self._is_closed:
                self._lock.wait()
            return None if self._is_closed else heapq.heappop(self._queue)[2]

    def _keep(self, source: GrammarSource, compiled: Compiled) -> None:
        dropped = []  # freed outside of the lock: a grammar's memory takes milliseconds
        with self._lock:
            self._pending.discard(source)
            self._done[source] = compiled
            self._num_bytes += compiled.num_bytes + sys.getsizeof(source.text)
            while self._num_bytes > CACHE_BYTES and len(self._done) > 1:
                of_oldest, oldest = self._done.popitem(last=False)
                self._num_bytes -= oldest.num_bytes + sys.getsizeof(of_oldest.text)
                dropped.append(oldest)
        dropped.clear()

    def _fail_all(self, error: str) -> None:
        """Without a vocabulary nothing can be compiled, now or later."""
        while (source := self._next()) is not None:
            self._keep(source, Compiled(None, error))


def _compile_slowly(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Compile in a thread with a deep stack and the lowest priority. Raises as `compile_text`."""
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
