"""Bad input of every kind to `LLM`: a clear error, and the engine goes on as if nothing was."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contracts.sampling_params import SamplingParams
from octavo.entrypoints.llm import LLM
from octavo.errors import (
    EngineDeadError,
    PromptTooLongError,
    RequestError,
)
from tests.e2e.lab import TINY_VOCAB, Answer, assert_one_clear_line

LONGEST = 512
"""`max_model_len` of the tiny model."""
CANARY = SamplingParams(temperature=0.0, max_tokens=3, logprobs=1)


def ask_canary(llm: LLM) -> Answer:
    (output,) = llm.generate("canary", CANARY, use_tqdm=False)
    return Answer.of(output.outputs[0])


@pytest.fixture
def alive(tiny: LLM) -> Iterator[LLM]:
    """The tiny model; afterwards it holds nothing, and answers as before."""
    before = ask_canary(tiny)
    yield tiny
    stats = tiny.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert ask_canary(tiny) == before


# -------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("prompt", "values"),
    [
        (None, {}),
        (5, {}),
        (1.5, {}),
        (b"bytes", {}),
        ({"a"}, {}),
        (range(4), {}),
        (np.array([1, 2]), {}),
        pytest.param(object(), {}, id="object"),
        ("", {}),
        ([[]], {}),
        (["x", ""], {}),
        (["x", 1], {}),
        ([[1.0]], {}),
        ([[True]], {}),
        ([[None]], {}),
        ([[[1]]], {}),
        ([[10**400]], {}),
        ([[TINY_VOCAB]], {}),
        ([[-1]], {}),
        ({"prompt": 7, "prompt_token_ids": [1]}, {}),
        ({"prompt": "x", "multi_modal_data": {}}, {}),
        ({"prompt": None}, {}),
        ({"prompt_token_ids": "abc"}, {}),
        ({}, {}),
        ("half \ud800 a pair", {}),
        ("x" * LONGEST, {}),
        ("x" * 10_000_000, {}),
        ([[1] * LONGEST], {"max_tokens": None}),
        ([[1] * (LONGEST - 1)], {"max_tokens": 2}),
        ("x", {"max_tokens": 10**9}),
        ("x", {"max_tokens": None, "min_tokens": LONGEST}),
        ("x", {"stop_token_ids": [TINY_VOCAB]}),
        ("x", {"logprobs": TINY_VOCAB + 1}),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_wrong_requests(alive: LLM, prompt: Any, values: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        alive.generate(prompt, SamplingParams(**values), use_tqdm=False)
    assert_one_clear_line(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"n": 0},
        {"n": 129},
        {"n": 10**400},
        {"n": "2"},
        {"n": 1.5},
        {"temperature": math.nan},
        {"temperature": "0"},
        {"temperature": None},
        {"temperature": 10**400},
        {"temperature": 1j},
        {"top_p": 1.1},
        {"top_p": [0.5]},
        {"min_p": -0.1},
        {"min_p": math.nan},
        {"top_k": -2},
        {"top_k": 1.0},
        {"top_k": 2**31},
        {"seed": 2**64},
        {"seed": "x"},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": math.inf},
        {"min_tokens": -1},
        {"min_tokens": 17},
        {"logprobs": -2},
        {"stop": b"x"},
        {"stop": [1]},
        {"stop": [""]},
        {"stop": "\ud800"},
        {"stop": "x" * 5000},
        {"stop": ["x"] * 65},
        {"stop": {"a": 1}},
        {"stop": "x", "detokenize": False},
        {"stop_token_ids": "abc"},
        {"stop_token_ids": [1.5]},
        {"stop_token_ids": [True]},
        {"stop_token_ids": [0] * 2000},
        {"ignore_eos": 1},
        {"detokenize": None},
        {"output_kind": 7},
    ],
    ids=repr,
)
def test_wrong_parameters(values: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert_one_clear_line(caught.value)
    assert next(iter(values)) in str(caught.value)


@pytest.mark.parametrize("params", ["greedy", {"temperature": 0}, SamplingParams, [], [None], 5])
def test_parameters_of_another_type(alive: LLM, params: Any) -> None:
    with pytest.raises(RequestError, match="sampling_params"):
        alive.generate(["x"], params)


def test_one_wrong_request_runs_none(alive: LLM) -> None:
    steps = alive.stats().num_steps
    with pytest.raises(RequestError, match=r"prompts\[150\]"):
        alive.generate([*(f"request {i}" for i in range(150)), ""], use_tqdm=False)
    assert alive.stats().num_steps == steps


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
_IDS = st.lists(st.integers(-2, TINY_VOCAB + 1), max_size=40)
_TEXT = st.text(max_size=40)
_PROMPT = st.one_of(
    _TEXT,
    _IDS,
    st.fixed_dictionaries({}, optional={"prompt": _TEXT, "cache_salt": _TEXT | _JSON}),
    st.fixed_dictionaries({"prompt_token_ids": _IDS | _JSON}),
    st.lists(_TEXT | _IDS | _JSON, max_size=4),
    _JSON,
)
_NUMBER = st.one_of(
    st.sampled_from([0, 1, -1, 2, 0.5, 1e-38, 1e308, math.nan, math.inf, True, None, "1"]),
    st.integers(-3, 300),
    st.floats(),
)
_PARAMS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 8) | _NUMBER},
    optional={
        **dict.fromkeys(("temperature", "top_p", "min_p"), st.floats(0, 2) | _NUMBER),
        **dict.fromkeys(("n", "top_k", "seed", "min_tokens", "logprobs"), _NUMBER),
        **dict.fromkeys(("ignore_eos", "detokenize", "skip_special_tokens"), st.booleans()),
        "include_stop_str_in_output": st.booleans(),
        "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=3) | _JSON,
        "stop_token_ids": _IDS | _JSON,
    },
)


@settings(max_examples=150)
@given(prompt=_PROMPT, params=_PARAMS)
def test_any_request_is_answered_or_refused(tiny: LLM, prompt: Any, params: dict[str, Any]) -> None:
    try:
        outputs = tiny.generate(prompt, SamplingParams(**params), use_tqdm=False)
    except RequestError as error:
        assert_one_clear_line(error)
    else:
        for output in outputs:
            assert output.finished
            assert len(output.outputs) == params.get("n", 1)
            for completion in output.outputs:
                assert completion.error is None
                assert completion.finish_reason in ("stop", "length")
                assert completion.text.encode("utf-8").decode("utf-8") == completion.text
    stats = tiny.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)


# -------------------------------------------------------------------- what is extreme and right


def test_the_longest_prompt(alive: LLM) -> None:
    params = SamplingParams(max_tokens=None, temperature=0.0)
    (output,) = alive.generate([[65] * (LONGEST - 1)], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 1
    with pytest.raises(PromptTooLongError):
        alive.generate([[65] * LONGEST], params, use_tqdm=False)


@pytest.mark.parametrize("text", ["x" * 500, "\0", "a\0b", "\u202e\ufeff", "\U0010ffff", " "])
def test_odd_texts(alive: LLM, text: str) -> None:
    (output,) = alive.generate(text, CANARY, use_tqdm=False)
    assert len(output.prompt_token_ids) == len(text.encode())


def test_200_requests(alive: LLM) -> None:
    prompts = [f"request number {i}" for i in range(200)]
    outputs = alive.generate(prompts, CANARY, use_tqdm=False)
    assert [o.prompt for o in outputs] == prompts
    few = [alive.generate(p, CANARY, use_tqdm=False)[0] for p in prompts[::50]]
    assert [Answer.of(o.outputs[0]) for o in few] == [
        Answer.of(o.outputs[0]) for o in outputs[::50]
    ]


def test_128_completions(alive: LLM) -> None:
    params = SamplingParams(n=128, max_tokens=4, ignore_eos=True, seed=0)
    (output,) = alive.generate("x" * 40, params, use_tqdm=False)
    assert [c.index for c in output.outputs] == list(range(128))
    assert len({tuple(c.token_ids) for c in output.outputs}) > 100


def test_every_token_is_forbidden(alive: LLM) -> None:
    """Nothing can be sampled before `min_tokens`: this request fails, and no other."""
    params = SamplingParams(stop_token_ids=list(range(TINY_VOCAB)), min_tokens=3, max_tokens=9)
    bad, good = alive.generate(["x", "canary"], [params, CANARY], use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    assert bad.outputs[0].error
    assert Answer.of(good.outputs[0]) == ask_canary(alive)


# -------------------------------------------------------------------- threads, ends, interrupts


def test_from_several_threads(alive: LLM) -> None:
    prompts = [f"prompt {i}" for i in range(8)]
    expected = [Answer.of(o.outputs[0]) for o in alive.generate(prompts, CANARY, use_tqdm=False)]
    found: list[Any] = []

    def ask() -> None:
        for _ in range(5):
            outputs = alive.generate(prompts, CANARY, use_tqdm=False)
            found.append([Answer.of(o.outputs[0]) for o in outputs])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [expected] * 20


def test_interrupted(alive: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the fifth step, as the terminal sends it."""
    engine = alive.llm_engine
    step, count = engine.step, 0

    def counted() -> Any:
        nonlocal count
        count += 1
        if count == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    monkeypatch.setattr(engine, "step", counted)
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        alive.generate(["a", "b", "c"], params, use_tqdm=False)
    assert count == 5
    assert alive.stats().num_used_blocks == 0


def test_closed(tiny_path: Path) -> None:
    with LLM(str(tiny_path), num_threads=1) as llm:
        stream = llm.stream("x", SamplingParams(max_tokens=50, ignore_eos=True))
        next(stream)
    llm.close()
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate("x", CANARY),
        lambda: llm.chat([{"role": "user", "content": "x"}], CANARY),
        lambda: next(stream),
        lambda: next(llm.stream("x", CANARY)),
        llm.reset_prefix_cache,
        llm.llm_engine.step,
    ]
    for call in calls:
        with pytest.raises(EngineDeadError, match="shut down"):
            call()
