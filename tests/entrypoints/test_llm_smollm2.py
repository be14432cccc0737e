"""Users' reports (stops, text, logprobs, seeds, bad input, replays) on the default model.

The numbers are transformers' in float32; margins between the best two tokens are at least 1.3
where exact ids are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.contracts.messages import CompletionOutput
from octavo.contracts.sampling_params import SamplingParams
from octavo.entrypoints.llm import LLM
from octavo.errors import PromptTooLongError, RequestError

pytestmark = pytest.mark.model

FRANCE = "The capital of France is"
EOS = 2


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    options: dict[str, Any] = {"max_model_len": 512, "num_gpu_blocks_override": 129}
    with LLM(str(smollm2_path), dtype="float32", num_threads=1, **options) as llm:
        yield llm


def answer(llm: LLM, prompt: Any, **params: Any) -> CompletionOutput:
    return llm.generate(prompt, SamplingParams(**{"temperature": 0} | params))[0].outputs[0]


def deltas(llm: LLM, prompt: Any, **params: Any) -> list[CompletionOutput]:
    return [o.outputs[0] for o in llm.stream(prompt, SamplingParams(**{"temperature": 0} | params))]


class TestText:
    def test_the_leading_space_stays(self, llm: LLM) -> None:
        """User case 4."""
        assert answer(llm, FRANCE, max_tokens=1).text == " Paris"
        assert [d.text for d in deltas(llm, FRANCE, max_tokens=1)] == [" Paris"]

    def test_text_is_what_the_tokenizer_decodes(self, llm: LLM) -> None:
        tokenizer = llm.get_tokenizer()
        for i, prompt in enumerate((FRANCE, "日本語で", "Liste: é, ü, ñ →", "🙂🙂")):
            out = answer(llm, prompt, max_tokens=16, temperature=1.0, seed=i, ignore_eos=True)
            decoded = tokenizer.decode(out.token_ids)
            assert out.text == decoded or decoded.startswith(out.text)
            assert decoded[len(out.text) :].strip("\ufffd") == ""

    def test_deltas_join_to_the_whole(self, llm: LLM) -> None:
        options = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "logprobs": 2}
        whole = answer(llm, FRANCE, **options)
        parts = deltas(llm, FRANCE, **options)
        assert "".join(d.text for d in parts) == whole.text
        assert [i for d in parts for i in d.token_ids] == whole.token_ids
        assert [e for d in parts for e in d.logprobs] == whole.logprobs
        assert parts[-1].cumulative_logprob == whole.cumulative_logprob
        assert parts[-1].finish_reason == whole.finish_reason


class TestStopTokens:
    """User case 7."""

    MESSAGES = ({"role": "user", "content": "What is the capital of France?"},)

    def test_end_of_sequence_as_a_stop_id(self, llm: LLM) -> None:
        def ask(**params: Any) -> CompletionOutput:
            params = {"temperature": 0, "max_tokens": 40} | params
            return llm.chat(list(self.MESSAGES), SamplingParams(**params))[0].outputs[0]

        plain = ask()
        assert "Paris" in plain.text
        assert plain.token_ids[-1] == EOS
        for params, reason in (
            ({"stop_token_ids": [EOS]}, None),
            ({"stop": ["\nObservation"]}, None),
            ({"ignore_eos": True, "stop_token_ids": [EOS]}, EOS),
        ):
            other = ask(**params)
            assert (other.text, other.token_ids) == (plain.text, plain.token_ids)
            assert (other.finish_reason, other.stop_reason) == ("stop", reason)
        ignored = ask(ignore_eos=True)
        assert len(ignored.token_ids) == 40
        assert ignored.finish_reason == "length"
        assert ignored.text.startswith(plain.text)
        assert "<|im_" not in ignored.text
        assert "<|im_end|>" in ask(ignore_eos=True, skip_special_tokens=False).text

    @pytest.mark.parametrize(("include", "text"), [(False, ""), (True, " Paris")])
    def test_a_stop_id_that_is_text(self, llm: LLM, include: bool, text: str) -> None:
        out = answer(llm, FRANCE, stop_token_ids=[7042], include_stop_str_in_output=include)
        assert (out.text, out.token_ids) == (text, [7042])
        assert (out.finish_reason, out.stop_reason) == ("stop", 7042)


class TestLogprobs:
    """User case 12: raw values, whatever the sampling filters; the right number of them."""

    def test_values(self, llm: LLM) -> None:
        out = answer(llm, FRANCE, max_tokens=1, temperature=1.5, top_p=0.01, seed=1, logprobs=3)
        (entry,) = out.logprobs
        found = [(e.decoded_token, e.rank) for e in entry.values()]
        assert found == [(" Paris", 1), (" the", 2), (" London", 3)]
        expected = [-0.258, -2.741, -4.384]
        assert [e.logprob for e in entry.values()] == pytest.approx(expected, abs=0.02)
        assert out.cumulative_logprob == pytest.approx(-0.258, abs=0.02)

    @pytest.mark.parametrize(("logprobs", "count"), [(0, 1), (5, 5)])
    def test_numbers(self, llm: LLM, logprobs: int, count: int) -> None:
        out = answer(llm, FRANCE, max_tokens=3, logprobs=logprobs)
        assert [len(e) for e in out.logprobs] == [count] * 3
        assert [next(iter(e)) for e in out.logprobs] == out.token_ids

    def test_the_whole_vocabulary(self, llm: LLM) -> None:
        (entry,) = answer(llm, FRANCE, max_tokens=1, logprobs=-1).logprobs
        assert len(entry) == 49152
        values = np.array([e.logprob for e in entry.values()])
        assert np.exp(values).sum() == pytest.approx(1, abs=1e-4)

    def test_too_many(self, llm: LLM) -> None:
        with pytest.raises(RequestError, match="logprobs"):
            answer(llm, FRANCE, logprobs=50_000)


class TestSeeds:
    """User case 13."""

    PARAMS = SamplingParams(temperature=0.8, seed=42, max_tokens=16, ignore_eos=True)

    def test_company_does_not_matter(self, llm: LLM) -> None:
        story = "Once upon a time, in a land far away,"
        (alone,) = llm.generate(story, self.PARAMS)
        unseeded = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
        prompts = [story, "Numbers: 1, 2,", story, *("A dog", "My name is", "def f(x):", "In 1999")]
        params = [self.PARAMS, unseeded, self.PARAMS, *[unseeded] * 4]
        outputs = llm.generate(prompts, params)
        for i in (0, 2):
            assert outputs[i].outputs[0].token_ids == alone.outputs[0].token_ids

    def test_several_completions(self, llm: LLM) -> None:
        def ids(n: int) -> list[list[int]]:
            params = SamplingParams(temperature=1.0, seed=7, n=n, max_tokens=8, ignore_eos=True)
            return [c.token_ids for c in llm.generate("Once upon a time", params)[0].outputs]

        four = ids(4)
        assert ids(8)[:4] == four
        assert ids(1) == four[:1]
        assert len(set(map(tuple, four))) > 1


class TestBadInput:
    def test_a_stop_of_one_letter_is_fine(self, llm: LLM) -> None:
        assert "x" not in answer(llm, FRANCE, stop="x", max_tokens=4).text

    def test_too_long(self, llm: LLM) -> None:
        """User case 38, at this engine's length."""
        for prompt_len, max_tokens in ((508, 5), (512, 1), (512, None), (513, 1)):
            with pytest.raises(PromptTooLongError, match="512"):
                answer(llm, [[9] * prompt_len], max_tokens=max_tokens)
        out = answer(llm, [[9] * 511], max_tokens=None, ignore_eos=True)
        assert (len(out.token_ids), out.finish_reason) == (1, "length")


class TestReplay:
    """User case 24: the same prompt again, from the cache, is bitwise the same."""

    @pytest.mark.parametrize(
        ("num_tokens", "cached"),
        [(1, 0), (15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (48, 32)],
    )
    def test_bitwise(self, llm: LLM, num_tokens: int, cached: int) -> None:
        prompt = [[1000 + 7 * num_tokens + i for i in range(num_tokens)]]
        params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True)
        first, *again = (llm.generate(prompt, params)[0] for _ in range(3))
        assert first.num_cached_tokens == 0
        for other in again:
            assert other.num_cached_tokens == cached
            assert other.outputs == first.outputs

    def test_salts(self, llm: LLM) -> None:
        """User case 26."""
        params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
        answers = [
            llm.generate({"prompt_token_ids": [65] * 33, **salt}, params)[0]
            for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}, {})
        ]
        assert [a.num_cached_tokens for a in answers] == [0, 0, 32, 0, 32]
        assert len({tuple(a.outputs[0].token_ids) for a in answers}) == 1
