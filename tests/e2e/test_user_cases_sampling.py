"""Users' reports on log probabilities of prompts, penalties, biases and bad words, as small inputs
with the right answer. A test's number is the case's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from octavo.contracts.messages import CompletionOutput, Logprob, RequestOutput
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.entrypoints.llm import LLM
from octavo.errors import RequestError
from tests.e2e.lab import Answer

PARIS = "The capital of France is"
ALPHABET = "Here is the English alphabet: ABC"


def ask(llm: LLM, prompt: Any, **values: Any) -> RequestOutput:
    """Greedy unless `values` say otherwise."""
    params = SamplingParams(**{"temperature": 0.0} | values)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output


def complete(llm: LLM, prompt: Any, **values: Any) -> CompletionOutput:
    return ask(llm, prompt, **values).outputs[0]


# -------------------------------------------------------------------- prompt logprobs

PROMPT = list(range(100, 133))


def prompt_logprobs_of(llm: LLM, **values: Any) -> list[dict[int, Logprob] | None]:
    output = ask(llm, PROMPT, prompt_logprobs=1, max_tokens=1, **values)
    assert output.num_cached_tokens == 0
    assert output.prompt_logprobs is not None
    return output.prompt_logprobs


@pytest.mark.model
def test_case_9_prompt_logprobs(smollm2: LLM, smollm2_path: Path) -> None:
    """The same cold, hot, after another prompt that shares its beginning, and in chunks."""
    assert smollm2.reset_prefix_cache()
    cold = prompt_logprobs_of(smollm2)
    assert len(cold) == 33
    assert cold[0] is None
    values = [entry[i].logprob for entry, i in zip(cold, PROMPT) if entry is not None]
    assert sum(values) == pytest.approx(-313.868, abs=0.05)
    expected = [-11.854, -11.102, -11.854, -10.246, -9.389]
    assert [values[i - 1] for i in (1, 2, 16, 17, 32)] == pytest.approx(expected, abs=0.02)
    for entry, i in zip(cold[1:], PROMPT[1:]):
        assert entry is not None
        assert next(iter(entry)) == i
        ranks = {e.rank for e in entry.values()}
        assert 1 in ranks
        assert len(entry) == (1 if entry[i].rank == 1 else 2)
    assert prompt_logprobs_of(smollm2) == cold
    assert smollm2.reset_prefix_cache()
    ask(smollm2, PROMPT[:16] + [9] * 17, max_tokens=1)
    assert prompt_logprobs_of(smollm2) == cold
    assert smollm2.reset_prefix_cache()
    ask(smollm2, PROMPT, max_tokens=4)
    assert prompt_logprobs_of(smollm2) == cold
    assert prompt_logprobs_of(smollm2, temperature=1.0, seed=1, repetition_penalty=1.5) == cold
    for options in (
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 5, "pipeline_depth": 2},
        {"num_threads": 2},
    ):
        options = {"num_threads": 1, "max_model_len": 64} | options
        with LLM(str(smollm2_path), dtype="float32", **options) as llm:
            assert prompt_logprobs_of(llm) == cold


@pytest.mark.model
def test_case_9_prompt_and_sampled_logprobs_agree(smollm2: LLM) -> None:
    """What was sampled with some log probability has it when it is the prompt."""
    output = ask(smollm2, PARIS, max_tokens=12, logprobs=3, ignore_eos=True)
    prompt, completion = output.prompt_token_ids, output.outputs[0]
    again = ask(smollm2, prompt + completion.token_ids, max_tokens=1, prompt_logprobs=3)
    assert again.prompt_logprobs is not None
    assert again.prompt_logprobs[len(prompt) :] == completion.logprobs


@pytest.mark.model
def test_case_10_values_of_an_echo(smollm2: LLM) -> None:
    output = ask(smollm2, PARIS, max_tokens=1, prompt_logprobs=0)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    entries = [next(iter(p.values())) for p in output.prompt_logprobs if p is not None]
    assert [e.decoded_token for e in entries] == [" capital", " of", " France", " is"]
    expected = [-11.539, -0.338, -2.439, -0.451]
    assert [e.logprob for e in entries] == pytest.approx(expected, abs=0.02)


def test_prompt_logprobs_of_everything(tiny: LLM) -> None:
    """All alternatives of every token add up to one; more than there are is refused."""
    output = ask(tiny, [65, 7, 200, 65] * 9, max_tokens=1, prompt_logprobs=-1)
    assert output.prompt_logprobs is not None
    for entry in output.prompt_logprobs[1:]:
        assert entry is not None
        assert len(entry) == 257
        assert sum(math.exp(e.logprob) for e in entry.values()) == pytest.approx(1, abs=1e-4)
        assert sorted(e.rank for e in entry.values() if e.rank) == list(range(1, 258))
    with pytest.raises(RequestError, match="prompt_logprobs=258"):
        ask(tiny, [65], prompt_logprobs=258)


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_prompt_logprobs_in_every_output(tiny: LLM, kind: RequestOutputKind) -> None:
    """With n completions they are computed once, and the first output has them all."""
    engine = tiny.llm_engine
    params = SamplingParams(
        n=3, temperature=1.0, seed=4, max_tokens=5, prompt_logprobs=1, output_kind=kind
    )
    engine.add_request("r", [65] * 40, params)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    alone = ask(tiny, [65] * 40, max_tokens=1, prompt_logprobs=1).prompt_logprobs
    assert {len(o.prompt_logprobs or ()) for o in outputs} == {40}
    assert all(o.prompt_logprobs == alone for o in outputs)
    assert outputs[-1].finished


# -------------------------------------------------------------------- logprobs_mode


@pytest.mark.model
def test_case_12_processed_logprobs(smollm2_path: Path, smollm2: LLM) -> None:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_threads": 1}
    with LLM(str(smollm2_path), logprobs_mode="processed_logprobs", **options) as llm:
        (row,) = (
            complete(llm, PARIS, max_tokens=1, logprobs=2, allowed_token_ids=[665]).logprobs or []
        )
        assert row[665].logprob == 0.0
        assert [e.logprob for e in row.values()] == [0.0, -math.inf]
        assert [e.rank for e in row.values()] == [1, 2]
        drawn = {"temperature": 0.5, "top_k": 2, "seed": 3, "max_tokens": 1, "logprobs": 2}
        (row,) = complete(llm, PARIS, **drawn).logprobs or []
        (raw,) = complete(smollm2, PARIS, **drawn).logprobs or []
        gap = raw[7042].logprob - raw[260].logprob
        assert row[7042].logprob - row[260].logprob == pytest.approx(2 * gap, abs=1e-4)
        assert sum(math.exp(e.logprob) for e in row.values()) == pytest.approx(1, abs=1e-5)
        assert prompt_logprobs_of(llm) == prompt_logprobs_of(smollm2)


# -------------------------------------------------------------------- sampling


@pytest.mark.model
def test_case_15_what_is_fine(smollm2: LLM) -> None:
    plain = complete(smollm2, PARIS, max_tokens=3)
    for values in (
        {"logit_bias": {}},
        {"logit_bias": {"5": 0.0}},
        {"bad_words": []},
        {"allowed_token_ids": list(range(49152))},
        {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1},
    ):
        assert complete(smollm2, PARIS, max_tokens=3, **values) == plain


@pytest.mark.model
def test_each_field_does_what_it_says(smollm2: LLM) -> None:
    assert complete(smollm2, PARIS, max_tokens=1).text == " Paris"
    only = complete(smollm2, PARIS, max_tokens=6, allowed_token_ids=[665, 260], ignore_eos=True)
    assert set(only.token_ids) <= {665, 260}
    pushed = complete(smollm2, PARIS, max_tokens=3, logit_bias={"665": 1000})
    assert pushed.token_ids == [665] * 3
    kept_off = complete(smollm2, PARIS, max_tokens=1, logit_bias={7042: -100})
    assert kept_off.text != " Paris"
    for word in ("Paris", " Paris"):
        for values in ({}, {"temperature": 1.0, "seed": 1, "top_p": 0.3}):
            banned = complete(smollm2, PARIS, max_tokens=12, bad_words=[word], **values)
            assert "Paris" not in banned.text
    text = complete(smollm2, ALPHABET, max_tokens=6).text
    assert text.startswith("DEFGHI")
    several = complete(smollm2, ALPHABET, max_tokens=6, bad_words=["DEFGHI"]).text
    assert several.startswith("DEFG")
    assert not several.startswith("DEFGHI")
    again = complete(smollm2, PARIS, max_tokens=20, frequency_penalty=-2.0).token_ids
    assert again.count(7042) > 2
    for values in ({"frequency_penalty": 2.0}, {"repetition_penalty": 1.8}):
        varied = complete(smollm2, PARIS, max_tokens=20, **values).token_ids
        assert len(set(varied)) == len(varied)


@pytest.mark.model
def test_case_17_extremes_in_one_batch(smollm2: LLM) -> None:
    """T=0 with bad words and allowed ids beside T=1 with top-p: each as alone."""
    params = [
        SamplingParams(max_tokens=8, logprobs=1, ignore_eos=True, **values)
        for values in (
            {"temperature": 0.0, "bad_words": ["Paris", "the"]},
            {"temperature": 0.0, "allowed_token_ids": [665, 260, 7042, 30]},
            {"temperature": 1.0, "top_p": 0.9, "seed": 5},
            {"temperature": 1.0, "seed": 5, "repetition_penalty": 1e-38},
            {"temperature": 1e-38, "seed": 5, "repetition_penalty": 3.4e38, "top_k": 9999999},
            {"temperature": 2.0, "min_p": 1.0, "seed": 6, "frequency_penalty": -2.0},
            {"temperature": 0.0, "logit_bias": dict.fromkeys(range(0, 49152, 7), 100.0)},
        )
    ]
    together = smollm2.generate([PARIS] * len(params), params, use_tqdm=False)
    for output, own in zip(together, params):
        (alone,) = smollm2.generate(PARIS, own, use_tqdm=False)
        answer = Answer.of(output.outputs[0])
        assert output.outputs[0].error is None
        assert answer == Answer.of(alone.outputs[0])
        assert np.isfinite(np.frombuffer(answer.logprobs, np.float32)).all()


def test_a_request_that_excludes_all_tokens_fails_alone(tiny: LLM) -> None:
    """Before it runs where no token may come first, otherwise when it gets there."""
    (letter,) = tiny.get_tokenizer().encode("A")
    refused = SamplingParams(allowed_token_ids=[letter], bad_words=["A"])
    with pytest.raises(RequestError, match="allow more tokens"):
        tiny.generate("same", refused)
    impossible = {"allowed_token_ids": [letter], "bad_words": ["AA"]}
    params = [
        SamplingParams(temperature=0.0, max_tokens=4),
        SamplingParams(temperature=1.0, seed=1, max_tokens=4, **impossible),
    ]
    good, bad = tiny.generate(["same", "same"], params, use_tqdm=False)
    assert bad.outputs[0].finish_reason == "error"
    assert "exclude all" in (bad.outputs[0].error or "")
    assert bad.outputs[0].error_param == "allowed_token_ids"
    assert good.outputs == ask(tiny, "same", max_tokens=4).outputs


@pytest.fixture(scope="module")
def raw_logits(tiny_path: Path) -> LLM:
    """An engine that gives all raw logits of every step."""
    return LLM(str(tiny_path), num_threads=1, logprobs_mode="raw_logits")


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.7},
        {"bad_words": ["A", "zz", "z\x01", "\x02"]},
        {"logit_bias": {65: 5.0, 66: -2.5}},
        {"repetition_penalty": 1.2, "bad_words": ["\x7f"], "logit_bias": {90: 3.0}},
        {"presence_penalty": 1.0},
        {"frequency_penalty": -0.5},
        {"presence_penalty": -2.0, "frequency_penalty": 1.5},
    ],
)
def test_greedy_tokens_are_those_of_other_peoples_processors(
    raw_logits: LLM, values: dict[str, Any]
) -> None:
    """transformers' processors on the engine's raw logits; OpenAI's formula for its penalties."""
    prompt = [200, 201, 65, 202, 203]
    output = ask(raw_logits, prompt, max_tokens=30, ignore_eos=True, logprobs=-1, **values)
    completion = output.outputs[0]
    processors = LogitsProcessorList()
    if bias := values.get("logit_bias"):
        processors.append(SequenceBiasLogitsProcessor([[[i], b] for i, b in bias.items()]))
    if words := values.get("bad_words"):
        ids = [[ord(c) for c in f"{space}{word}"] for word in words for space in ("", " ")]
        ids = [raw_logits.get_tokenizer().encode(bytes(i).decode()) for i in ids]
        processors.append(NoBadWordsLogitsProcessor(ids, eos_token_id=torch.tensor([256])))
    if penalty := values.get("repetition_penalty"):
        processors.append(RepetitionPenaltyLogitsProcessor(penalty))
    for i, (row, token) in enumerate(zip(completion.logprobs or [], completion.token_ids)):
        logits = torch.tensor([[row[t].logprob for t in range(257)]])
        done = completion.token_ids[:i]
        counts = torch.bincount(torch.tensor(done, dtype=torch.long), minlength=257)
        logits -= values.get("frequency_penalty", 0.0) * counts
        logits -= values.get("presence_penalty", 0.0) * (counts > 0)
        scores = processors(torch.tensor([prompt + done]), logits)
        assert int(scores.argmax()) == token, i


