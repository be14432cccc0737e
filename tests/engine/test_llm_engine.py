"""The engine, step by step, from text to text, over a fake executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.contracts.messages import RequestOutput
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.llm_engine import LLMEngine
from octavo.errors import EngineDeadError, RequestError
from tests.engine.fakes import EOS, ByteTokenizer, fake_engine


@pytest.fixture(autouse=True)
def _check_integrity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CHECK", "1")


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 8, "ignore_eos": True} | values)


def run(
    engine: LLMEngine, on_step: Callable[[int], None] | None = None
) -> dict[str, list[RequestOutput]]:
    seen: dict[str, list[RequestOutput]] = {}
    for step in range(10_000):
        if not engine.has_unfinished_requests():
            return seen
        for output in engine.step():
            seen.setdefault(output.request_id, []).append(output)
        if on_step is not None:
            on_step(step)
    raise AssertionError("the engine does not come to an end")


def scripted(
    prompt: str, text: str, pieces: list[bytes] | None = None, **options: Any
) -> LLMEngine:
    """An engine that answers `prompt` with `text`, cut into `pieces` (or bytes), then EOS."""
    cut = [text[i : i + 1].encode() for i in range(len(text))] if pieces is None else pieces
    tokenizer = ByteTokenizer(cut)
    first = tokenizer.vocab_size - len(cut)
    script = {tuple(prompt.encode()): list(range(first, tokenizer.vocab_size))}
    return fake_engine(tokenizer=tokenizer, executor={"script": script}, **options)


class TestRequests:
    def test_every_request_ends_once(self) -> None:
        engine = fake_engine()
        for i in range(5):
            engine.add_request(str(i), f"prompt {i}", params(max_tokens=i + 1, n=1 + i % 3))
        outputs = run(engine)
        assert sorted(outputs) == [str(i) for i in range(5)]
        for i, seen in outputs.items():
            assert [o.finished for o in seen] == [False] * (len(seen) - 1) + [True]
            assert [len(c.token_ids) for c in seen[-1].outputs] == [int(i) + 1] * (1 + int(i) % 3)
        assert engine.stats().num_used_blocks == 0

    def test_a_refused_request_leaves_the_engine_as_it_was(self) -> None:
        engine = fake_engine(executor={"num_blocks": 4})
        engine.add_request("a", "Hi", params())
        for prompt, values in (
            ("", {}),
            ("x" * 100, {}),
            ("x" * 500, {}),
            ("Hi", {"logprobs": 999}),
        ):
            with pytest.raises(RequestError):
                engine.add_request("b", prompt, params(n=3, **values))
        with pytest.raises(RequestError, match="in use"):
            engine.add_request("a", "Hi", params())
        assert engine.unfinished_request_ids == ["a"]
        assert list(run(engine)) == ["a"]
        engine.add_request("b", "Hi", params())

    def test_a_core_that_refuses_a_fork_gets_the_others_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = fake_engine()
        add = engine.client.add_request

        def add_request(request: Any) -> None:
            if request.sample_index == 2:
                raise RequestError("no third one")
            add(request)

        monkeypatch.setattr(engine.client, "add_request", add_request)
        with pytest.raises(RequestError, match="third"):
            engine.add_request("a", "Hi", params(n=3))
        assert not engine.has_unfinished_requests()
        assert engine.stats().num_waiting == 0

    @pytest.mark.parametrize("depth", [1, 2])
    def test_abort(self, depth: int) -> None:
        engine = fake_engine(pipeline_depth=depth)
        for i in "abc":
            engine.add_request(i, f"prompt {i}", params(max_tokens=20, n=2))

        def on_step(step: int) -> None:
            if step == 4:
                engine.abort_request(["b", "unknown"])

        outputs = run(engine, on_step)
        assert {c.finish_reason for c in outputs["b"][-1].outputs} == {"abort"}
        assert outputs["b"][-1].finished
        assert [len(outputs[i][-1].outputs[0].token_ids) for i in "ac"] == [20, 20]
        assert 0 < len(outputs["b"][-1].outputs[0].token_ids) < 20
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)

    def test_an_aborted_id_can_be_used_again_at_once(self) -> None:
        engine = fake_engine(pipeline_depth=2)
        engine.add_request("a", "one", params())
        engine.step()
        engine.abort_request("a")
        engine.add_request("a", "two", params())
        assert engine.has_unfinished_requests()
        outputs = run(engine)["a"]
        assert [o.outputs[0].finish_reason for o in outputs if o.finished] == ["abort", "length"]
        assert outputs[0].prompt == "one"
        assert outputs[-1].prompt == "two"

    def test_dead_engine(self) -> None:
        engine = fake_engine()
        with engine:
            engine.add_request("a", "Hi", params())
        with pytest.raises(EngineDeadError, match="shut down"):
            engine.step()
        with pytest.raises(EngineDeadError):
            engine.add_request("b", "Hi", params())

    def test_a_failed_step_ends_its_requests_only(self) -> None:
        engine = fake_engine(executor={"fail": {1: RuntimeError("boom")}})
        engine.add_request("a", "Hi", params())
        (output,) = [o for o in run(engine)["a"] if o.finished]
        assert output.outputs[0].finish_reason == "error"
        assert "boom" in output.outputs[0].error
        engine.add_request("b", "Hi", params())
        assert run(engine)["b"][-1].outputs[0].finish_reason == "length"


class TestStops:
    """User case 3, with the ids of the fake executor."""

    PIECES = (b"DEF", b"GH", b"I", b"J", b"KL", b"MN")

    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize(
        ("values", "text", "num_tokens", "finish", "reason"),
        [
            ({"stop": "DEFGHIJ"}, "", 4, "stop", "DEFGHIJ"),
            (
                {"stop": "DEFGHIJ", "include_stop_str_in_output": True},
                *("DEFGHIJ", 4, "stop", "DEFGHIJ"),
            ),
            ({"stop": "EFG"}, "D", 2, "stop", "EFG"),
            ({"stop": "EFG", "include_stop_str_in_output": True}, "DEFG", 2, "stop", "EFG"),
            ({"stop": "HIZ", "max_tokens": 3}, "DEFGHI", 3, "length", None),
        ],
    )
    def test_over_several_tokens(
        self, depth: int, values: Any, text: str, num_tokens: int, finish: str, reason: Any
    ) -> None:
        engine = scripted("ABC", "", list(self.PIECES), pipeline_depth=depth)
        for kind in RequestOutputKind:
            engine.add_request(
                kind.name, "ABC", params(**{"max_tokens": 6, "output_kind": kind} | values)
            )
        seen = run(engine)
        final = seen["FINAL_ONLY"][-1].outputs[0]
        assert (final.text, len(final.token_ids)) == (text, num_tokens)
        assert (final.finish_reason, final.stop_reason) == (finish, reason)
        assert len(seen["FINAL_ONLY"]) == 1
        assert seen["CUMULATIVE"][-1].outputs[0] == final
        assert "".join(o.outputs[0].text for o in seen["DELTA"]) == text
        assert [i for o in seen["DELTA"] for i in o.outputs[0].token_ids] == final.token_ids
        for output in seen["CUMULATIVE"]:
            assert text.startswith(output.outputs[0].text)
        assert engine.stats().num_used_blocks == 0

    def test_special_stop_ids_cut_nothing(self) -> None:
        """User case 7: EOS as user's stop id, user's stop strings, ignore_eos."""
        for values, finish, reason in (
            ({}, "stop", None),
            ({"stop_token_ids": [EOS]}, "stop", None),
            ({"stop": ["\nObservation"]}, "stop", None),
            ({"ignore_eos": True, "stop_token_ids": [EOS]}, "stop", EOS),
        ):
            engine = scripted("ABC", "a text")
            engine.add_request(
                "a", "ABC", params(**{"max_tokens": 40, "ignore_eos": False} | values)
            )
            completion = run(engine)["a"][-1].outputs[0]
            assert completion.text == "a text"
            assert completion.token_ids[-1] == EOS
            assert (completion.finish_reason, completion.stop_reason) == (finish, reason)

    def test_ignored_end_ids_are_no_text(self) -> None:
        for skip, text in ((True, "ab"), (False, "ab" + "<eos>" * 38)):
            engine = scripted("ABC", "ab")
            engine.add_request("a", "ABC", params(max_tokens=40, skip_special_tokens=skip))
            completion = run(engine)["a"][-1].outputs[0]
            assert len(completion.token_ids) == 40
            assert completion.text == text

    @pytest.mark.parametrize(("include", "text"), [(False, ""), (True, " Paris")])
    def test_stop_id_that_is_text(self, include: bool, text: str) -> None:
        engine = scripted("France is", "", [b" Paris", b"."])
        paris = engine.tokenizer.vocab_size - 2
        engine.add_request(
            "a", "France is", params(stop_token_ids=[paris], include_stop_str_in_output=include)
        )
        completion = run(engine)["a"][-1].outputs[0]
        assert (completion.text, completion.token_ids) == (text, [paris])
        assert (completion.finish_reason, completion.stop_reason) == ("stop", paris)


class TestText:
    FAMILY = "Zoë → 你好, 👨‍👩‍👧‍👦 🇫🇷 é 🌶️ end"

    @pytest.mark.parametrize("max_tokens", [*range(1, 61), 100])
    def test_streams_whole_characters(self, max_tokens: int) -> None:
        """User case 4: whatever the length, a prefix of the text, never with U+FFFD."""
        data = self.FAMILY.encode()
        engine = scripted("p", "", [data[i : i + 2] for i in range(0, len(data), 2)])
        values = {"max_tokens": max_tokens, "ignore_eos": False}
        engine.add_request("delta", "p", params(**values, output_kind=RequestOutputKind.DELTA))
        engine.add_request("final", "p", params(**values, output_kind=RequestOutputKind.FINAL_ONLY))
        seen = run(engine)
        text = ""
        for output in seen["delta"]:
            text += output.outputs[0].text
            assert self.FAMILY.startswith(text)
        final = seen["final"][-1].outputs[0]
        assert final.text == text
        made = len(data) // 2 + len(data) % 2 + 1
        assert len(final.token_ids) == min(max_tokens, made)
        if max_tokens >= made:
            assert text == self.FAMILY


@pytest.mark.parametrize("ids", [5, None, ["a", 5], [["a"]]])
def test_ids_that_are_none_abort_nothing(ids: Any) -> None:
    engine = fake_engine()
    engine.add_request("a", "x", SamplingParams(max_tokens=3))
    with pytest.raises(RequestError, match="give a request's id, or several"):
        engine.abort_request(ids)
    assert engine.unfinished_request_ids == ["a"]
