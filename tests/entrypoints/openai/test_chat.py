from __future__ import annotations

from typing import Any

import pytest

from octavo.contracts.sampling_params import SamplingParams
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.fake_model import logprob_of
from tests.entrypoints.openai.harness import MODEL, serving

TEXT = "Zoë → 你好, 👨‍👩‍👧‍👦 🇫🇷 é 🌶️ end"


async def test_answer() -> None:
    async with serving() as s:
        reply = await s.chat("SAY:hello")
        assert reply.status == 200
        body = reply.json
        assert body["object"] == "chat.completion"
        assert body["model"] == MODEL
        assert body["id"] == "chatcmpl-" + reply.headers["x-request-id"]
        assert body["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ]
        usage = body["usage"]
        assert usage["completion_tokens"] == 6
        assert usage["total_tokens"] == usage["prompt_tokens"] + 6
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_stream() -> None:
    async with serving() as s:
        events = (await s.chat("SAY:hey", stream=True)).events
        deltas = [e["choices"][0]["delta"] for e in events]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert deltas[1:] == [{"content": c} for c in ["h", "e", "y", ""]]
        assert [e["choices"][0]["finish_reason"] for e in events] == [None] * 4 + ["stop"]
        assert events[-1]["choices"][0]["stop_reason"] is None
        assert all(e["object"] == "chat.completion.chunk" for e in events)
        assert len({e["id"] for e in events}) == 1
        assert not any("usage" in e for e in events)


async def test_cut_characters_are_withheld() -> None:
    async with serving() as s:
        for max_tokens in range(1, len(TEXT.encode()) + 2):
            whole = (await s.chat("SAY:" + TEXT, max_tokens=max_tokens)).json
            text = whole["choices"][0]["message"]["content"]
            assert TEXT.startswith(text)
            assert len(TEXT.encode()[:max_tokens]) - len(text.encode()) < 4
            assert whole["usage"]["completion_tokens"] == max_tokens
            reply = await s.chat("SAY:" + TEXT, max_tokens=max_tokens, stream=True)
            pieces = [e["choices"][0]["delta"]["content"] for e in reply.events]
            assert "".join(pieces) == text
            assert "\ufffd" not in text


async def test_n() -> None:
    async with serving() as s:
        choices = (await s.chat("SAY:#!", n=3)).json["choices"]
        assert [c["index"] for c in choices] == [0, 1, 2]
        assert [c["message"]["content"] for c in choices] == ["0!", "1!", "2!"]
        events = (await s.chat("SAY:#!", n=3, stream=True)).events
        texts, ends = {}, []
        for event in events:
            [choice] = event["choices"]
            texts.setdefault(choice["index"], []).append(choice["delta"].get("content"))
            ends += [choice["index"]] * bool(choice["finish_reason"])
        assert {i: "".join(t) for i, t in texts.items()} == {0: "0!", 1: "1!", 2: "2!"}
        assert sorted(ends) == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "num_top"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
async def test_logprobs(fields: dict[str, object], num_top: int) -> None:
    async with serving() as s:
        body = (await s.chat("SAY:aé", **fields)).json
        content = body["choices"][0]["logprobs"]["content"]
        ids = [*"aé".encode(), 256]
        assert [c["logprob"] for c in content] == pytest.approx([logprob_of(i) for i in ids])
        assert [c["bytes"] for c in content] == [[97], [0xC3], [0xA9], list(b"<eos>")]
        assert [c["token"] for c in content] == ["a", "\\xc3", "\\xa9", "<eos>"]
        assert [len(c["top_logprobs"]) for c in content] == [num_top] * 4
        if num_top:
            assert content[0]["top_logprobs"][0] == {"token": "b", "logprob": -0.5, "bytes": [98]}
            assert content[0]["top_logprobs"][1]["token"] == "a"
            assert content[0]["top_logprobs"][-1]["logprob"] == -9999.0
        streamed = []
        for event in (await s.chat("SAY:aé", stream=True, **fields)).events:
            lp = event["choices"][0]["logprobs"]
            streamed += lp["content"] if lp else []
        assert streamed == content


async def test_wrong_logprobs() -> None:
    async with serving() as s:
        for fields in (
            {"logprobs": True, "top_logprobs": 21},
            {"logprobs": True, "top_logprobs": -1},
            {"top_logprobs": 3},
            {"logprobs": 3},
        ):
            for stream in (False, True):
                reply = await s.chat(stream=stream, **fields)
                assert reply.status == 400, fields
                assert reply.error["param"] in fields


async def test_all_logprobs_where_the_server_allows_it() -> None:
    async with serving(max_logprobs=-1) as s:
        reply = await s.chat("SAY:a", logprobs=True, top_logprobs=-1, max_tokens=1)
        assert len(reply.json["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 259


async def test_tokens_as_ids() -> None:
    async with serving() as s:
        fields = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
        choice = (await s.chat("SAY:a", max_tokens=1, **fields)).json["choices"][0]
        [entry] = choice["logprobs"]["content"]
        assert entry["token"] == "token_id:97"
        assert entry["top_logprobs"][0]["token"] == "token_id:98"


async def test_token_ids() -> None:
    async with serving() as s:
        body = (await s.chat("SAY:hé", return_token_ids=True)).json
        assert body["choices"][0]["token_ids"] == [*"hé".encode(), 256]
        assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
        events = (await s.chat("SAY:hé", return_token_ids=True, stream=True)).events
        assert events[0]["prompt_token_ids"] == body["prompt_token_ids"]
        assert not any("prompt_token_ids" in e for e in events[1:])
        ids = [e["choices"][0].get("token_ids", []) for e in events]
        assert sum(ids, []) == body["choices"][0]["token_ids"]  # noqa: RUF017


async def test_limits() -> None:
    async with serving() as s:
        for old, new, made in ((5, None, 5), (50, 3, 3), (None, 4, 4), (0, 2, 2)):
            body = (await s.chat("count", max_tokens=old, max_completion_tokens=new)).json
            assert body["usage"]["completion_tokens"] == made
            assert body["choices"][0]["finish_reason"] == "length"


async def test_wrong_limits() -> None:
    async with serving() as s:
        for field in ("max_tokens", "max_completion_tokens"):
            for value in (0, -1, 1.5, "5", True, 2**40, 5000):
                reply = await s.chat(**{field: value})
                assert (reply.status, reply.error["param"]) == (400, field), value


async def test_without_a_limit_it_fills_the_model() -> None:
    async with serving(FakeEngine(max_model_len=100)) as s:
        usage = (await s.chat("count")).json["usage"]
        assert usage["total_tokens"] == 100


async def test_stop_strings_and_reasons() -> None:
    async with serving() as s:
        choice = (await s.chat("SAY:abcdef", stop="cd")).json["choices"][0]
        assert choice["message"]["content"] == "ab"
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "cd")
        choice = (await s.chat("SAY:abcdef", stop_token_ids=[ord("c")])).json["choices"][0]
        assert choice["message"]["content"] == "ab"
        assert choice["stop_reason"] == ord("c")
        fields = {"stop": ["x", "cd"], "include_stop_str_in_output": True}
        choice = (await s.chat("SAY:abcdef", **fields)).json["choices"][0]
        assert choice["message"]["content"] == "abcd"


async def test_usage_of_streams() -> None:
    async with serving() as s:
        options = {"include_usage": True}
        events = (await s.chat("SAY:#abc", n=2, stream=True, stream_options=options)).events
        *chunks, last = events
        assert all(e["usage"] is None and e["choices"] for e in chunks)
        assert last["choices"] == []
        whole = (await s.chat("SAY:#abc", n=2)).json["usage"]
        whole["prompt_tokens_details"] = last["usage"]["prompt_tokens_details"]
        assert last["usage"] == whole

        options["continuous_usage_stats"] = True
        events = (await s.chat("SAY:#abc", n=2, stream=True, stream_options=options)).events
        made = [e["usage"]["completion_tokens"] for e in events]
        assert made == sorted(made)
        assert made[-1] == 10
        assert events[-1]["choices"] == []

        only = {"continuous_usage_stats": True}
        events = (await s.chat("SAY:a", stream=True, stream_options=only)).events
        assert not any("usage" in e for e in events)


async def test_cached_tokens() -> None:
    async with serving() as s:
        prompt = "x" * 40
        first = await s.chat(prompt, max_tokens=1)
        second = await s.chat(prompt, max_tokens=1)
        cached = [
            r.json["usage"]["prompt_tokens_details"]["cached_tokens"] for r in (first, second)
        ]
        assert cached == [0, 48]
        options = {"include_usage": True}
        events = (await s.chat(prompt, max_tokens=1, stream=True, stream_options=options)).events
        assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 48


async def test_defaults_come_from_the_generation_config() -> None:
    seen: list[SamplingParams] = []

    class Engine(FakeEngine):
        def run(self, request, request_id, **options):  # type: ignore[no-untyped-def]
            seen.append(request.params)
            return super().run(request, request_id, **options)

    defaults = SamplingParams(temperature=0.25, top_p=0.5, top_k=7, min_p=0.125, max_tokens=3)
    async with serving(Engine(default_params=defaults)) as s:
        await s.chat("SAY:a")
        await s.chat("SAY:a", temperature=0, top_k=-1)
    fields = [(p.temperature, p.top_p, p.top_k, p.min_p) for p in seen]
    assert fields == [(0.25, 0.5, 7, 0.125), (0.0, 0.5, 0, 0.125)]
    assert all(p.max_tokens is not None and p.max_tokens > 4000 for p in seen)  # what fits


async def test_usage_that_nobody_asked_for() -> None:
    async with serving(enable_force_include_usage=True) as s:
        for options in (None, {}, {"include_usage": False}):
            fields: dict[str, Any] = {"stream": True, "stream_options": options}
            for reply in (await s.chat(**fields), await s.completion(**fields)):
                *events, last = reply.events
                assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
                assert all(event["usage"] is None for event in events)
        options = {"continuous_usage_stats": True}
        events = (await s.chat(stream=True, stream_options=options)).events
        assert all(event["usage"] for event in events)


async def test_the_operators_most_new_tokens() -> None:
    """vLLM's: a limit without an error, whatever the API."""
    engine = FakeEngine(override_generation_config={"max_new_tokens": 5})
    async with serving(engine) as s:
        for fields, made in (({}, 5), ({"max_tokens": 4}, 4), ({"max_tokens": 9}, 5)):
            for reply in (await s.chat("long", **fields), await s.completion("long", **fields)):
                assert reply.json["usage"]["completion_tokens"] == made
                assert reply.json["choices"][0]["finish_reason"] == "length"
        reply = await s.completion("x", max_tokens=0, echo=True)
        assert reply.json["usage"]["completion_tokens"] == 0
        reply = await s.chat("long", min_tokens=6)
        assert (reply.status, reply.error["param"]) == (400, "min_tokens")
        assert (await s.completion("x" * 4095)).json["usage"]["completion_tokens"] == 1
        body = {"model": MODEL, "max_tokens": 50, "messages": [{"role": "user", "content": "a"}]}
        reply = await s.post("/v1/messages", body)
        assert (reply.json["usage"]["output_tokens"], reply.json["stop_reason"]) == (
            5,
            "max_tokens",
        )
        reply = await s.post("/v1/chat/completions/render", {"messages": body["messages"]})
        assert reply.json["sampling_params"]["max_tokens"] == 5


async def test_a_failing_request_is_an_error() -> None:
    async with serving() as s:
        reply = await s.chat("FAIL: now")
        assert reply.status == 500
        assert reply.error["message"] == "this request met an error"
        events = (await s.chat("FAIL: now", stream=True)).events
        assert events[-1]["error"]["message"] == "this request met an error"
        assert len(events) == 4
        assert (await s.chat()).status == 200
