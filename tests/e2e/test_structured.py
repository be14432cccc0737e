"""Grammars in the whole engine, on tiny models: what comes is what was asked for, and it is the
same, to the bit, alone and in any company."""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.structured_outputs import GrammarSource, StructuredOutputsParams
from octavo.entrypoints.llm import LLM
from octavo.structured import turns
from octavo.structured.manager import StructuredOutputs
from octavo.structured.probe import Probe, Verdict
from tests.e2e.lab import TINY_VOCAB, Answer, Ask, Lab, answers_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "kind": {"enum": ["al", "be", "日"]},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 2},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
MAIL = r"[a-z]{2,6}@[a-z]{2,6}\.(com|org)"
GRAMMARS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "compact": {"json": SCHEMA, "disable_any_whitespace": True},
    "regex": {"regex": MAIL},
    "choice": {"choice": ["a long way to go", "a long day", "no"]},
    "grammar": {"grammar": 'start: "(" start ")" | "x"'},
}
FIELDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 1},
    "drawn": {"temperature": 0.9, "seed": 7, "logprobs": 2},
    "penalties": {"seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "filters": {"seed": 5, "top_k": 20, "min_p": 0.01, "bad_words": ["b"]},
    "goes-on": {"seed": 6, "ignore_eos": True},
    "three": {"seed": 4, "n": 3},
}


