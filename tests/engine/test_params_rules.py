"""Parameters that only an engine can check, and what each completion gets of them."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.contracts.sampling_params import SamplingParams
from octavo.errors import RequestError
from tests.engine.test_input_processor import VOCAB, make, process


def test_only_the_first_completion_tells_about_the_prompt() -> None:
    request = make().process("r", "Hi", SamplingParams(n=3, prompt_logprobs=2, logprobs=1))
    params = [r.sampling_params for r in request.engine_requests]
    assert [p.prompt_logprobs for p in params if p] == [2, None, None]
    assert [p.logprobs for p in params if p] == [1, 1, 1]
    assert request.params.prompt_logprobs == 2


class TestSampling:
    """What only a model, a tokenizer or the engine's processors can tell of parameters."""

    @pytest.mark.parametrize(
        ("values", "says"),
        [
            ({"stop_regex": "(a"}, "stop_regex '(a' is not a regular expression"),
            ({"logits_processors": [lambda x: x]}, "must take (output_ids, logits)"),
            ({"extra_args": {"x": 1}}, "extra_args are for logits processors, and the engine has"),
            ({"logprob_token_ids": [VOCAB]}, f"logprob_token_ids holds {VOCAB}"),
            ({"trace_decode_token_ids": [VOCAB]}, f"trace_decode_token_ids holds {VOCAB}"),
            (
                {"prompt_logprobs": 0, "prompt_logprob_start": 4},
                "prompt_logprob_start=4 is behind the prompt's 3 tokens",
            ),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
    )
    def test_refused(self, values: dict[str, Any], says: str) -> None:
        with pytest.raises(RequestError) as caught:
            process("abc", SamplingParams(**values))
        assert says in str(caught.value)
        assert caught.value.param in values

    def test_log_probabilities_of_a_request_are_bounded(self) -> None:
        processor = make(2**20)
        per_token = 1 + VOCAB
        most = 2**22 // per_token
        for values in ({"logprobs": -1, "max_tokens": most}, {"prompt_logprobs": -1}):
            processor.process("r", [1] * most, SamplingParams(**values))
        for name, prompt, values in (
            ("logprobs", [1], {"logprobs": -1, "max_tokens": most + 1}),
            ("prompt_logprobs", [1] * (most + 1), {"prompt_logprobs": -1}),
            ("prompt_logprobs", [1] * (2**20 - 20), {"prompt_logprobs": 4}),
        ):
            with pytest.raises(RequestError, match="at most 4194304: ask for fewer") as caught:
                processor.process("r", prompt, SamplingParams(**values))
            assert caught.value.param == name
        start = {"prompt_logprobs": -1, "prompt_logprob_start": 1}
        processor.process("r", [1] * (most + 1), SamplingParams(**start))

    def test_marks_of_reasoning(self) -> None:
        plain = process("abc").engine_requests[0]
        assert plain.thinking is None
        request = process("abc", SamplingParams(thinking_token_budget=5)).engine_requests[0]
        assert request.thinking is not None
        assert bytes(request.thinking.start_ids) == b"<think>"
        assert bytes(request.thinking.end_ids) == b"</think>"
        other = make(reasoning_start_str="[", reasoning_end_str="]")
        request = other.process("r", "a", SamplingParams(thinking_token_budget=5)).engine_requests[
            0
        ]
        assert request.thinking is not None
        assert (request.thinking.start_ids, request.thinking.end_ids) == ([91], [93])
        with pytest.raises(RequestError, match="reasoning_start_str") as caught:
            make(reasoning_end_str="").process("r", "a", SamplingParams(thinking_token_budget=5))
        assert caught.value.param == "thinking_token_budget"

    def test_a_ranking_asks_for_log_probabilities_of_all(self) -> None:
        request = process("abc", SamplingParams(n=2, best_of=3, prompt_logprobs=1))
        params = [r.sampling_params for r in request.engine_requests]
        assert [p.logprobs for p in params if p] == [0, 0, 0]
        assert [p.prompt_logprobs for p in params if p] == [1, None, None]
        assert request.params.logprobs is None

    def test_processors_check_parameters(self) -> None:
        processor = make(logits_processors=("tests.sample.processors:Shift",))
        processor.process("r", "a", SamplingParams(extra_args={"shift": 1}))
        with pytest.raises(RequestError, match="Shift: shift='x' must be a number") as caught:
            processor.process("r", "a", SamplingParams(extra_args={"shift": "x"}))
        assert caught.value.param == "extra_args"
