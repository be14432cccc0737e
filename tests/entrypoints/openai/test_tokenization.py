from __future__ import annotations

from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.fake_tokenizer import FakeTokenizer
from tests.entrypoints.openai.harness import serving


async def test_tokenize() -> None:
    async with serving(FakeEngine(max_model_len=99)) as s:
        reply = await s.post("/tokenize", {"model": "fake", "prompt": "é<eos>"})
        ids = [0xC3, 0xA9, 256]
        assert reply.json == {"count": 3, "max_model_len": 99, "tokens": ids, "token_strs": None}
        reply = await s.post("/tokenize", {"prompt": "éa", "return_token_strs": True})
        assert reply.json["token_strs"] == ["bytes:\\xc3", "bytes:\\xa9", "a"]
        assert (await s.post("/tokenize", {"prompt": ""})).json["count"] == 0
        assert (await s.post("/tokenize", {"prompt": "x" * 600})).json["count"] == 600


async def test_special_tokens() -> None:
    """vllm#2012: BOS once, or not at all."""
    async with serving(FakeEngine(tokenizer=FakeTokenizer(bos=True))) as s:
        for flag, ids in ((None, [257, 72]), (True, [257, 72]), (False, [72])):
            reply = await s.post("/tokenize", {"prompt": "H", "add_special_tokens": flag})
            assert reply.json["tokens"] == ids


async def test_wrong_requests() -> None:
    async with serving() as s:
        for body in (
            *({}, {"prompt": None}, {"prompt": 5}, {"prompt": ["a"]}, {"prompts": "a"}),
            {"prompt": "a", "messages": [{"role": "user", "content": "x"}]},
            {"prompt": "a", "chat_template": "x"},
        ):
            reply = await s.post("/tokenize", body)
            assert reply.status == 400, body
            assert reply.error["param"]


async def test_detokenize() -> None:
    async with serving() as s:
        reply = await s.post("/detokenize", {"model": "fake", "tokens": [*"hé".encode(), 256]})
        assert reply.json == {"prompt": "hé<eos>"}
        assert (await s.post("/detokenize", {"tokens": []})).json == {"prompt": ""}
        for tokens in ([259], [-1], [1.5], ["a"], "a", None, [2**70], [True]):
            reply = await s.post("/detokenize", {"tokens": tokens})
            assert reply.status == 400, tokens
            assert reply.error["param"] == "tokens"


async def test_detokenize_takes_what_fits_the_model() -> None:
    async with serving(FakeEngine(max_model_len=99)) as s:
        assert (await s.post("/detokenize", {"tokens": [97] * 99})).json["prompt"] == "a" * 99
        reply = await s.post("/detokenize", {"tokens": [97] * 100})
        assert (reply.status, reply.error["param"]) == (400, "tokens")


async def test_what_there_is_to_know() -> None:
    async with serving(enable_tokenizer_info_endpoint=True) as s:
        reply = await s.get("/tokenizer_info")
        config = s.engine.tokenizer.config
        assert config["tokenizer_class"]
        assert reply.json == {**config, "model_max_length": 4096, "vocab_size": 259}
