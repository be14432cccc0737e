"""Grammars compiled beside the loop, and kept by their content."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Container, Iterator
from typing import ClassVar

import pytest

from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured import compiler as module
from octavo.structured.compiler import Compiled, GrammarCompiler
from octavo.structured.probe import MAX_CPU_SECONDS, Probe, Verdict
from octavo.structured.vocabulary import Vocabulary
from tests.structured.lab import vocabulary


class _Probe(Probe):
    """Says yes at once, and what it was asked; waits for `gate` first. Sources in `costly` need the
    last try, and that waits for `costly_gate`."""

    asked: ClassVar[list[GrammarSource]]
    gate: ClassVar[threading.Event]
    costly_gate: ClassVar[threading.Event]
    costly: ClassVar[Container[GrammarSource]]
    num_bytes = 1

    def check(self, source: GrammarSource, cpu_seconds: float) -> Verdict:
        assert self.gate.wait(10)
        self.asked.append(source)
        if source in self.costly:
            if cpu_seconds < MAX_CPU_SECONDS:
                return Verdict(is_late=True)
            assert self.costly_gate.wait(10)
        text = f"start: /{source.text}/" if source.kind == "regex" else source.text
        return Verdict(text=text, num_bytes=self.num_bytes)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> type[_Probe]:
    class Fresh(_Probe):
        asked: ClassVar[list[GrammarSource]] = []
        gate = threading.Event()
        costly_gate = threading.Event()
        costly: ClassVar[Container[GrammarSource]] = ()

    Fresh.gate.set()
    Fresh.costly_gate.set()
    monkeypatch.setattr(module, "Probe", Fresh)
    return Fresh


@pytest.fixture
def compiler(probe: type[_Probe]) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(vocabulary)
    yield made
    probe.gate.set()
    probe.costly_gate.set()
    made.close()


def regex(text: str) -> GrammarSource:
    return GrammarSource("regex", text)


def wait_for(compiler: GrammarCompiler, source: GrammarSource) -> Compiled:
    for _ in range(10_000):
        if (compiled := compiler.result(source)) is not None:
            return compiled
        time.sleep(0.001)
    raise AssertionError("never compiled")


def test_each_content_once(compiler: GrammarCompiler, probe: type[_Probe]) -> None:
    first = wait_for(compiler, regex("a+"))
    assert first.matcher is not None
    assert wait_for(compiler, regex("a+")) is first
    assert wait_for(compiler, regex("b+")) is not first
    assert probe.asked == [regex("a+"), regex("b+")]


def test_errors_are_results(compiler: GrammarCompiler, probe: type[_Probe]) -> None:
    failed = wait_for(compiler, regex("("))
    assert failed.matcher is None
    assert "unclosed group" in failed.error
    assert wait_for(compiler, regex("(")) is failed
    assert len(probe.asked) == 1


def test_short_ones_first_and_none_that_nobody_waits_for(
    compiler: GrammarCompiler, probe: type[_Probe]
) -> None:
    probe.gate.clear()
    sources = [regex("a" * n) for n in (1, 30, 20, 10)]
    for source in sources:
        assert compiler.result(source) is None
    compiler.forget(sources[2])
    probe.gate.set()
    wait_for(compiler, sources[1])
    assert probe.asked[-2:] == [sources[3], sources[1]]
    assert sources[2] not in probe.asked


def test_no_grammar_waits_for_costly_ones(compiler: GrammarCompiler, probe: type[_Probe]) -> None:
    """24 that take their time, shorter than one that does not: it is there before any of them."""
    costly = [regex(f"{i:02}") for i in range(24)]
    probe.costly = costly
    probe.costly_gate.clear()
    for source in costly:
        compiler.result(source)
    while probe.asked.count(costly[0]) < len(module.CPU_SECONDS):  # the first one's last try
        time.sleep(0.001)
    assert wait_for(compiler, regex("an honest one")).matcher is not None
    assert not any(compiler.result(source) for source in costly)
    assert compiler.is_busy
    probe.costly_gate.set()
    compiler.wait(30)
    assert not compiler.is_busy
    assert all(compiler.result(source) for source in costly)
    assert len(probe.asked) == len(module.CPU_SECONDS) * len(costly) + 1


def test_one_that_nobody_waits_for_is_not_tried_again(
    compiler: GrammarCompiler, probe: type[_Probe]
) -> None:
    """Its first try was under way when its request went away."""
    costly = [regex(f"{i:02}") for i in range(3)]
    probe.costly = costly
    probe.gate.clear()
    compiler.result(costly[0])
    while compiler._queue:
        time.sleep(0.001)
    compiler.forget(costly[0])
    compiler.result(costly[1])
    compiler.result(costly[2])
    probe.gate.set()
    compiler.wait(10)
    assert not compiler.is_busy
    assert probe.asked.count(costly[0]) == 1
    assert wait_for(compiler, costly[0]).matcher is not None  # somebody comes with it again


def test_one_that_somebody_waits_for_again_is_tried_again(
    compiler: GrammarCompiler, probe: type[_Probe]
) -> None:
    probe.costly = [regex("a")]
    probe.gate.clear()
    compiler.result(regex("a"))
    while compiler._queue:
        time.sleep(0.001)
    compiler.forget(regex("a"))
    compiler.result(regex("a"))
    probe.gate.set()
    assert wait_for(compiler, regex("a")).matcher is not None


def test_who_needs_more_than_the_last_try_fails(
    compiler: GrammarCompiler, probe: type[_Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CPU_SECONDS", (1, 2))
    probe.costly = [regex("a")]
    assert "more than 3 s" in wait_for(compiler, regex("a")).error
    assert probe.asked == [regex("a")] * 2


def test_the_least_recently_used_go(
    compiler: GrammarCompiler, probe: type[_Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", (3 << 20) + 1024)  # texts count too
    probe.num_bytes = 1 << 20
    a, b, c, d = (regex(x) for x in "abcd")
    for source in (a, b, c):
        wait_for(compiler, source)
    wait_for(compiler, a)
    wait_for(compiler, d)
    assert len(compiler._done) == 3
    assert compiler.result(a) is not None
    assert compiler.result(b) is None
    wait_for(compiler, b)
    assert probe.asked.count(b) == 2


def test_long_texts_count(
    compiler: GrammarCompiler, probe: type[_Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of broken grammars too: they are the keys."""
    monkeypatch.setattr(module, "CACHE_BYTES", 3 << 20)
    for i in range(4):
        wait_for(compiler, GrammarSource("lark", f"{i}" * (1 << 20)))
    assert len(compiler._done) == 2


