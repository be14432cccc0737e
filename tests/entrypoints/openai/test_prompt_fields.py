"""Fields that change the prompt, or show it: truncation, documents, templates, echo."""

from __future__ import annotations

from typing import Any

import pytest

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.fake_tokenizer import FakeTokenizer
from tests.entrypoints.openai.harness import MODEL, Reply, Running, serving

USER = {"role": "user", "content": "hi"}
IDS = list(range(97, 117))


async def send(s: Running, *messages: Any, **fields: Any) -> Reply:
    return await s.post(
        "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 9, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, IDS[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, IDS[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, IDS[:5]),
        ({"truncate_prompt_tokens": 20}, IDS),
        ({"truncate_prompt_tokens": 10**9}, IDS),
        ({"truncate_prompt_tokens": -1}, IDS[-10:]),
        ({"truncate_prompt_tokens": -1, "max_tokens": None}, IDS[-8:]),
    ],
)
async def test_truncation(fields: dict[str, Any], kept: list[int]) -> None:
    """-1 leaves room for max_tokens, 16 by default: of 24 tokens, 8 are left for the prompt."""
    async with serving(FakeEngine(max_model_len=24)) as s:
        fields = {"max_tokens": 4 if kept == IDS else 14, **fields}
        reply = await s.completion(IDS, return_token_ids=True, **fields)
        assert reply.status == 200, reply.body
        assert reply.json["choices"][0]["prompt_token_ids"] == kept
        assert reply.json["usage"]["prompt_tokens"] == len(kept)


async def test_truncation_of_every_prompt_and_of_its_echo() -> None:
    async with serving() as s:
        fields = {"truncate_prompt_tokens": 5, "echo": True, "max_tokens": 2}
        reply = await s.completion(["SAY:xyz", "SAY:uvwxyz", "abc"], **fields)
        texts = [choice["text"] for choice in reply.json["choices"]]
        assert [text[:-2] for text in texts] == ["Y:xyz", "vwxyz", "abc"]
        reply = await send(s, USER, truncate_prompt_tokens=3)
        assert reply.json["usage"]["prompt_tokens"] == 3


async def test_truncation_that_is_wrong() -> None:
    async with serving() as s:
        for fields, param in (
            ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
            ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
            ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens"),
            ({"truncation_side": "left"}, "truncation_side"),
            ({"truncate_prompt_tokens": 1, "truncation_side": "middle"}, "truncation_side"),
        ):
            for reply in (await s.completion(**fields), await s.chat(**fields)):
                assert (reply.status, reply.error["param"]) == (400, param), fields


async def test_documents() -> None:
    documents = [{"title": "a", "text": "one"}, {"text": "two"}]
    tokenizer = FakeTokenizer(chat_template_source="{% for d in documents %}{{ d }}{% endfor %}")
    async with serving(FakeEngine(tokenizer=tokenizer)) as s:
        assert (await send(s, USER, documents=documents)).status == 200
        assert s.engine.rendered[-1][1]["documents"] == documents
        assert (await send(s, USER, documents=[])).status == 200
        assert "documents" not in s.engine.rendered[-1][1]
        for wrong in ("one", ["one"], [{"text": 1}], [{}] * 1025):
            reply = await send(s, USER, documents=wrong)
            assert (reply.status, reply.error["param"]) == (400, "documents")
        both = {"documents": documents, "chat_template_kwargs": {"documents": documents}}
        assert (await send(s, USER, **both)).error["param"] == "documents"
        reply = await send(s, USER, documents=[{"text": "x" * 2_000_000}])
        assert reply.error["code"] == "context_length_exceeded"
    async with serving() as s:
        reply = await send(s, USER, documents=documents)
        assert (reply.status, reply.error["param"]) == (400, "documents")
        assert "shows no documents" in reply.error["message"]


async def test_templates_of_requests() -> None:
    """Only where the server was told to trust them; chat_template_kwargs are no way around."""
    async with serving() as s:
        reply = await send(s, USER, chat_template="{{ messages }}")
        assert (reply.status, reply.error["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in reply.error["message"]
        assert s.engine.rendered == []
    for trust in (False, True):
        async with serving(trust_request_chat_template=trust) as s:
            kwargs = {"chat_template": "{{ messages }}"}
            for path in ("/v1/chat/completions", "/tokenize"):
                body = {"messages": [USER], "chat_template_kwargs": kwargs}
                reply = await s.post(path, body)
                assert (reply.status, reply.error["param"]) == (400, "chat_template_kwargs")
            assert s.engine.rendered == []
    async with serving(trust_request_chat_template=True) as s:
        assert (await send(s, USER, chat_template="{{ messages }}")).status == 200
        assert s.engine.rendered[-1][1]["chat_template"] == "{{ messages }}"
        shows = {"chat_template": "{{ documents }}", "documents": [{"text": "x"}]}
        assert (await send(s, USER, **shows)).status == 200
        reply = await send(s, USER, chat_template="x" * (64 * 1024 + 1))
        assert (reply.status, reply.error["param"]) == (400, "chat_template")
        assert (await send(s, USER)).status == 200
        assert "chat_template" not in s.engine.rendered[-1][1]


@pytest.mark.parametrize("text", ["SAY:#bc", [{"type": "text", "text": "SAY:#bc"}]])
async def test_echo_of_the_message_that_is_continued(text: Any) -> None:
    messages = [USER, {"role": "assistant", "content": text}]
    async with serving() as s:
        fields = {"continue_final_message": True, "echo": True, "n": 2}
        whole = (await send(s, *messages, **fields)).json["choices"]
        said = [choice["message"]["content"] for choice in whole]
        assert said == ["SAY:#bc0bc", "SAY:#bc1bc"]
        texts = ["", ""]
        for event in (await send(s, *messages, stream=True, **fields)).events:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
        assert texts == said
        reply = await send(s, {"role": "user", "content": "SAY:x"}, echo=True)
        assert reply.json["choices"][0]["message"]["content"] == "x"
        reply = await send(s, *messages, continue_final_message=True, echo=False)
        assert reply.json["choices"][0]["message"]["content"] == "0bc"


async def test_the_prompt_is_shown_where_it_is_asked_for() -> None:
    async with serving() as s:
        fields = {"return_prompt_text": True, "return_token_ids": True}
        whole = (await send(s, USER, **fields)).json
        text = s.engine.tokenizer.decode(whole["prompt_token_ids"], skip_special_tokens=False)
        assert whole["prompt_text"] == text
        assert "hi" in text
        events = (await send(s, USER, stream=True, n=2, **fields)).events
        shown = [event["prompt_text"] for event in events if "prompt_text" in event]
        assert shown == [text, text]
        choices = (await s.completion(["SAY:a", "SAY:b"], **fields)).json["choices"]
        assert [choice["prompt_text"] for choice in choices] == ["SAY:a", "SAY:b"]
        events = (await s.completion("SAY:abc", stream=True, return_prompt_text=True)).events
        assert [e["choices"][0].get("prompt_text") for e in events][:2] == ["SAY:abc", None]
        reply = await send(s, USER, return_prompt_text=False)
        assert "prompt_text" not in reply.json
