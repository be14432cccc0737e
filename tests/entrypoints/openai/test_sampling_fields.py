"""Ways to choose a token, over HTTP: the whole server with a tiny model gives what `LLM` gives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.contracts.beam_search_params import BeamSearchParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.entrypoints.llm import LLM
from tests.e2e.lab import write_tiny
from tests.entrypoints.openai.live import MODEL_OPTIONS, Live, live

PROMPT = list(range(60, 100))
PROCESSOR = "tests.sample.processors:Shift"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Live]:
    with live(str(model_path), f"--logits-processors={PROCESSOR}") as server:
        yield server


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    with LLM(str(model_path), logits_processors=[PROCESSOR], **MODEL_OPTIONS) as llm:
        yield llm


def ours(llm: LLM, **values: Any) -> Any:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 12, **values})
    return llm.generate(PROMPT, params, use_tqdm=False)[0]


def theirs(server: Live, **fields: Any) -> Any:
    reply = server.complete(PROMPT, **{"max_tokens": 12, "return_token_ids": True, **fields})
    assert reply.status == 200, reply.body
    return reply.json


def test_processors_of_the_engine(server: Live, llm: LLM) -> None:
    for shift in (0, 50, -3):
        answer = theirs(server, vllm_xargs={"shift": shift}, ignore_eos=True)["choices"][0]
        expected = ours(llm, extra_args={"shift": shift}, ignore_eos=True).outputs[0]
        assert answer["token_ids"] == expected.token_ids
    reply = server.complete(PROMPT, vllm_xargs={"shift": "x"})
    assert reply.status == 400
    assert "shift='x' must be a number" in reply.error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_regex": "[A-Za-z]", "max_tokens": 60},
        {"stop_regex": ["[A-Z]", "x+"], "include_stop_str_in_output": True, "max_tokens": 60},
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}, "max_tokens": 200},
        {"thinking_token_budget": 3},
        {"max_time_ms": 60_000, "ttft_deadline_ms": 60_000},
        {"n": 2, "best_of": 5, "temperature": 1.0, "seed": 3},
    ],
    ids=str,
)
def test_as_offline(server: Live, llm: LLM, fields: dict[str, Any]) -> None:
    answer = theirs(server, **fields)
    expected = ours(llm, **fields).outputs
    assert [
        (c["token_ids"], c["text"], c["finish_reason"], c["stop_reason"]) for c in answer["choices"]
    ] == [(c.token_ids, c.text, c.finish_reason, c.stop_reason) for c in expected]
    if "repetition_detection" in fields:
        assert expected[0].finish_reason == "repetition"


def test_late(server: Live) -> None:
    choice = theirs(server, max_time_ms=30, max_tokens=400, ignore_eos=True)["choices"][0]
    assert choice["finish_reason"] == "timeout"
    assert len(choice["token_ids"]) < 400
    server.until_idle()


def test_stream_interval(server: Live) -> None:
    fields = {"max_tokens": 10, "ignore_eos": True, "stream": True, "return_token_ids": True}
    reply = server.complete(PROMPT, stream_interval=4, **fields)
    sizes = [len(c["token_ids"]) for e in reply.events for c in e["choices"]]
    assert sum(sizes) == 10
    assert sizes[0] == 1
    assert all(size >= 4 for size in sizes[1:-1])


def test_listed_ids_are_among_the_alternatives(server: Live, llm: LLM) -> None:
    ids = [3, 200]
    expected = ours(llm, logprobs=1, logprob_token_ids=ids, max_tokens=2).outputs[0].logprobs
    body = {"logprob_token_ids": ids, "max_tokens": 2, "return_tokens_as_token_ids": True}
    tops = theirs(server, logprobs=1, **body)["choices"][0]["logprobs"]["top_logprobs"]
    assert tops == [
        pytest.approx({f"token_id:{i}": entry.logprob for i, entry in position.items()})
        for position in expected
    ]
    reply = server.chat([{"role": "user", "content": "x"}], logprobs=True, top_logprobs=0, **body)
    names = [t["token"] for t in reply.json["choices"][0]["logprobs"]["content"][0]["top_logprobs"]]
    assert names == [f"token_id:{i}" for i in ids]


def test_beam_search(server: Live, llm: LLM) -> None:
    fields = {"length_penalty": 0.5, "early_stopping": True, "ignore_eos": True}
    (expected,) = llm.beam_search([PROMPT], BeamSearchParams(beam_width=3, max_tokens=9, **fields))
    fields |= {"max_tokens": 9, "use_beam_search": True, "n": 3}
    body = theirs(server, logprobs=0, **fields)
    for choice, sequence in zip(body["choices"], expected.sequences, strict=True):
        assert choice["token_ids"] == sequence.tokens[len(PROMPT) :]
        assert llm.get_tokenizer().decode(PROMPT) + choice["text"] == sequence.text
        assert sum(choice["logprobs"]["token_logprobs"]) == pytest.approx(sequence.cum_logprob)
    assert body["usage"]["completion_tokens"] == 27
    reply = server.chat([{"role": "user", "content": "x"}], n=2, use_beam_search=True)
    assert [c["index"] for c in reply.json["choices"]] == [0, 1]
    server.until_idle()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"temperature": 0.5}, "temperature"),
        ({"n": 129}, "n"),
        ({"length_penalty": 99}, "length_penalty"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"stop": "x"}, "stop"),
        ({"best_of": 2}, "best_of"),
        ({"top_p": 0.5}, "top_p"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
    ids=str,
)
def test_what_beams_do_not_take(server: Live, fields: dict[str, Any], param: str) -> None:
    reply = server.complete(PROMPT, use_beam_search=True, **fields)
    assert reply.status == 400
    assert reply.error["param"] == param


@pytest.mark.parametrize("fields", [{"n": 128}, {"n": 1, "best_of": 128, "temperature": 1}])
def test_completions_of_a_request_are_bounded(server: Live, fields: dict[str, Any]) -> None:
    reply = server.complete([PROMPT] * 9, max_tokens=1, **fields)
    assert reply.status == 400
    assert "are 1152 completions; at most 1024" in reply.error["message"]
    assert reply.error["param"] == next(name for name in ("best_of", "n") if name in fields)


async def test_beams_fill_the_queue(server: Live) -> None:
    """As long as they are searched for; then others are let in again."""
    body = {"prompt": [PROMPT] * 8, "use_beam_search": True, "n": 128, "max_tokens": 100}
    body["ignore_eos"] = True
    request = asyncio.ensure_future(server.apost("/v1/completions", body))
    one = {"prompt": PROMPT, "max_tokens": 1}
    while not await asyncio.to_thread(server.metric, "num_requests_running"):
        assert not request.done()
    reply = await server.apost("/v1/completions", one)
    assert (reply.status, reply.error["code"]) == (503, "queue_full")
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    for _ in range(200):  # the server is told that the client left
        if (reply := await server.apost("/v1/completions", one)).status == 200:
            break
        await asyncio.sleep(0.02)
    assert reply.status == 200
    await asyncio.to_thread(server.until_idle)


async def test_a_client_that_leaves_a_beam_search(server: Live) -> None:
    """Nothing goes on computing, and nothing is held."""
    body = {"prompt": PROMPT, "use_beam_search": True, "n": 8, "max_tokens": 400}
    body["ignore_eos"] = True

    async def num_computed() -> float:
        return await asyncio.to_thread(server.metric, "generation_tokens_total")

    before = last = await num_computed()
    request = asyncio.ensure_future(server.apost("/v1/completions", body))
    while await num_computed() == before:
        await asyncio.sleep(0.02)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    # The engine is idle between two steps of a search, too: it has ended when nothing is added.
    while (now := await num_computed()) > last:
        last = now
        await asyncio.sleep(0.5)
    await asyncio.to_thread(server.until_idle)
    assert now - before < 8 * 400