def asks() -> list[Ask]:
    """32 requests: every grammar with every way to choose, and a few without one."""
    rng = np.random.default_rng(0)
    found: list[Ask] = []
    mixed = [(g, f) for f in FIELDS for g in [*GRAMMARS, None]]
    for i, (grammar, fields) in enumerate(mixed[:32]):
        values = dict(FIELDS[fields])
        if grammar is not None:
            values["structured_outputs"] = StructuredOutputsParams(**GRAMMARS[grammar])
        prompt = rng.integers(0, TINY_VOCAB - 1, [1, 16, 23, 33][i % 4]).tolist()
        params = SamplingParams(max_tokens=72, **values)
        found.append(Ask(name=f"{grammar}-{fields}", prompt=prompt, params=params, step=i // 3))
    return found


def assert_as_asked(ask: Ask, answers: list[Answer]) -> None:
    structured = ask.params.structured_outputs
    for answer in answers:
        if structured is None or answer.finish_reason != "stop":
            continue
        if structured.json is not None:
            jsonschema.validate(json.loads(answer.text), SCHEMA)
        elif structured.regex is not None:
            assert re.fullmatch(MAIL, answer.text)
        elif structured.choice is not None:
            assert answer.text in structured.choice
        else:
            assert re.fullmatch(r"(\(*)x(\)*)", answer.text)
            assert answer.text.count("(") == answer.text.count(")")


@pytest.fixture(scope="module")
def alone(tiny_path: Path) -> dict[str, list[Answer]]:
    """Each alone, one after the other, nothing cached, nothing jumped over, on one thread."""
    options = {"num_threads": 1, "enable_prefix_caching": False, "max_model_len": 128}
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(Lab(tiny_path, dtype="float32", **options)) as lab,
    ):
        patch.setattr(StructuredOutputs, "forced_token_ids", lambda *_: {})
        found = {ask.name: answers_of(lab.run([ask])[ask.name]) for ask in asks()}
    for ask in asks():
        assert_as_asked(ask, found[ask.name])
    reasons = [a.finish_reason for answers in found.values() for a in answers]
    assert reasons.count("stop") > 20
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "batch": {},
    "budget-16": {"max_num_batched_tokens": 16},
    "depth-2": {"pipeline_depth": 2},
    "depth-3-threads-2": {"pipeline_depth": 3, "num_threads": 2},
    "few-places": {"max_num_seqs": 5},
    "small-pool": {"num_gpu_blocks_override": 13},
    "small-pool-depth-2": {"num_gpu_blocks_override": 13, "pipeline_depth": 2},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_together(tiny_path: Path, alone: dict[str, list[Answer]], options: dict[str, Any]) -> None:
    options = {"num_threads": 1, "max_model_len": 128} | options
    with closing(Lab(tiny_path, dtype="float32", **options)) as lab:
        for batch in (asks(), [replace(a, step=i // 4) for i, a in enumerate(asks()[::-1])]):
            for name, output in lab.run(batch).items():
                answers = answers_of(output)
                differences = [a.difference(e) for a, e in zip(answers, alone[name])]
                assert not any(differences), f"{name}: {differences}"
                assert answers == alone[name]
        if "num_gpu_blocks_override" in options:
            assert any("json" in name for name in lab.preempted.counts)


@pytest.mark.parametrize("depth", [1, 3])
def test_resting_changes_no_answer(
    tiny_path: Path, alone: dict[str, list[Answer]], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every mask counts as costly: one request with a grammar at a time, and those without."""
    rested: list[str] = []

    def may_go(self: turns.Turns, request_id: str, now: float) -> bool:
        if goes := might_go(self, request_id, now):
            return goes
        rested.append(request_id)
        return False

    might_go = turns.Turns.may_go
    monkeypatch.setattr(turns.Turns, "may_go", may_go)
    monkeypatch.setattr(turns, "COSTLY_SECONDS", -1.0)
    monkeypatch.setattr(turns, "MAX_SHARE", 0.002)
    some = [ask for ask in asks() if ask.params.n == 1][:12]
    options: dict[str, Any] = {"pipeline_depth": depth, "num_threads": 1, "max_model_len": 128}
    with closing(Lab(tiny_path, dtype="float32", **options)) as lab:
        for name, output in lab.run(some).items():
            assert answers_of(output) == alone[name]
    assert len(set(rested)) > 5


def test_jumping_takes_fewer_steps(tiny_path: Path, alone: dict[str, list[Answer]]) -> None:
    ask = next(a for a in asks() if a.name == "compact-drawn")
    with closing(Lab(tiny_path, dtype="float32", num_threads=1, max_model_len=128)) as lab:
        assert answers_of(lab.run([ask])["compact-drawn"]) == alone["compact-drawn"]
        ready = lab.engine.stats().num_steps
        assert answers_of(lab.run([ask])["compact-drawn"]) == alone["compact-drawn"]
        num_steps = lab.engine.stats().num_steps - ready
    assert num_steps < len(alone["compact-drawn"][0].tokens) / 2


def test_others_go_on_while_a_grammar_is_compiled(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To their ends, and to those of others that came later."""
    gate = threading.Event()

    def check(self: Probe, source: GrammarSource, cpu_seconds: float) -> Verdict:
        assert gate.wait(30)
        return checked(self, source, cpu_seconds)

    checked = Probe.check
    monkeypatch.setattr(Probe, "check", check)
    structured = SamplingParams(
        seed=1, structured_outputs=StructuredOutputsParams(choice=["waited for"])
    )
    plain = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    with closing(Lab(tiny_path, num_threads=1)) as lab:
        engine = lab.engine
        engine.add_request("waits", [1], structured)
        for name in ("first", "second"):
            engine.add_request(name, [2], plain)
            ended = []
            while not ended:
                ended = [o for o in engine.step() if o.finished]
            assert [(o.request_id, len(o.outputs[0].token_ids)) for o in ended] == [(name, 30)]
        assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 1)
        gate.set()
        ended = []
        while not ended:
            ended = [o for o in engine.step() if o.finished]
        assert ended[0].outputs[0].text == "waited for"


HOSTILE: dict[str, dict[str, Any]] = {
    "regex-alternatives": {"regex": "(a|b)*a" + "(a|b)" * 20},
    "regex-repetitions": {"regex": "((a{1,100}){1,100}){1,100}"},
    "regex-window": {"regex": "(.{0,5000}x){100}"},
    "regex-words": {"regex": "|".join(f"w{i}" for i in range(20_000))},
    "regex-nested": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "schema-deep": {"json": '{"items":' * 63 + "{}" + "}" * 63},
    "schema-self": {"json": {"$ref": "#"}},
    "schema-doubling": {
        "json": {
            "$defs": {
                f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"const": i}]} for i in range(40)
            }
            | {"d40": {}},
            "$ref": "#/$defs/d0",
        }
    },
    "schema-optional": {
        "json": {"type": "object", "properties": {f"p{i}": {"maxLength": i} for i in range(900)}}
    },
    "schema-multiple": {"json": {"type": "integer", "multipleOf": 99991, "maximum": 10**15}},
    "grammar-ambiguous": {"grammar": 'start: a\na: a a a | a a | "x" | "xx" | "xxx" |'},
    "grammar-repetitions": {"grammar": 'start: (("a"{1,1000}){1,1000}){1,1000}'},
    "grammar-many": {"grammar": "start: " + " ".join(['"a"'] * 60_000)},
    "grammar-parentheses": {"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000},
    "grammar-rules": {
        "grammar": "start: a0\n"
        + "\n".join(f"a{i}: a{i + 1}" for i in range(15_000))
        + '\na15000: "x"'
    },
}


QUICK = [n for n in HOSTILE if n.split("-")[1] not in ("words", "optional", "multiple", "many")]


@pytest.mark.parametrize("names", [QUICK, pytest.param(list(HOSTILE), marks=pytest.mark.slow)])
def test_hostile_requests_end_and_the_engine_lives(tiny_path: Path, names: list[str]) -> None:
    """Beside others, who get what they get alone."""
    plain = [
        Ask(
            name=f"plain-{i}",
            prompt=[i, 7],
            params=SamplingParams(seed=i, max_tokens=60, ignore_eos=True),
        )
        for i in range(8)
    ]
    hostile = [
        Ask(
            name=name,
            prompt=[5],
            params=SamplingParams(
                seed=3, max_tokens=40, structured_outputs=StructuredOutputsParams(**HOSTILE[name])
            ),
        )
        for name in names
    ]
    with closing(Lab(tiny_path, num_threads=1)) as lab:
        expected = {ask.name: answers_of(lab.run([ask])[ask.name]) for ask in plain}
        outputs = lab.run([*hostile, *plain])
        for ask in plain:
            assert answers_of(outputs[ask.name]) == expected[ask.name]
        for ask in hostile:
            (completion,) = outputs[ask.name].outputs
            assert completion.finish_reason in ("stop", "length", "error")
            assert (completion.error_param == "structured_outputs") == bool(completion.error)


class TestFailures:
    """They end their own request, and say what was wrong with it."""

    @pytest.mark.parametrize(
        ("grammar", "why"),
        [
            ({"regex": "("}, "unclosed group"),
            ({"regex": "a(?=b)"}, "look-around"),
            ({"json": {"anyOf": []}}, "anyOf is empty"),
            ({"json": {"not": {}}}, "not"),
            ({"json": {"$ref": "#"}}, "no finite value satisfies the schema"),
            ({"grammar": "start: start"}, "refers to itself alone"),
            ({"json": {"type": "object", "required": ["a"], "additionalProperties": False}}, "'a'"),
            ({"grammar": "rubbish (("}, "Expected token"),
            ({"grammar": 'start: a\na: a a | "x" |'}, "cannot go on"),
        ],
    )
    def test_beside_a_neighbour(self, tiny: LLM, grammar: dict[str, Any], why: str) -> None:
        plain = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        bad = SamplingParams(
            max_tokens=400,
            ignore_eos=True,
            seed=0,
            structured_outputs=StructuredOutputsParams(**grammar),
        )
        (expected,) = tiny.generate("some", plain)
        good, failed = tiny.generate(["some", "more"], [plain, bad])
        assert good.outputs[0].token_ids == expected.outputs[0].token_ids
        (completion,) = failed.outputs
        assert completion.finish_reason == "error"
        assert why in (completion.error or "")
        assert completion.error_param == "structured_outputs"
        assert tiny.stats().num_used_blocks == 0

    def test_nothing_left(self, tiny: LLM) -> None:
        params = SamplingParams(
            max_tokens=9,
            allowed_token_ids=[1, 2],
            structured_outputs=StructuredOutputsParams(regex="abc"),
        )
        (output,) = tiny.generate("x", params)
        assert "structured_outputs, allowed_token_ids" in (output.outputs[0].error or "")
        assert output.outputs[0].error_param == "structured_outputs"

    def test_aborted_while_it_waits(self, tiny_path: Path) -> None:
        with closing(Lab(tiny_path, num_threads=1)) as lab:
            params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a+"))
            lab.engine.add_request("a", [1], params)
            lab.engine.abort_request("a")
            (output,) = lab.engine.step()
            assert output.outputs[0].finish_reason == "abort"
            assert not lab.engine.has_unfinished_requests()
