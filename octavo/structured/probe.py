"""Every grammar is compiled in a process of its own first: `python -m octavo.structured.probe`.

llguidance's limits bound what a grammar may become, not what its text may do to the compiler: five
thousand rules in a row overflow a usual stack, tens of thousands of terminals within each other
take minutes. So the process forks for every grammar, which may kill its fork, or make the kernel
kill it for time or memory, and only its request fails. What compiles here compiles in the engine.

Messages are msgpack after their length in 4 bytes, over standard input and output: a `Start` and an
empty `Verdict`, then a `Task` and its `Verdict` in turn.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any, NoReturn

import msgspec

from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured.backend import (
    GrammarError,
    compile_text,
    run_when_idle,
    start_compile_thread,
)
from octavo.structured.native import native_text
from octavo.structured.vocabulary import Vocabulary, sparse_tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_CPU_SECONDS = 3
MAX_BYTES = 2 << 30
"""Address space of the process: its stack and libraries are a third of it."""

TOO_MUCH = f"it takes more than {MAX_CPU_SECONDS} s or {MAX_BYTES >> 30} GiB to compile"


class Start(msgspec.Struct):
    """What grammars may speak of: see `sparse_tokenizer`."""

    vocab_size: int
    special_tokens: dict[int, bytes]
    eos_token_ids: list[int]


class Task(msgspec.Struct):
    """A grammar to be tried, for so many seconds of processor time."""

    source: GrammarSource
    cpu_seconds: float


class Verdict(msgspec.Struct):
    """Whether a grammar compiles.

    Attributes:
        text: the grammar as the engine is to compile it (`native_text`).
        num_bytes: memory that it took.
        error: why it does not compile.
        is_late: it was not compiled when its time was over.
    """

    text: str = ""
    num_bytes: int = 0
    error: str | None = None
    is_late: bool = False


class Probe:
    """The process, from the engine's side. Started when first needed, and again when it died. One
    thread uses it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._start = Start(
            vocab_size=len(vocabulary.token_bytes),
            special_tokens=vocabulary.special_tokens,
            eos_token_ids=list(vocabulary.eos_token_ids),
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def check(self, source: GrammarSource, cpu_seconds: float) -> Verdict:
        """Compile a grammar over there, in so much processor time. The process's own death, not
        that of its fork, may be none of the grammar's doing (memory that others took): another one
        tries again, once.

        Raises:
            RuntimeError: the process does not start.
        """
        verdict = self._ask(source, cpu_seconds)
        if verdict is None and not self._is_killed:
            verdict = self._ask(source, cpu_seconds)
        return verdict or Verdict(error=TOO_MUCH)

    def _ask(self, source: GrammarSource, cpu_seconds: float) -> Verdict | None:
        """The process's verdict; None: it died."""
        process = self._process or self._launch()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, Task(source, cpu_seconds))
            data = _receive(process.stdout)
        except BrokenPipeError:
            data = None
        if data is None:
            self.close()
            return None
        return msgspec.msgpack.decode(data, type=Verdict)

    def kill(self) -> None:
        """End what the process is at, from another thread, and for good."""
        self._is_killed = True
        if (process := self._process) is not None:
            _kill(process)

    def close(self) -> None:
        """End the process. `check` starts another one."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
            process.wait()

    def _launch(self) -> subprocess.Popen[bytes]:
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "octavo.structured.probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        # It stays in our session: in one of its own it would have a share of the processor of its
        # own, as large as the engine's, whatever its priority (sched(7), autogroups).
        run_when_idle(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            _send(process.stdin, self._start)
        if _receive(process.stdout) is None:
            self.close()
            raise RuntimeError("the process that tries grammars does not start")
        return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its fork."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def _send(pipe: IO[bytes], message: Any) -> None:
    data = msgspec.msgpack.encode(message)
    pipe.write(len(data).to_bytes(4, "little") + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    header = pipe.read(4)
    size = int.from_bytes(header, "little")
    data = pipe.read(size)
    return data if len(header) == 4 and len(data) == size else None


# -------------------------------------------------------------------- the process itself


def _serve(source: IO[bytes], sink: IO[bytes]) -> None:
    data = _receive(source)
    if data is None:
        return
    start = msgspec.msgpack.decode(data, type=Start)
    tokenizer = sparse_tokenizer(start.vocab_size, start.special_tokens, start.eos_token_ids)
    _send(sink, Verdict())
    while (data := _receive(source)) is not None:
        task = msgspec.msgpack.decode(data, type=Task)
        fork = os.fork()
        if not fork:
            _try(tokenizer, task, sink)
        _, status = os.waitpid(fork, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            _send(sink, Verdict(is_late=True))
        elif status:
            _send(sink, Verdict(error=TOO_MUCH))


def _try(tokenizer: LLTokenizer, task: Task, sink: IO[bytes]) -> NoReturn:
    """Compile, tell, and end this process; when the time is over, the kernel does."""
    found: list[Verdict] = []
    signal.setitimer(signal.ITIMER_PROF, task.cpu_seconds)
    start_compile_thread(lambda: found.append(_verdict(tokenizer, task.source))).join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    for verdict in found:
        _send(sink, verdict)
    os._exit(not found)


def _verdict(tokenizer: LLTokenizer, source: GrammarSource) -> Verdict:
    before = _resident_bytes()
    verdict = Verdict()
    try:
        verdict.text = native_text(source)
        matcher = compile_text(tokenizer, verdict.text)
        verdict.num_bytes = max(0, _resident_bytes() - before)
        del matcher
    except GrammarError as error:
        verdict.error = str(error)
    except MemoryError:
        verdict.error = TOO_MUCH
    return verdict


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def main() -> int:
    """Entry point of the process."""
    os.setpgid(0, 0)  # Ctrl-C is not for it, and its fork can be killed with it
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
