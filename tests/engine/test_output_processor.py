"""Engine outputs to what the user sees: kinds, stops, n completions, ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.contracts.messages import (
    EngineOutput,
    FinishReason,
    LogprobRows,
    PromptProgress,
)
from octavo.contracts.sampling_params import RequestOutputKind
from octavo.engine.output_processor import OutputProcessor
from octavo.errors import RequestError
from tests.engine.fakes import EOS, ByteTokenizer
from tests.engine.output_lab import add, feed, rows_of, start, token_output

KINDS = list(RequestOutputKind)


class TestOutputKinds:
    STEPS = (
        token_output("a"),
        token_output("bc"),
        token_output("d", finish_reason=FinishReason.LENGTH),
    )

    @pytest.mark.parametrize(
        ("kind", "texts"),
        [
            (RequestOutputKind.CUMULATIVE, ["a", "abc", "abcd"]),
            (RequestOutputKind.DELTA, ["a", "bc", "d"]),
            (RequestOutputKind.FINAL_ONLY, ["abcd"]),
        ],
    )
    def test_text_and_ids(self, kind: RequestOutputKind, texts: list[str]) -> None:
        processor = start(output_kind=kind)
        seen = [o for step in self.STEPS for o in feed(processor, step)]
        assert [o.outputs[0].text for o in seen] == texts
        assert [bytes(o.outputs[0].token_ids).decode() for o in seen] == texts
        assert [o.finished for o in seen] == [False] * (len(texts) - 1) + [True]
        last = seen[-1]
        assert (last.request_id, last.prompt, last.prompt_token_ids) == ("r", "Hi", [72, 105])
        assert last.outputs[0].finish_reason == "length"
        assert last.outputs[0].stop_reason is None
        assert processor.num_unfinished == 0

    def test_deltas_of_withheld_text(self) -> None:
        processor = start(output_kind=RequestOutputKind.DELTA, stop="xyz")
        deltas = [
            feed(processor, token_output(t, finish_reason=r))[0].outputs[0]
            for t, r in (
                ("a", None),
                ("x", None),
                ("y", None),
                ("!", None),
                ("x", FinishReason.LENGTH),
            )
        ]
        assert [d.text for d in deltas] == ["a", "", "", "xy!", "x"]
        assert [bytes(d.token_ids) for d in deltas] == [b"a", b"x", b"y", b"!", b"x"]

    def test_without_detokenizing(self) -> None:
        processor = start(detokenize=False, logprobs=0)
        rows = LogprobRows(
            token_ids=np.array([[97]], np.int32),
            logprobs=np.array([[-1.0]], np.float32),
            ranks=np.array([1], np.int32),
        )
        (output,) = feed(processor, token_output("a", logprobs=rows))
        assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [97])
        assert output.outputs[0].logprobs[0][97].decoded_token is None


class TestEnds:
    def test_stop_string_aborts_the_rest_and_drops_late_tokens(self) -> None:
        processor = start(stop="cd")
        feed(processor, token_output("ab"))
        result = processor.process_outputs([token_output("cdef")])
        assert result.to_abort == {"r": FinishReason.STOP}
        completion = result.request_outputs[0].outputs[0]
        assert (completion.text, completion.token_ids) == ("ab", list(b"abcd"))
        assert (completion.finish_reason, completion.stop_reason) == ("stop", "cd")
        assert "r" not in processor
        late = processor.process_outputs([token_output("g", finish_reason=FinishReason.LENGTH)])
        assert (late.request_outputs, late.to_abort) == ([], {})

    def test_stop_string_at_the_last_token_wins_over_length(self) -> None:
        processor = start(stop="b")
        result = processor.process_outputs([token_output("ab", finish_reason=FinishReason.LENGTH)])
        completion = result.request_outputs[0].outputs[0]
        assert (completion.text, completion.finish_reason, completion.stop_reason) == (
            "a",
            "stop",
            "b",
        )
        assert result.to_abort == {}, "the core has ended it already"

    @pytest.mark.parametrize(
        ("options", "text"), [({}, "a"), ({"include_stop_str_in_output": True}, "ab")]
    )
    def test_stop_token(self, options: dict[str, bool], text: str) -> None:
        processor = start(stop_token_ids=[98], **options)
        (output,) = feed(
            processor, token_output("ab", finish_reason=FinishReason.STOP, stop_reason=98)
        )
        completion = output.outputs[0]
        assert (completion.text, completion.token_ids) == (text, [97, 98])
        assert (completion.finish_reason, completion.stop_reason) == ("stop", 98)

    def test_end_of_sequence_has_no_stop_reason_and_no_text(self) -> None:
        processor = start(skip_special_tokens=False)
        output = EngineOutput(
            request_id="r", new_token_ids=[97, EOS], finish_reason=FinishReason.STOP
        )
        completion = feed(processor, output)[0].outputs[0]
        assert (completion.text, completion.token_ids) == ("a", [97, EOS])
        assert (completion.finish_reason, completion.stop_reason) == ("stop", None)

    def test_error_of_one_request(self) -> None:
        processor = start()
        add(processor, "s")
        failed, fine = feed(
            processor,
            EngineOutput(request_id="r", finish_reason=FinishReason.ERROR, error="it broke"),
            token_output("a", "s"),
        )
        assert failed.finished
        assert (failed.outputs[0].finish_reason, failed.outputs[0].error) == ("error", "it broke")
        assert not fine.finished
        assert "s" in processor

    @pytest.mark.parametrize("kind", KINDS)
    def test_abort_gives_what_there_is(self, kind: RequestOutputKind) -> None:
        processor = start(output_kind=kind, stop="xyz")
        feed(processor, token_output("ax"))
        result = processor.abort_requests(["r", "unknown"])
        assert result.to_abort == {"r": FinishReason.ABORT}
        (output,) = result.request_outputs
        assert output.finished
        assert output.outputs[0].finish_reason == "abort"
        assert output.outputs[0].text == ("x" if kind is RequestOutputKind.DELTA else "ax")
        assert feed(processor, token_output("b")) == []
        add(processor, "r")


class TestFailures:
    def test_of_one_request_is_its_own(self) -> None:
        """A tokenizer that breaks on one id, whatever the reason: the neighbours go on."""

        class Broken(ByteTokenizer):
            def token_bytes(self, token_id: int) -> bytes:
                if token_id == ord("!"):
                    raise KeyError(token_id)
                return super().token_bytes(token_id)

        processor = OutputProcessor(Broken())
        for request_id in ("bad", "good", "ending"):
            add(processor, request_id)
        feed(processor, token_output("ab", "bad"))
        result = processor.process_outputs(
            [
                token_output("!", "bad"),
                token_output("c", "good"),
                token_output("!", "ending", finish_reason=FinishReason.LENGTH),
            ]
        )
        bad, good, ending = result.request_outputs
        assert (bad.finished, good.finished, ending.finished) == (True, False, True)
        assert (bad.outputs[0].text, bad.outputs[0].finish_reason) == ("ab", "error")
        assert "KeyError" in str(bad.outputs[0].error)
        assert good.outputs[0].text == "c"
        assert result.to_abort == {"bad": FinishReason.ERROR}, "the core has ended the other"
        assert processor.num_unfinished == 1


class TestSeveralCompletions:
    def outputs(self, text: str, *indices: int, **fields: Any) -> list[EngineOutput]:
        return [token_output(text, f"{i}_r", **fields) for i in indices]

    def test_cumulative_has_all_in_order(self) -> None:
        processor = start(n=3)
        (output,) = feed(processor, *self.outputs("a", 2, 0))
        assert [(c.index, c.text) for c in output.outputs] == [(0, "a"), (1, ""), (2, "a")]
        (output,) = feed(processor, *self.outputs("b", 0, 1, finish_reason=FinishReason.LENGTH))
        assert [c.finish_reason for c in output.outputs] == ["length", "length", None]
        assert not output.finished
        (output,) = feed(processor, *self.outputs("c", 2, finish_reason=FinishReason.LENGTH))
        assert [(c.index, c.text) for c in output.outputs] == [(0, "ab"), (1, "b"), (2, "ac")]
        assert output.finished

    def test_delta_has_those_with_news(self) -> None:
        processor = start(n=3, output_kind=RequestOutputKind.DELTA)
        (output,) = feed(processor, *self.outputs("a", 2, 0))
        assert [(c.index, c.text) for c in output.outputs] == [(0, "a"), (2, "a")]

    def test_final_only_waits_for_all(self) -> None:
        processor = start(n=2, output_kind=RequestOutputKind.FINAL_ONLY)
        assert feed(processor, *self.outputs("a", 0, finish_reason=FinishReason.LENGTH)) == []
        (output,) = feed(processor, *self.outputs("b", 1, finish_reason=FinishReason.LENGTH))
        assert [c.text for c in output.outputs] == ["a", "b"]

    def test_a_stop_string_ends_one_of_them(self) -> None:
        processor = start(n=2, stop="x")
        result = processor.process_outputs(self.outputs("x", 0) + self.outputs("y", 1))
        assert result.to_abort == {"0_r": FinishReason.STOP}
        assert [c.finish_reason for c in result.request_outputs[0].outputs] == ["stop", None]
        result = processor.abort_requests(["r"])
        assert result.to_abort == {"1_r": FinishReason.ABORT}
        assert [c.finish_reason for c in result.request_outputs[0].outputs] == ["stop", "abort"]

    def test_cached_tokens_are_those_of_the_first(self) -> None:
        processor = start(n=2)
        feed(processor, token_output("a", "1_r", num_cached_tokens=16))
        (output,) = feed(processor, token_output("a", "0_r", num_cached_tokens=32))
        assert output.num_cached_tokens == 32
        (output,) = feed(processor, token_output("a", "0_r"))
        assert output.num_cached_tokens == 32

    def test_ids_in_use(self) -> None:
        processor = start(n=2)
        for request_id in ("r", "0_r", "1_r"):
            with pytest.raises(RequestError, match="in use"):
                add(processor, request_id)
        add(processor, "2_r")


class TestStreamInterval:
    def test_first_and_last_come_at_once(self) -> None:
        processor = start(output_kind=RequestOutputKind.DELTA, stream_interval=3)
        steps = [token_output(c) for c in "abcdefgh"]
        steps.append(token_output("i", finish_reason=FinishReason.LENGTH))
        seen = [[o.outputs[0].text for o in feed(processor, step)] for step in steps]
        assert seen == [["a"], [], [], ["bcd"], [], [], ["efg"], [], ["hi"]]

    def test_each_of_n_by_itself(self) -> None:
        processor = start(n=2, output_kind=RequestOutputKind.DELTA, stream_interval=2)
        seen = []
        for first, second in (("a", ""), ("b", "x"), ("c", "y"), ("", "z")):
            outputs = [token_output(t, f"{i}_r") for i, t in enumerate((first, second)) if t]
            made = feed(processor, *outputs)
            seen.append([(c.index, c.text) for o in made for c in o.outputs])
        assert seen == [[(0, "a")], [(1, "x")], [(0, "bc")], [(1, "yz")]]


class TestBestOf:
    def test_the_best_come_back_ranked(self) -> None:
        processor = start(n=2, best_of=4, output_kind=RequestOutputKind.DELTA)
        made = []
        for i, logprob in enumerate((-3.0, -1.0, -1.0, -2.0)):
            rows = LogprobRows(
                np.array([[97 + i]], np.int32),
                np.array([[logprob]], np.float32),
                np.array([1], np.int32),
            )
            output = token_output(
                chr(97 + i), f"{i}_r", logprobs=rows, finish_reason=FinishReason.LENGTH
            )
            made += feed(processor, output)
        (last,) = made
        assert last.finished
        assert [(c.index, c.text, c.cumulative_logprob) for c in last.outputs] == [
            (0, "b", -1.0),
            (1, "c", -1.0),
        ]
        assert [c.logprobs for c in last.outputs] == [None, None]
        assert processor.num_unfinished == 0

    def test_what_failed_is_last(self) -> None:
        processor = start(n=1, best_of=2)
        failed = EngineOutput(request_id="0_r", finish_reason=FinishReason.ERROR, error="x")
        rows = rows_of("b")
        good = token_output("b", "1_r", logprobs=rows, finish_reason=FinishReason.LENGTH)
        (last,) = feed(processor, failed, good)
        assert [c.text for c in last.outputs] == ["b"]


@pytest.mark.parametrize("kind", KINDS)
def test_progress_comes_by_itself(kind: RequestOutputKind) -> None:
    processor = start(output_kind=kind, report_progress=True)
    reports = [PromptProgress(3, 0), PromptProgress(None, 16)]
    heard = [
        made
        for report in reports
        for made in feed(processor, EngineOutput(request_id="r", progress=report))
    ]
    if kind is RequestOutputKind.FINAL_ONLY:
        assert heard == []
    else:
        assert [o.progress for o in heard] == reports
        assert not any(o.outputs or o.finished for o in heard)
    [last] = feed(processor, token_output("a", finish_reason=FinishReason.LENGTH))
    assert last.progress is None
    assert (last.outputs[0].text, last.outputs[0].token_ids) == ("a", [97])


def test_progress_of_a_prompt_whose_logprobs_come() -> None:
    """It is told although the other outputs wait until these are complete."""
    processor = start(prompt_logprobs=0, report_progress=True)
    report = PromptProgress(None, 1)
    [heard] = feed(processor, EngineOutput(request_id="r", progress=report))
    assert (heard.progress, heard.prompt_logprobs) == (report, None)
    rows = LogprobRows(np.array([[105]], np.int32), np.array([[-1.0]], np.float32), np.array([1]))
    assert feed(processor, EngineOutput(request_id="r", prompt_logprobs=rows)) == []
    [first] = feed(processor, token_output("a"))
    assert first.prompt_logprobs is not None
