from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.contracts.messages import Logprob, RequestOutput
from octavo.entrypoints.openai.completions import read_prompts
from octavo.entrypoints.openai.errors import APIError
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.fake_model import logprob_of
from tests.entrypoints.openai.fake_tokenizer import FakeTokenizer
from tests.entrypoints.openai.harness import MODEL, Running, serving


def texts_of(events: list[Any]) -> dict[int, str]:
    """Streamed choices put together."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


async def test_answer_and_stream() -> None:
    async with serving() as s:
        reply = await s.completion("SAY:hello")
        body = reply.json
        assert body["object"] == "text_completion"
        assert body["id"] == "cmpl-" + reply.headers["x-request-id"]
        [choice] = body["choices"]
        assert choice["text"] == "hello"
        assert choice["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == 6
        events = (await s.completion("SAY:hello", stream=True)).events
        assert texts_of(events) == {0: "hello"}
        assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_many_prompts_and_choices(stream: bool) -> None:
    """vllm#8625, #9357: indices are prompt-major, usage counts each prompt once."""
    prompts = ["A SAY:#x", "BB SAY:#yy", "CCC SAY:#zzz"]
    fields = {"n": 2, "max_tokens": 3, "echo": True}
    async with serving() as s:
        if not stream:
            body = (await s.completion(prompts, **fields)).json
            texts = {c["index"]: c["text"] for c in body["choices"]}
            assert list(texts) == [0, 1, 2, 3, 4, 5]
            usage, ends = body["usage"], [c["finish_reason"] for c in body["choices"]]
        else:
            options = {"include_usage": True, "continuous_usage_stats": True}
            reply = await s.completion(prompts, stream=True, stream_options=options, **fields)
            *events, last = reply.events
            texts = texts_of(events)
            ended = {}
            for event in events:
                for choice in event["choices"]:
                    assert choice["index"] not in ended
                    if choice["finish_reason"]:
                        ended[choice["index"]] = choice["finish_reason"]
            made = [e["usage"]["completion_tokens"] for e in events]
            assert made == sorted(made)
            assert last["choices"] == []
            usage, ends = last["usage"], [ended[i] for i in range(6)]
        said = ["0x", "1x", "0yy", "1yy", "0zz", "1zz"]
        assert [texts[i] for i in range(6)] == [prompts[i // 2] + said[i] for i in range(6)]
        assert ends == ["stop"] * 2 + ["length"] * 4
        assert usage["prompt_tokens"] == sum(map(len, prompts))
        assert usage["completion_tokens"] == 18
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_as_ids(stream: bool) -> None:
    async with serving() as s:
        for prompt, texts in [
            (list(b"SAY:a"), {0: "a"}),
            ([list(b"SAY:a"), list(b"SAY:b")], {0: "a", 1: "b"}),
        ]:
            reply = await s.completion(prompt, stream=stream)
            assert texts_of(reply.events if stream else [reply.json]) == texts


async def test_echo_of_ids_is_their_text() -> None:
    async with serving() as s:
        ids = [*"é SAY:x".encode(), 256]
        assert (await s.completion(ids, echo=True)).json["choices"][0]["text"].startswith("é SAY:x")
        fields = {"echo": True, "skip_special_tokens": False}
        text = (await s.completion(ids, max_tokens=1, **fields)).json["choices"][0]["text"]
        assert text.startswith("é SAY:x<eos>")


async def test_wrong_prompts() -> None:
    """vllm#54195 and its kin: ids outside the vocabulary, empty prompts."""
    prompts: list[Any] = [
        *([-1], [[-1]], [259], [5279552648203111001], [2**70], [], "", [""], [[]], [[], [1]]),
        *(["a", 1], [1, "a"], [[1], "a"], [1.5], [True], [[True]], [None], 7, {"a": 1}, True),
    ]
    async with serving() as s:
        for prompt in prompts:
            for stream in (False, True):
                reply = await s.completion(prompt, stream=stream)
                assert reply.status == 400, prompt
                assert reply.error["param"] == "prompt"
        assert (await s.post("/v1/completions", {"model": MODEL})).error["param"] == "prompt"


async def test_one_wrong_prompt_fails_the_request_before_it_streams() -> None:
    async with serving() as s:
        reply = await s.completion([list(b"SAY:long" * 9), [999]], stream=True)
        assert reply.status == 400


async def test_bos_makes_the_empty_prompt_valid() -> None:
    async with serving(FakeEngine(tokenizer=FakeTokenizer(bos=True))) as s:
        reply = await s.completion("", return_token_ids=True, max_tokens=1)
        assert reply.json["choices"][0]["prompt_token_ids"] == [257]
        reply = await s.completion("a", add_special_tokens=False, return_token_ids=True)
        assert reply.json["choices"][0]["prompt_token_ids"] == [97]


async def test_too_many_choices() -> None:
    async with serving() as s:
        assert (await s.completion(["a"] * 1025)).status == 400
        reply = await s.completion(["a"] * 9, n=128)
        assert reply.status == 400
        assert "1152" in reply.error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_models_length(stream: bool) -> None:
    """vllm#33418: limits are exact, and errors name them."""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    async with serving(FakeEngine(max_model_len=64)) as s:
        for length, max_tokens, made in ((60, 4, 4), (63, None, 1), (62, None, 2)):
            fields = {"max_tokens": max_tokens, "stream": stream, **options}
            reply = await s.completion([120] * length, **fields)
            body = reply.events[-1] if stream else reply.json
            assert body["usage"]["completion_tokens"] == made
        for length, max_tokens in ((60, 5), (64, 1), (64, None), (65, 1)):
            reply = await s.completion([120] * length, max_tokens=max_tokens, stream=stream)
            assert reply.status == 400
            assert reply.error["code"] == "context_length_exceeded"
            assert "64" in reply.error["message"]
            assert str(length) in reply.error["message"]
            assert (max_tokens != 5) or "max_tokens=5" in reply.error["message"]


async def test_texts_that_cannot_fit_are_not_tokenized() -> None:
    class Engine(FakeEngine):
        async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            raise AssertionError("it was tokenized")

    long = "x" * (64 * len("<|im_start|>") + 1)
    parts = [{"type": "text", "text": long[:-9]}, {"type": "text", "text": long[-9:]}]
    async with serving(Engine(max_model_len=64)) as s:
        for reply in (
            await s.completion(long),
            await s.completion(["SAY:x" * 999, long], stream=True),
            await s.chat(long),
            await s.chat(parts),
            await s.post("/tokenize", {"prompt": long}),
            await s.post("/tokenize", {"messages": [{"role": "user", "content": long}]}),
        ):
            assert reply.status == 400
            assert reply.error["code"] == "context_length_exceeded"
        assert s.engine.rendered == []


async def test_the_default_length() -> None:
    async with serving() as s:
        assert (await s.completion("count")).json["usage"]["completion_tokens"] == 16
        made = (await s.completion("SAY:", min_tokens=20)).json["usage"]["completion_tokens"]
        assert made == 20


async def test_wrong_max_tokens() -> None:
    async with serving() as s:
        for value in (0, -1, 1.5, "5", True):
            reply = await s.completion(max_tokens=value)
            assert reply.status == 400, value
            assert reply.error["param"] == "max_tokens"
        assert (await s.completion(max_tokens=-1, echo=True)).status == 400


async def test_echo_alone() -> None:
    """vllm#6521: echo with max_tokens=0 shows the prompt and makes nothing."""
    async with serving() as s:
        body = (await s.completion("The capital", max_tokens=0, echo=True)).json
        [choice] = body["choices"]
        assert choice["text"] == "The capital"
        assert choice["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 0
        assert body["usage"]["total_tokens"] == 11
        options = {"stream_options": {"include_usage": True}, "stream": True}
        *events, last = (
            await s.completion("The capital", max_tokens=0, echo=True, **options)
        ).events
        assert texts_of(events) == {0: "The capital"}
        assert last["usage"] == {**body["usage"], "prompt_tokens_details": {"cached_tokens": 0}}


@pytest.mark.parametrize("k", [0, 1, 3])
async def test_logprobs(k: int) -> None:
    async with serving() as s:
        body = (await s.completion("SAY:aé", logprobs=k)).json
        logprobs = body["choices"][0]["logprobs"]
        assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "<eos>"]
        ids = [*"aé".encode(), 256]
        assert logprobs["token_logprobs"] == pytest.approx([logprob_of(i) for i in ids])
        assert logprobs["text_offset"] == [0, 1, 1, 2]
        first = logprobs["top_logprobs"][0]
        assert list(first) == {0: ["a"], 1: ["b", "a"], 3: ["b", "a", "c"]}[k]
        joined: dict[str, list[Any]] = {name: [] for name in logprobs}
        for event in (await s.completion("SAY:aé", logprobs=k, stream=True)).events:
            for name, values in event["choices"][0]["logprobs"].items():
                joined[name] += values
        assert joined == logprobs


async def test_wrong_logprobs() -> None:
    async with serving() as s:
        for k in (-1, 21, True, 1.5):
            reply = await s.completion(logprobs=k)
            assert reply.status == 400, k
            assert reply.error["param"] == "logprobs"


class _PromptLogprobs(FakeEngine):
    """An engine that has prompt logprobs: -i for the token at position i."""

    async def run(self, request, request_id, **options):  # type: ignore[no-untyped-def]
        ids, params = request.prompt_token_ids, request.params
        async for output in super().run(request, request_id, **options):
            if params.prompt_logprobs is not None:
                entries = [{t: Logprob(-float(i), 1, chr(t))} for i, t in enumerate(ids)]
                output.prompt_logprobs = [None, *entries[1:]]
            yield output


async def test_wrong_prompt_logprobs() -> None:
    async with serving() as s:
        for k in (-1, 21, True, 1.5):
            for reply in (await s.completion(prompt_logprobs=k), await s.chat(prompt_logprobs=k)):
                assert reply.status == 400, k
                assert reply.error["param"] == "prompt_logprobs"


async def test_prompt_logprobs() -> None:
    async with serving(_PromptLogprobs()) as s:
        for reply in (
            await s.completion("abc", prompt_logprobs=1),
            await s.completion("abc", prompt_logprobs=1, echo=True, logprobs=0),
        ):
            [choice] = reply.json["choices"]
            first, second, _ = choice["prompt_logprobs"]
            assert first is None
            assert second == {"98": {"logprob": -1.0, "rank": 1, "decoded_token": "b"}}
        reply = await s.chat(prompt_logprobs=1)
        assert reply.json["prompt_logprobs"][0] is None
        reply = await s.completion("abc")
        assert "prompt_logprobs" not in reply.json["choices"][0]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs(stream: bool) -> None:
    async with serving(_PromptLogprobs()) as s:
        fields = {"max_tokens": 0, "echo": True, "logprobs": 1, "stream": stream}
        reply = await s.completion("The cap", **fields)
        [choice] = (reply.events[0] if stream else reply.json)["choices"]
        assert choice["text"] == "The cap"
        assert choice["logprobs"]["tokens"] == list("The cap")
        assert choice["logprobs"]["token_logprobs"] == [None, -1, -2, -3, -4, -5, -6]
        assert choice["logprobs"]["top_logprobs"][:2] == [None, {"h": -1}]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5, 6]
        fields["max_tokens"] = 2
        reply = await s.completion("x SAY:ab", **fields)
        bodies = reply.events if stream else [reply.json]
        tokens = [t for b in bodies for t in b["choices"][0]["logprobs"]["tokens"]]
        offsets = [t for b in bodies for t in b["choices"][0]["logprobs"]["text_offset"]]
        assert tokens == list("x SAY:abab")
        assert offsets == list(range(10))
        assert not any("prompt_logprobs" in b["choices"][0] for b in bodies)


async def test_a_prompt_that_fails_ends_the_others() -> None:
    async with serving() as s:
        reply = await s.completion(["count for ever", "FAIL:"], max_tokens=4000)
        assert reply.status == 500
        events = (await s.completion(["count", "FAIL:"], max_tokens=4000, stream=True)).events
        assert events[-1]["error"]["message"] == "this request met an error"


def test_read_prompts() -> None:
    assert read_prompts("a") == ["a"]
    assert read_prompts(["a", "b"]) == ["a", "b"]
    assert read_prompts([1, 2]) == [[1, 2]]
    assert read_prompts([[1], [2]]) == [[1], [2]]
    with pytest.raises(APIError):
        read_prompts({})


async def test_no_output_is_an_error() -> None:
    class Silent(FakeEngine):
        async def run(self, *args: Any, **options: Any):  # type: ignore[no-untyped-def]
            outputs: list[RequestOutput] = []
            for output in outputs:
                yield output

    async with serving(Silent()) as s:
        assert (await s.completion()).status == 500


async def test_neighbours_are_not_touched() -> None:
    """User cases 15, 17: whatever is wrong with a request, a stream beside it goes on the same."""
    wrong: list[dict[str, Any]] = [
        {"stop_token_ids": [259], "min_tokens": 4},
        {"stop_token_ids": [-1], "min_tokens": 4},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [49152]},
        {"logit_bias": {"49152": 5}},
        {"logit_bias": {"abc": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"5": "x"}},
        {"bad_words": [""]},
        {"presence_penalty": 3},
        {"repetition_penalty": 0},
        {"stop": ""},
        {"stop": [""]},
        {"top_p": 0},
        {"top_p": -1},
        {"top_p": 1.1},
        {"temperature": -1},
        {"temperature": 2.1},
        {"min_p": 2},
        {"n": 0},
        {"n": 10**9},
        {"seed": 2**80},
        {"min_tokens": 20},
        {"min_tokens": -1},
    ]
    async with serving(FakeEngine(step_seconds=0.001)) as s:
        alone = await _greedy(s)
        task = asyncio.ensure_future(_greedy(s))
        for case in wrong:
            case = {"max_tokens": 10, **case}
            for stream in (False, True):
                reply = await s.completion(stream=stream, **case)
                assert reply.status == 400, case
                assert reply.error["param"] in case, case
        for case in ({"logit_bias": {}}, {"stop": "x"}, {"stop": []}, {"top_k": 9999999}):
            assert (await s.completion(**case)).status == 200, case
        assert await task == alone


async def _greedy(s: Running) -> list[int]:
    body = {"model": MODEL, "prompt": "count", "max_tokens": 300, "return_token_ids": True}
    return (await s.post("/v1/completions", body)).json["choices"][0]["token_ids"]