def test_one_that_takes_too_much_memory(compiler: GrammarCompiler, probe: type[_Probe]) -> None:
    probe.num_bytes = 65 << 20
    assert "65 MB; at most 64 MB" in wait_for(compiler, regex("a")).error


def test_without_a_vocabulary_all_fail() -> None:
    def broken() -> Vocabulary:
        raise OSError("the file is gone")

    compiler = GrammarCompiler(broken)
    for text in "ab":
        assert "the file is gone" in wait_for(compiler, regex(text)).error
    compiler.close()


def test_a_model_without_an_end() -> None:
    whole = vocabulary()
    endless = Vocabulary(
        token_bytes=whole.token_bytes,
        special_ids=whole.special_ids,
        eos_token_ids=[],
        encoder=whole.encoder,
    )
    compiler = GrammarCompiler(lambda: endless)
    assert "no end-of-sequence token" in wait_for(compiler, regex("a")).error
    compiler.close()


def test_nothing_is_compiled_after_the_end(compiler: GrammarCompiler) -> None:
    compiler.close()
    compiler.close()
    assert compiler.result(regex("a")) is None


def test_the_end_waits_for_no_hostile_grammar() -> None:
    """The process that tries it is killed, and its fork too."""
    terminals = "\n".join(f'A{i}: A{i + 1} "y"' for i in range(9000))
    compiler = GrammarCompiler(vocabulary)
    wait_for(compiler, regex("a"))
    process = compiler._probes[0]._process
    assert process is not None
    compiler.result(GrammarSource("lark", f'start: A0\n{terminals}\nA9000: "x"'))
    compiler.close()
    assert process.poll() is not None
    for _ in range(1000):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)  # an orphan is somebody else's to be taken away
    raise AssertionError("its fork lives")
