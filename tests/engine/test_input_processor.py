"""What is wrong with a request is found, named and refused before the core hears of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.config.sections import ModelConfig
from octavo.contracts.codec import Decoder, Encoder
from octavo.contracts.messages import EngineRequest, ServiceClass
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.engine.input_processor import InputProcessor, ProcessedRequest
from octavo.errors import ModelError, PromptTooLongError, RequestError
from tests.engine.fakes import EOS, ByteTokenizer

VOCAB = 259


def make(
    max_model_len: int = 64,
    *,
    tokenizer: ByteTokenizer | None = None,
    generation_config: dict[str, Any] | None = None,
    **config: Any,
) -> InputProcessor:
    return InputProcessor(
        ModelConfig(max_model_len=max_model_len, **config),
        tokenizer or ByteTokenizer(),
        vocab_size=VOCAB,
        hidden_size=8,
        generation_config=generation_config or {},
    )


def process(prompt: Any, params: SamplingParams | None = None, **options: Any) -> ProcessedRequest:
    return make().process("r", prompt, params or SamplingParams(), **options)


class TestPromptForms:
    @pytest.mark.parametrize(
        ("prompt", "text"),
        [
            ("Hi", "Hi"),
            ({"prompt": "Hi"}, "Hi"),
            ([72, 105], None),
            ((72, 105), None),
            ({"prompt_token_ids": [72, 105]}, None),
            ({"prompt_token_ids": [72, 105], "prompt": "as it is shown"}, "as it is shown"),
            ([np.int64(72), np.int32(105)], None),
        ],
    )
    def test_accepted(self, prompt: Any, text: str | None) -> None:
        request = process(prompt)
        assert request.prompt == text
        assert request.prompt_token_ids == [72, 105]
        assert {type(i) for i in request.prompt_token_ids} == {int}
        assert request.engine_requests[0].prompt_token_ids == [72, 105]

    @pytest.mark.parametrize(
        ("prompt", "part"),
        [
            (None, "NoneType"),
            (7, "int"),
            (b"Hi", "bytes"),
            ({"prompt": 7}, "int"),
            ({"prompt": None}, "NoneType"),
            ({"prompt_token_ids": "Hi"}, "str"),
            ({"prompt_token_ids": None}, "NoneType"),
            ({}, "give 'prompt'"),
            ({"prompt": 7, "prompt_token_ids": [1]}, "int"),
            ({"prompt": "Hi", "prompt_token_ids": None}, "NoneType"),
            ({"text": "Hi"}, "'text'"),
            ({"prompt": "Hi", "multi_modal_data": {}}, "multi_modal_data"),
            ({1: 2}, "'1'"),
            ([True], "True"),
            ([1.0], "1.0"),
            (["a", "b"], "'a'"),
            ([[1]], "[1]"),
            ([-1], "-1"),
            ([VOCAB], "0…258"),
            ([5279552648203111001], "5279552648203111001"),
            ([10**30], "0…258"),
            ([10**5000], "0…258"),
            ([], "empty"),
            ("", "empty"),
            ({"prompt": ""}, "empty"),
            ({"prompt_token_ids": []}, "empty"),
            ("\ud800", "surrogate"),
        ],
    )
    def test_refused(self, prompt: Any, part: str) -> None:
        with pytest.raises(RequestError) as caught:
            process(prompt)
        assert part in str(caught.value)
        assert caught.value.param == "prompt"

    def test_empty_text_is_a_prompt_where_the_tokenizer_adds_bos(self) -> None:
        class WithBos(ByteTokenizer):
            def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
                return [257, *super().encode(text)]

        request = make(tokenizer=WithBos()).process("r", "", SamplingParams())
        assert request.prompt_token_ids == [257]


class TestLength:
    """User case 38, with max_model_len=64."""

    @pytest.mark.parametrize(
        ("num_prompt_tokens", "max_tokens", "given"),
        [(60, 4, 4), (63, None, 1), (1, None, 63), (63, 1, 1)],
    )
    def test_fits(self, num_prompt_tokens: int, max_tokens: int | None, given: int) -> None:
        params = SamplingParams(max_tokens=max_tokens)
        request = process([1] * num_prompt_tokens, params)
        assert request.params.max_tokens == given
        assert request.engine_requests[0].sampling_params.max_tokens == given
        assert params.max_tokens == max_tokens, "the caller's object changed"

    @pytest.mark.parametrize(
        ("num_prompt_tokens", "max_tokens", "named"),
        [
            (60, 5, ("64", "60", "5")),
            (64, 1, ("64",)),
            (64, None, ("64",)),
            (65, 1, ("64", "65")),
            (10_000, 1, ("64", "10000")),
        ],
    )
    def test_does_not_fit(
        self, num_prompt_tokens: int, max_tokens: int | None, named: tuple[str, ...]
    ) -> None:
        for prompt in ([1] * num_prompt_tokens, "x" * num_prompt_tokens):
            with pytest.raises(PromptTooLongError) as caught:
                process(prompt, SamplingParams(max_tokens=max_tokens))
            assert all(n in str(caught.value) for n in named)

    def test_a_text_that_cannot_fit_is_not_tokenized(self) -> None:
        class Counting(ByteTokenizer):
            calls = 0

            def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
                self.calls += 1
                return super().encode(text)

        tokenizer = Counting()
        with pytest.raises(PromptTooLongError, match="1000000 characters"):
            make(tokenizer=tokenizer).process("r", "x" * 1_000_000, SamplingParams())
        assert tokenizer.calls == 0
        longest = max(len(tokenizer.token_bytes(i)) for i in range(VOCAB))
        with pytest.raises(PromptTooLongError, match="tokens"):
            make(tokenizer=tokenizer).process("r", "x" * (64 * longest), SamplingParams())
        assert tokenizer.calls == 1

    def test_min_tokens_must_fit(self) -> None:
        with pytest.raises(PromptTooLongError, match="min_tokens=5"):
            process([1] * 60, SamplingParams(max_tokens=None, min_tokens=5))
        process([1] * 60, SamplingParams(max_tokens=None, min_tokens=4))


class TestOptions:
    @pytest.mark.parametrize("salt", ["a", "a/b", "x" * 128, "ünï"])
    def test_cache_salt(self, salt: str) -> None:
        for request in (
            process("Hi", cache_salt=salt),
            process({"prompt": "Hi", "cache_salt": salt}),
        ):
            assert request.engine_requests[0].cache_salt == salt

    @pytest.mark.parametrize("salt", ["", "x" * 129, 7, b"a", "\ud800", "x" * 10_240])
    def test_wrong_cache_salt(self, salt: Any) -> None:
        with pytest.raises(RequestError, match="cache_salt"):
            process("Hi", cache_salt=salt)

    def test_cache_salt_twice(self) -> None:
        with pytest.raises(RequestError, match="twice"):
            process({"prompt": "Hi", "cache_salt": "a"}, cache_salt="b")

    def test_service_class(self) -> None:
        assert process("Hi").engine_requests[0].service_class is ServiceClass.INTERACTIVE
        processor = make()
        (checked,) = processor.check(["Hi"], [SamplingParams()])
        (request,) = processor.begin("r", checked, service_class=ServiceClass.BATCH).engine_requests
        assert request.service_class is ServiceClass.BATCH
        copy = Decoder(EngineRequest).decode(Encoder().encode(request))
        assert copy.service_class is ServiceClass.BATCH

    @pytest.mark.parametrize("priority", [-(2**31), 0, 2**31 - 1])
    def test_priority(self, priority: int) -> None:
        assert process("Hi", priority=priority).engine_requests[0].priority == priority

    @pytest.mark.parametrize(
        "priority", [2**31, -(2**31) - 1, pytest.param(10**5000, id="huge"), 1.0, True, "1", None]
    )
    def test_wrong_priority(self, priority: Any) -> None:
        with pytest.raises(RequestError, match="priority"):
            process("Hi", priority=priority)

    @pytest.mark.parametrize("request_id", ["", "x" * 257, 7, None, "\ud800"])
    def test_wrong_request_id(self, request_id: Any) -> None:
        with pytest.raises(RequestError, match="request_id"):
            make().process(request_id, "Hi", SamplingParams())

    @pytest.mark.parametrize("params", [None, {"temperature": 0}, "greedy"])
    def test_wrong_params(self, params: Any) -> None:
        with pytest.raises(RequestError, match="SamplingParams"):
            make().process("r", "Hi", params)

    @pytest.mark.parametrize(
        "options",
        [{"stop_token_ids": [VOCAB]}, {"stop_token_ids": [-1], "min_tokens": 4}, {"logprobs": 300}],
    )
    def test_ids_outside_the_vocabulary(self, options: dict[str, Any]) -> None:
        with pytest.raises(RequestError):
            process("Hi", SamplingParams(**options))

    @pytest.mark.parametrize(
        ("prompt", "params", "options"),
        [
            ([], {}, {}),
            ([VOCAB], {}, {}),
            ([1, -1], {}, {}),
            ([1] * 64, {"max_tokens": None}, {}),
            ([1] * 60, {"max_tokens": 5}, {}),
            ([1] * 60, {"max_tokens": None, "min_tokens": 5}, {}),
            ([1], {"stop_token_ids": [VOCAB]}, {}),
            ([1], {"logit_bias": {VOCAB: 1.0}}, {}),
            ([1], {"stop_regex": "(a"}, {}),
            ([1], {"structured_outputs": StructuredOutputsParams(structural_tag={})}, {}),
            ([1], {"extra_args": {"a": 1}}, {}),
            ([1], {"bad_words": ["x" * 1024]}, {}),
            ([1], {"logprobs": -1, "max_tokens": 10**6}, {}),
            ([1], {}, {"priority": 2**31}),
            ([1], {}, {"cache_salt": ""}),
        ],
        ids=repr,
    )
    def test_refused_before_it_begins(
        self, prompt: list[int], params: dict[str, Any], options: dict[str, Any]
    ) -> None:
        with pytest.raises(RequestError):
            make().check([prompt], [SamplingParams(**params)], **options)

    def test_check_begins_nothing(self) -> None:
        processor = make()
        processor.check([[1], [2]], [SamplingParams()] * 2)
        processor.check([[1] * 64], [PoolingParams()])
        assert processor.process("r", "Hi", SamplingParams()).params.seed == (
            make().process("r", "Hi", SamplingParams()).params.seed
        )

    def test_what_was_checked_can_be_begun_more_than_once(self) -> None:
        """Each time with a seed of its own; the grammar is worked out for all prompts at once."""
        processor = make()
        schema = StructuredOutputsParams(json={"type": "object"})
        params = SamplingParams(structured_outputs=schema, n=2)
        one, other = processor.check([[1], [2]], [params, params])
        assert one.derived is other.derived
        begun = [processor.begin(name, one) for name in ("a", "b")]
        assert begun[0].params.seed != begun[1].params.seed
        assert one.params.seed is None
        for request in begun:
            assert request.params.structured_outputs is None
            assert [r.grammar for r in request.engine_requests] == [one.derived.grammar] * 2
        with pytest.raises(RequestError, match="request_id"):
            processor.begin("", one)

    @pytest.mark.parametrize(
        ("params", "expected"),
        [
            ({}, None),
            ({"allowed_token_ids": [65, 66]}, [65, 66]),
            ({"allowed_token_ids": [65, 66], "bad_words": ["A"]}, [66]),
            ({"allowed_token_ids": [65], "bad_words": ["AB"]}, [65]),
            ({"allowed_token_ids": [65, 66], "stop_token_ids": [65], "min_tokens": 1}, [66]),
            ({"allowed_token_ids": [65, 66], "stop_token_ids": [65]}, [65, 66]),
            ({"allowed_token_ids": [EOS], "min_tokens": 1, "ignore_eos": True}, [EOS]),
        ],
    )
    def test_first_tokens(self, params: dict[str, Any], expected: list[int] | None) -> None:
        (checked,) = make().check([[1]], [SamplingParams(**params)])
        assert checked.first_token_ids == expected

    @pytest.mark.parametrize(
        "params",
        [
            {"allowed_token_ids": [65], "bad_words": ["A"]},
            {"allowed_token_ids": [EOS], "min_tokens": 1},
            {"allowed_token_ids": [65, EOS], "stop_token_ids": [65], "min_tokens": 1},
        ],
    )
    def test_no_first_token(self, params: dict[str, Any]) -> None:
        with pytest.raises(RequestError, match="no token may come first") as refused:
            make().check([[1]], [SamplingParams(**params)])
        assert refused.value.param == "allowed_token_ids"

    @pytest.mark.parametrize("field", ["logprobs", "max_tokens", "min_tokens", "n", "stop", "seed"])
    def test_params_that_were_changed_are_checked_again(self, field: str) -> None:
        params = SamplingParams()
        setattr(params, field, object())
        with pytest.raises(RequestError, match=field):
            process("Hi", params)


class TestCompletions:
    def test_one(self) -> None:
        (request,) = process("Hi").engine_requests
        assert (request.request_id, request.fork_of, request.sample_index) == ("r", None, 0)

    def test_several_fork_the_first_and_share_its_seed(self) -> None:
        requests = process("Hi", SamplingParams(n=3)).engine_requests
        assert [r.request_id for r in requests] == ["0_r", "1_r", "2_r"]
        assert [r.fork_of for r in requests] == [None, "0_r", "0_r"]
        assert [r.sample_index for r in requests] == [0, 1, 2]
        assert len({r.sampling_params.seed for r in requests}) == 1


class TestSeeds:
    def seeds(self, seed: int, count: int = 100) -> list[int | None]:
        processor = make(seed=seed)
        return [processor.process("r", "Hi", SamplingParams()).params.seed for _ in range(count)]

    def test_drawn_in_order_from_the_engine_seed(self) -> None:
        assert self.seeds(0) == self.seeds(0)
        assert len({*self.seeds(0), *self.seeds(1), *self.seeds(-1)}) == 300
        assert all(0 <= s < 2**63 for s in self.seeds(0))

    def test_splitmix64(self) -> None:
        """First outputs of the reference implementation for state 0."""
        assert self.seeds(0, 3) == [
            0xE220A8397B1DCDAF >> 1,
            0x6E789E6AA1B965F4 >> 1,
            0x06C45D188009454F >> 1,
        ]

    def test_given_seeds_stay_and_refused_requests_draw_none(self) -> None:
        processor = make()
        assert processor.process("r", "Hi", SamplingParams(seed=5)).params.seed == 5
        with pytest.raises(RequestError):
            processor.process("r", "", SamplingParams())
        assert processor.process("r", "Hi", SamplingParams()).params.seed == self.seeds(0, 1)[0]


def make_with_source(
    source: str, values: dict[str, Any], override: dict[str, Any] | None = None
) -> InputProcessor:
    config = ModelConfig(
        max_model_len=64, generation_config=source, override_generation_config=override
    )
    return InputProcessor(
        config, ByteTokenizer(), vocab_size=VOCAB, hidden_size=8, generation_config=values
    )


class TestGenerationConfig:
    def test_end_ids_of_tokenizer_and_generation_config(self) -> None:
        for given, expected in (
            (None, [EOS]),
            (7, [EOS, 7]),
            ([7, EOS, 8], [EOS, 7, 8]),
            ([7, 100_000], [EOS, 7]),
        ):
            for source in ("auto", "octavo"):
                processor = make_with_source(source, {"eos_token_id": given})
                request = processor.process("r", "Hi", SamplingParams())
                assert request.engine_requests[0].eos_token_ids == expected

    @pytest.mark.parametrize("given", ["x", [1, "x"], {"a": 1}, True, 1.5])
    def test_malformed_end_ids(self, given: Any) -> None:
        with pytest.raises(ModelError, match="eos_token_id"):
            make(generation_config={"eos_token_id": given})

    def test_default_sampling_params(self) -> None:
        config = {
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": 20,
            "max_new_tokens": 99,
            "do_sample": True,
            "min_p": None,
            "repetition_penalty": 1.1,
            "transformers_version": "5",
        }
        expected = SamplingParams(
            temperature=0.6, top_p=0.9, top_k=20, max_tokens=99, repetition_penalty=1.1
        )
        assert make_with_source("auto", config).default_sampling_params() == expected
        assert make_with_source("octavo", config).default_sampling_params() == SamplingParams()

    def test_the_operator_has_the_last_word(self) -> None:
        config = {"temperature": 0.6, "top_k": 20, "repetition_penalty": -1.1}
        override = {"temperature": 0.1, "repetition_penalty": 1.5}
        params = make_with_source("auto", config, override).default_sampling_params(top_k=3)
        assert params == SamplingParams(temperature=0.1, repetition_penalty=1.5, top_k=3)

    def test_a_default_that_is_wrong_is_refused_with_the_way_out(self) -> None:
        processor = make(generation_config={"repetition_penalty": -1.1})
        with pytest.raises(RequestError, match=r"repetition_penalty.*generation_config='octavo'"):
            processor.default_sampling_params()


class TestBadWords:
    def test_every_engine_request_has_them_as_ids(self) -> None:
        params = SamplingParams(bad_words=["a", " b", "\n"], n=2)
        request = make().process("r", "Hi", params)
        for engine_request in request.engine_requests:
            assert engine_request.bad_words_token_ids == [
                *([97], [32, 97], [98], [32, 98]),
                [10],
            ]
        assert (
            make().process("r", "Hi", SamplingParams()).engine_requests[0].bad_words_token_ids == []
        )

    def test_too_many_tokens(self) -> None:
        processor = make()
        processor.process("r", "Hi", SamplingParams(bad_words=["x" * 1023]))
        for words in (["x" * 1025], ["y" * 600, "z" * 600]):
            with pytest.raises(RequestError, match="more than 1024 tokens") as caught:
                processor.process("r", "Hi", SamplingParams(bad_words=words))
            assert caught.value.param == "bad_words"
