"""Log probabilities of outputs and prompts, as the user sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.contracts.logprobs import FlatLogprobs
from octavo.contracts.messages import (
    EngineOutput,
    FinishReason,
    Logprob,
    LogprobRows,
    RequestOutput,
)
from octavo.contracts.sampling_params import RequestOutputKind
from octavo.engine.output_processor import OutputProcessor
from tests.engine.output_lab import feed, rows_of, start, token_output


class TestLogprobs:
    def rows(self, *rows: tuple[int, list[tuple[int, float]]]) -> LogprobRows:
        return LogprobRows(
            token_ids=np.array([[i for i, _ in r] for _, r in rows], np.int32),
            logprobs=np.array([[p for _, p in r] for _, r in rows], np.float32),
            ranks=np.array([rank for rank, _ in rows], np.int32),
        )

    def test_sampled_first_then_the_best(self) -> None:
        processor = start(logprobs=2)
        rows = self.rows(
            (5, [(97, -4.0), (98, -0.5), (99, -1.5)]), (1, [(98, -0.25), (98, -0.25), (99, -2.0)])
        )
        (output,) = feed(processor, token_output("ab", logprobs=rows))
        first, second = output.outputs[0].logprobs
        assert [(i, p.logprob, p.rank, p.decoded_token) for i, p in first.items()] == [
            (97, -4.0, 5, "a"),
            (98, -0.5, 1, "b"),
            (99, -1.5, 2, "c"),
        ]
        assert [(i, p.logprob, p.rank) for i, p in second.items()] == [
            (98, -0.25, 1),
            (99, -2.0, 2),
        ]
        assert output.outputs[0].cumulative_logprob == -4.25

    def test_deltas_join_to_the_whole_and_the_sum_goes_on(self) -> None:
        processor = start(logprobs=0, output_kind=RequestOutputKind.DELTA)
        seen = [
            feed(processor, token_output(t, logprobs=self.rows((1, [(ord(t), p)]))))[0].outputs[0]
            for t, p in (("a", -1.0), ("b", -0.5))
        ]
        assert [list(entry) for d in seen for entry in d.logprobs] == [[97], [98]]
        assert [d.cumulative_logprob for d in seen] == [-1.0, -1.5]

    def test_tokens_after_a_stop_string_have_none(self) -> None:
        processor = start(logprobs=0, stop="b")
        rows = self.rows((1, [(97, -1.0)]), (1, [(98, -1.0)]), (1, [(99, -1.0)]))
        (output,) = feed(processor, token_output("abc", logprobs=rows))
        completion = output.outputs[0]
        assert [list(e) for e in completion.logprobs] == [[i] for i in completion.token_ids]
        assert completion.token_ids == [97, 98]
        assert completion.cumulative_logprob == -2.0

    def test_a_part_of_a_character(self) -> None:
        processor = start(logprobs=0)
        output = EngineOutput(
            request_id="r", new_token_ids=[0xE4], logprobs=self.rows((1, [(0xE4, -1.0)]))
        )
        (made,) = feed(processor, output)
        assert made.outputs[0].text == ""
        assert made.outputs[0].logprobs[0][0xE4].decoded_token == "\ufffd"

    def test_not_asked_for(self) -> None:
        (output,) = feed(start(), token_output("a"))
        assert output.outputs[0].logprobs is None
        assert output.outputs[0].cumulative_logprob is None


class TestPromptLogprobs:
    """The prompt is "Hello!"; its rows are about "ello!"."""

    STEPS = (
        EngineOutput(request_id="r", prompt_logprobs=rows_of("ell")),
        EngineOutput(request_id="r", new_token_ids=[97], prompt_logprobs=rows_of("o!", 4)),
        token_output("b", finish_reason=FinishReason.LENGTH),
    )

    def start(self, **params: Any) -> OutputProcessor:
        return start(prompt="Hello!", prompt_logprobs=1, **params)

    def check(self, output: RequestOutput) -> None:
        assert output.prompt_logprobs is not None
        first, *others = output.prompt_logprobs
        assert first is None
        for i, (entry, char) in enumerate(zip(others, "ello!", strict=True), start=1):
            assert entry is not None
            assert list(entry) == [ord(char), ord("z")]
            assert entry[ord(char)] == Logprob(-float(i), 3, char)
            assert entry[ord("z")] == Logprob(-0.5, 1, "z")

    @pytest.mark.parametrize(
        ("kind", "texts"),
        [
            (RequestOutputKind.CUMULATIVE, ["a", "ab"]),
            (RequestOutputKind.DELTA, ["a", "b"]),
            (RequestOutputKind.FINAL_ONLY, ["ab"]),
        ],
    )
    def test_they_come_with_every_output(self, kind: RequestOutputKind, texts: list[str]) -> None:
        processor = self.start(output_kind=kind)
        seen = [o for step in self.STEPS for o in feed(processor, step)]
        assert [o.outputs[0].text for o in seen] == texts
        for output in seen:
            self.check(output)

    def test_nothing_is_told_before_they_are_complete(self) -> None:
        """Another completion may be faster, where the first one was preempted."""
        processor = self.start(n=2, output_kind=RequestOutputKind.DELTA)
        assert feed(processor, token_output("x", "1_r")) == []
        rows = (rows_of("ell"), rows_of("o!", 4))
        assert feed(processor, EngineOutput(request_id="0_r", prompt_logprobs=rows[0])) == []
        (output,) = feed(
            processor,
            EngineOutput(request_id="0_r", new_token_ids=[97], prompt_logprobs=rows[1]),
            token_output("y", "1_r"),
        )
        assert [(c.index, c.text) for c in output.outputs] == [(0, "a"), (1, "xy")]
        self.check(output)

    def test_a_prompt_of_one_token_has_only_the_none(self) -> None:
        processor = start(prompt=[72], prompt_logprobs=0)
        (output,) = feed(processor, token_output("a"))
        assert output.prompt_logprobs == [None]

    def test_a_request_that_ends_early_has_none(self) -> None:
        processor = self.start()
        assert feed(processor, self.STEPS[0]) == []
        (output,) = processor.abort_requests(["r"]).request_outputs
        assert output.finished
        assert output.prompt_logprobs is None

    def test_nobody_else_has_any(self) -> None:
        (output,) = feed(start(), token_output("a"))
        assert output.prompt_logprobs is None


def test_listed_ids_have_no_rank() -> None:
    processor = start(logprob_token_ids=[120, 98], logprobs=1)
    rows = LogprobRows(
        np.array([[97, 98, 120, 98]], np.int32),
        np.array([[-2.0, -0.5, -7.0, -0.5]], np.float32),
        np.array([3], np.int32),
    )
    (output,) = feed(processor, token_output("a", logprobs=rows))
    assert output.outputs[0].logprobs == [
        {97: Logprob(-2.0, 3, "a"), 98: Logprob(-0.5, 1, "b"), 120: Logprob(-7.0, None, "x")}
    ]


def test_prompt_logprobs_from_a_position_on() -> None:
    processor = start(prompt_logprobs=0, prompt_logprob_start=2, flat_logprobs=True)
    (output,) = feed(processor, token_output("a"))  # the prompt has two tokens
    assert output.prompt_logprobs == [None, None]
    processor = start(prompt_logprobs=0)
    assert feed(processor, token_output("a")) == []


def test_flat_log_probabilities() -> None:
    """They read as the lists that they stand for."""
    plain, flat = start(logprobs=1), start(logprobs=1, flat_logprobs=True)
    for step in ("ab", "c"):
        output = token_output(step, logprobs=rows_of(step))
        (ours,), (theirs,) = feed(flat, output), feed(plain, output)
    assert isinstance(ours.outputs[0].logprobs, FlatLogprobs)
    assert ours.outputs[0].logprobs == theirs.outputs[0].logprobs
    assert ours.outputs[0].cumulative_logprob == theirs.outputs[0].cumulative_logprob