# -------------------------------------------------------------------- preemption


def test_case_28_preempted_requests(tiny_path: Path, tiny: LLM) -> None:
    """A pool of a quarter of the need, among twelve one with prompt_logprobs, some with penalties:
    each is as alone, with every token and every row once."""
    rng = np.random.default_rng(28)
    prompts = [rng.integers(10, 256, 40).tolist() for _ in range(12)]
    more: list[dict[str, Any]] = [
        {"prompt_logprobs": 1},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"presence_penalty": 1.0, "prompt_logprobs": 0},
        {"bad_words": ["ab", "\x20"], "logit_bias": {70: 2.0}},
    ]
    params = [
        SamplingParams(
            temperature=i % 2,
            seed=i,
            max_tokens=64,
            ignore_eos=True,
            logprobs=1,
            **more[i % len(more)],
        )
        for i in range(12)
    ]

    def parts(output: RequestOutput) -> tuple[Answer, Any]:
        return Answer.of(output.outputs[0]), output.prompt_logprobs

    alone = [parts(tiny.generate(p, q, use_tqdm=False)[0]) for p, q in zip(prompts, params)]
    for depth in (1, 2):
        options: dict[str, Any] = {"pipeline_depth": depth, "num_threads": 1}
        with LLM(str(tiny_path), num_gpu_blocks_override=12 * 7 // 4 + 1, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            stats = llm.stats()
        assert [parts(o) for o in outputs] == alone
        assert stats.num_preemptions > 0
        assert {len(o.outputs[0].token_ids) for o in outputs} == {64}
        assert {len(o.prompt_logprobs) for o in outputs if o.prompt_logprobs is not None} == {40}
        assert (stats.prompt_tokens, stats.generation_tokens) == (12 * 40, 12 * 64)
