"""Grammars compiled beside the loop, and kept by their content."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from octavo.contracts.structured_outputs import GrammarSource
from octavo.structured import compiler as module
from octavo.structured.compiler import Compiled, GrammarCompiler
from octavo.structured.probe import Probe, Verdict
from octavo.structured.vocabulary import Vocabulary
from tests.structured.lab import vocabulary


class _Probe(Probe):
    """Says yes at once, and what it was asked; waits for `gate` first."""

    asked: ClassVar[list[GrammarSource]]
    gate: ClassVar[threading.Event]
    num_bytes = 1

    def check(self, source: GrammarSource) -> Verdict:
        assert self.gate.wait(10)
        self.asked.append(source)
        text = f"start: /{source.text}/" if source.kind == "regex" else source.text
        return Verdict(text=text, num_bytes=self.num_bytes)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> type[_Probe]:
    class Fresh(_Probe):
        asked: ClassVar[list[GrammarSource]] = []
        gate = threading.Event()

    Fresh.gate.set()
    monkeypatch.setattr(module, "Probe", Fresh)
    return Fresh


@pytest.fixture
def compiler(probe: type[_Probe]) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(vocabulary)
    yield made
    probe.gate.set()
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
    """The process that tries it is killed."""
    terminals = "\n".join(f'A{i}: A{i + 1} "y"' for i in range(9000))
    compiler = GrammarCompiler(vocabulary)
    wait_for(compiler, regex("a"))
    assert compiler._probe is not None
    process = compiler._probe._process
    assert process is not None
    compiler.result(GrammarSource("lark", f'start: A0\n{terminals}\nA9000: "x"'))
    compiler.close()
    assert process.poll() is not None
