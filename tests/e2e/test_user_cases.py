"""Users' reports against engines like this one, as small inputs with the right answer: text,
log probabilities, sampling. A test's number is the case's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.contracts.messages import CompletionOutput
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.detokenizer import make_detokenizer
from octavo.entrypoints.llm import LLM
from octavo.errors import RequestError
from tests.e2e.lab import Answer
from tests.engine.fakes import fake_engine

PARIS = "The capital of France is"


def complete(llm: LLM, prompt: Any, **values: Any) -> CompletionOutput:
    """One completion, greedy unless `values` say otherwise."""
    params = SamplingParams(**{"temperature": 0.0} | values)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output.outputs[0]


def deltas_of(llm: LLM, prompt: Any, **values: Any) -> list[CompletionOutput]:
    params = SamplingParams(**{"temperature": 0.0} | values)
    return [c for output in llm.stream(prompt, params) for c in output.outputs]


def ids_of(llm: LLM, prompts: Any, params: Any) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [c.token_ids for output in outputs for c in output.outputs]


# -------------------------------------------------------------------- stop strings, text

ALPHABET = "Here is the English alphabet: ABC"


@pytest.mark.model
@pytest.mark.parametrize(
    ("stop", "max_tokens", "text", "included", "num_tokens"),
    [
        ("DEFGHIJ", 16, "", "DEFGHIJ", 4),
        ("EFG", 16, "D", "DEFG", 2),
        ("HIZ", 3, "DEFGHI", "DEFGHI", 3),
    ],
)
def test_case_3_stop_over_several_tokens(
    smollm2: LLM, stop: str, max_tokens: int, text: str, included: str, num_tokens: int
) -> None:
    for include, expected in ((False, text), (True, included)):
        values = {
            "stop": stop,
            "max_tokens": max_tokens,
            "include_stop_str_in_output": include,
        }
        whole = complete(smollm2, ALPHABET, **values)
        assert whole.text == expected
        assert whole.token_ids == [33203, 23960, 57, 58][:num_tokens]
        ended = ("length", None) if stop == "HIZ" else ("stop", stop)
        assert (whole.finish_reason, whole.stop_reason) == ended
        shown = ""
        for delta in deltas_of(smollm2, ALPHABET, **values):
            shown += delta.text
            assert expected.startswith(shown)
        assert shown == expected
        assert (delta.finish_reason, delta.stop_reason) == ended


@pytest.mark.model
def test_case_3_every_substring_as_stop(smollm2: LLM) -> None:
    """The text ends before its first occurrence, whatever tokens it lies in. Some go through the
    engine, all through what the engine makes its text with."""
    oracle = complete(smollm2, ALPHABET, max_tokens=48)
    text, tokenizer = oracle.text, smollm2.get_tokenizer()
    stops = {text[i:j] for i in range(len(text)) for j in range(i + 1, min(i + 13, len(text) + 1))}
    assert len(stops) > 1500
    for stop in stops:
        detokenizer = make_detokenizer(tokenizer, SamplingParams(stop=stop))
        shown = ""
        for token_id in oracle.token_ids:
            piece = detokenizer.push([token_id])
            shown += piece.text
            if piece.stop is not None:
                break
        assert shown == text[: text.find(stop)]
    some = sorted(stops)[:: len(stops) // 16]
    params = [SamplingParams(temperature=0.0, max_tokens=24, stop=s) for s in some]
    beginning = complete(smollm2, ALPHABET, max_tokens=24).text
    for stop, output in zip(some, smollm2.generate([ALPHABET] * len(some), params, use_tqdm=False)):
        at = beginning.find(stop)
        assert output.outputs[0].text == (beginning if at < 0 else beginning[:at])


@pytest.mark.model
def test_case_4_characters_of_several_tokens(smollm2: LLM) -> None:
    """Cut anywhere, the text is a prefix of the literal, and never has a U+FFFD."""
    literal = "Zoë → 你好, 👨‍👩‍👧‍👦 🇫🇷 e\u0301 🌶️ end"
    tokenizer = smollm2.get_tokenizer()
    ids = tokenizer.encode(literal)
    prompt = [65]
    script = {tuple(prompt): [*ids, 2]}
    llm = LLM.from_engine(
        fake_engine(tokenizer=tokenizer, executor={"script": script, "vocab_size": 300})
    )
    with llm:
        for max_tokens in range(1, 61):
            whole = complete(llm, prompt, max_tokens=max_tokens)
            assert literal.startswith(whole.text)
            assert "\ufffd" not in whole.text
            assert whole.token_ids == [*ids, 2][:max_tokens]
            assert whole.text == literal or max_tokens < len(ids)
            deltas = deltas_of(llm, prompt, max_tokens=max_tokens)
            assert "".join(d.text for d in deltas) == whole.text
            assert [i for d in deltas for i in d.token_ids] == whole.token_ids


@pytest.mark.model
def test_case_4_first_space(smollm2: LLM) -> None:
    assert complete(smollm2, PARIS, max_tokens=1).text == " Paris"
    assert [d.text for d in deltas_of(smollm2, PARIS, max_tokens=1)] == [" Paris"]


@pytest.mark.model
def test_case_7_stop_ids(smollm2: LLM) -> None:
    tokenizer = smollm2.get_tokenizer()
    question = {"role": "user", "content": "What is the capital of France?"}
    chat = tokenizer.apply_chat_template([question])
    plain = complete(smollm2, chat, max_tokens=40)
    assert (plain.text, plain.finish_reason) == ("The capital of France is Paris.", "stop")
    assert (plain.token_ids[-1], plain.stop_reason) == (2, None)
    for values in (
        {"stop_token_ids": [2]},
        {"stop": ["\nObservation"]},
        {"ignore_eos": True, "stop_token_ids": [2]},
    ):
        found = complete(smollm2, chat, max_tokens=40, **values)
        assert (found.text, found.token_ids, found.finish_reason) == (
            plain.text,
            plain.token_ids,
            "stop",
        )
    assert found.stop_reason == 2
    on = complete(smollm2, chat, max_tokens=40, ignore_eos=True)
    assert (len(on.token_ids), on.finish_reason) == (40, "length")
    assert on.token_ids[: len(plain.token_ids)] == plain.token_ids
    assert "<|" not in on.text
    shown = complete(smollm2, chat, max_tokens=40, ignore_eos=True, skip_special_tokens=False)
    assert shown.token_ids == on.token_ids
    assert shown.text.startswith(plain.text + "<|im_end|>")
    for include, text in ((False, ""), (True, " Paris")):
        found = complete(smollm2, PARIS, stop_token_ids=[7042], include_stop_str_in_output=include)
        assert (found.text, found.token_ids, found.stop_reason) == (text, [7042], 7042)
        assert found.finish_reason == "stop"


# -------------------------------------------------------------------- log probabilities


@pytest.mark.model
def test_case_12_logprobs_are_of_the_raw_distribution(smollm2: LLM) -> None:
    values = {"max_tokens": 1, "temperature": 1.5, "top_p": 0.01, "seed": 1}
    (row,) = complete(smollm2, PARIS, logprobs=3, **values).logprobs or []
    found = [(entry.decoded_token, entry.logprob, entry.rank) for entry in row.values()]
    assert [f[0] for f in found] == [" Paris", " the", " London"]
    assert [f[1] for f in found] == pytest.approx([-0.258, -2.741, -4.384], abs=0.02)
    assert [f[2] for f in found] == [1, 2, 3]
    (row,) = complete(smollm2, PARIS, logprobs=0, **values).logprobs or []
    assert {i: e.logprob for i, e in row.items()} == {7042: found[0][1]}
    assert complete(smollm2, PARIS, **values).logprobs is None


def test_case_12_number_of_alternatives(tiny: LLM) -> None:
    """All of them add up to one; more than there are is refused."""
    (row,) = complete(tiny, [65] * 9, max_tokens=1, logprobs=-1).logprobs or []
    assert sum(math.exp(e.logprob) for e in row.values()) == pytest.approx(1, abs=1e-4)
    assert len(row) == 257
    assert complete(tiny, [65] * 9, max_tokens=1, logprobs=257).logprobs == [row]
    with pytest.raises(RequestError, match="logprobs=258"):
        complete(tiny, [65] * 9, max_tokens=1, logprobs=258)
    for wrong in (-2, 1025, 10**9, 1.5, "3", True, math.nan):
        with pytest.raises(RequestError, match="logprobs"):
            SamplingParams(logprobs=wrong)  # type: ignore[arg-type]


def test_case_12_an_entry_belongs_to_its_step(tiny: LLM) -> None:
    params = {"temperature": 1.3, "seed": 4, "max_tokens": 12, "ignore_eos": True}
    whole = complete(tiny, [65] * 20, logprobs=4, **params)
    assert whole.logprobs is not None
    assert [next(iter(row)) for row in whole.logprobs] == whole.token_ids
    for i, row in enumerate(whole.logprobs):
        prompt = [65] * 20 + whole.token_ids[:i]
        (alone,) = complete(tiny, prompt, max_tokens=1, logprobs=4).logprobs or []
        for token_id, entry in alone.items():
            assert token_id not in row or row[token_id].logprob == entry.logprob
        assert len(row.keys() & alone.keys()) >= 4
    chosen = [row[t].logprob for row, t in zip(whole.logprobs, whole.token_ids)]
    assert whole.cumulative_logprob == pytest.approx(sum(chosen))


# -------------------------------------------------------------------- sampling


def test_case_13_seeds(tiny_path: Path, tiny: LLM) -> None:
    seeded = SamplingParams(seed=42, temperature=0.8, max_tokens=16, ignore_eos=True)
    unseeded = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    prompt = "Once upon a time, far away"
    others = [f"{i} other" * (i + 1) for i in range(7)]
    (alone,) = ids_of(tiny, prompt, seeded)
    assert ids_of(tiny, [prompt, "beside"], [seeded, unseeded])[0] == alone
    assert ids_of(tiny, [*others, prompt], [*[unseeded] * 7, seeded])[7] == alone
    assert ids_of(tiny, [prompt, prompt], seeded) == [alone, alone]
    with LLM(str(tiny_path), num_threads=1, long_prefill_token_threshold=7) as chunked:
        assert ids_of(chunked, prompt, seeded) == [alone]
    different = SamplingParams(seed=43, temperature=0.8, max_tokens=16, ignore_eos=True)
    assert ids_of(tiny, prompt, different) != [alone]


def test_case_13_choices_of_n(tiny: LLM) -> None:
    def choices(n: int) -> list[list[int]]:
        params = SamplingParams(n=n, seed=7, temperature=1.0, max_tokens=16, ignore_eos=True)
        return ids_of(tiny, "Once upon a time, far away", params)

    one, four, eight = choices(1), choices(4), choices(8)
    assert eight[:4] == four
    assert four[:1] == one
    assert len(set(map(tuple, eight))) == 8


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "values"),
    [
        (PARIS, {"stop_token_ids": [49152], "min_tokens": 4}),
        (PARIS, {"stop_token_ids": [-1], "min_tokens": 4}),
        (PARIS, {"allowed_token_ids": []}),
        (PARIS, {"allowed_token_ids": [49152]}),
        (PARIS, {"logit_bias": {"49152": 5}}),
        (PARIS, {"logit_bias": {"abc": 1}}),
        (PARIS, {"logit_bias": {"5": "x"}}),
        (PARIS, {"stop": ""}),
        (PARIS, {"stop": [""]}),
        ([-1], {}),
        ([[-1]], {}),
        ([49152], {}),
        ([5279552648203111001], {}),
        ([[]], {}),
        ("", {}),
        ([""], {}),
        ({"prompt_token_ids": []}, {}),
    ],
)
def test_case_15_what_is_refused_touches_nobody(
    smollm2: LLM, prompt: Any, values: dict[str, Any]
) -> None:
    engine = smollm2.llm_engine
    expected = complete(smollm2, PARIS, max_tokens=4, logprobs=2)
    greedy = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2)
    engine.add_request("neighbour", PARIS, greedy)
    engine.step()
    with pytest.raises(RequestError):
        smollm2.generate(prompt, SamplingParams(**values), use_tqdm=False)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert Answer.of(outputs[0].outputs[0]) == Answer.of(expected)
    assert smollm2.stats().num_used_blocks == 0


@pytest.mark.model
def test_case_15_what_is_fine(smollm2: LLM) -> None:
    plain = complete(smollm2, PARIS, max_tokens=2)
    assert complete(smollm2, PARIS, max_tokens=2, logit_bias={}) == plain
    assert complete(smollm2, PARIS, max_tokens=2, stop="x") == plain


@pytest.mark.model
def test_case_17_extremes_that_are_neutral(smollm2: LLM) -> None:
    def draw(**values: Any) -> Answer:
        params = {"temperature": 1.0, "seed": 5, "max_tokens": 6, "logprobs": 1, **values}
        return Answer.of(complete(smollm2, PARIS, **params))

    assert len({draw(top_k=k) for k in (9999999, -1, 0, 49152)}) == 1
    greedy = draw(temperature=0.0)
    assert draw(min_p=1.0) == greedy
    for temperature in (1e-38, 1e-6, 5e-324):
        answer = draw(temperature=temperature)
        assert answer.tokens == greedy.tokens
        assert np.isfinite(np.frombuffer(answer.logprobs, np.float32)).all()


@pytest.mark.model
def test_case_17_top_p_of_almost_one(smollm2: LLM) -> None:
    """The same draw as without it, unless that one lies in the tail that is cut."""
    seeds = range(200)

    def draws(top_p: float) -> list[int]:
        params = [SamplingParams(top_p=top_p, seed=s, max_tokens=1) for s in seeds]
        return [ids[0] for ids in ids_of(smollm2, [PARIS] * len(seeds), params)]

    (row,) = complete(smollm2, PARIS, max_tokens=1, logprobs=-1).logprobs or []
    mass = np.cumsum(np.exp([e.logprob for e in row.values()], dtype=np.float64))
    place = {token_id: i for i, token_id in enumerate(row)}
    for with_all, cut in zip(draws(1.0), draws(0.9999999)):
        assert with_all == cut or mass[place[with_all] - 1] > 0.999999


def test_case_17_extremes_in_one_batch(tiny: LLM) -> None:
    params = [
        SamplingParams(max_tokens=12, ignore_eos=True, logprobs=1, **values)
        for values in (
            {"temperature": 0.0},
            {"temperature": 1.0, "top_p": 0.9, "seed": 1},
            {"temperature": 1e-38, "seed": 2},
            {"temperature": 2.0, "min_p": 1.0, "seed": 3},
            {"temperature": 1.0, "top_k": 1, "seed": 4},
            {"temperature": 1.0, "top_p": 1e-30, "seed": 5},
            {"temperature": 2.0, "top_k": 2**31 - 1, "top_p": 1.0, "min_p": 0.0, "seed": 2**64 - 1},
            {"temperature": 1.0, "seed": -(2**63)},
        )
    ]
    prompts = [f"request {i}" for i in range(len(params))]
    together = [Answer.of(o.outputs[0]) for o in tiny.generate(prompts, params, use_tqdm=False)]
    alone = [
        Answer.of(tiny.generate(p, q, use_tqdm=False)[0].outputs[0])
        for p, q in zip(prompts, params)
    ]
    assert together == alone
    for answer in alone:
        assert np.isfinite(np.frombuffer(answer.logprobs, np.float32)).all()


@pytest.mark.parametrize(
    "values",
    [
        {"top_p": 0},
        {"top_p": math.nan},
        {"top_p": -1},
        {"temperature": math.nan},
        {"temperature": -1},
        {"temperature": math.inf},
    ],
)
def test_case_17_what_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(values))):
        SamplingParams(**values)


# -------------------------------------------------------------------- prefix cache, scheduler


@pytest.mark.model
def test_case_24_the_same_prompt_again(smollm2: LLM) -> None:
    lengths = (1, 15, 16, 17, 31, 32, 33, 48)
    rng = np.random.default_rng(24)
    prompts = [rng.integers(100, 49152, n).tolist() for n in lengths]
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)

    def ask(prompts: Sequence[list[int]]) -> tuple[list[Answer], list[int]]:
        outputs = smollm2.generate(list(prompts), params, use_tqdm=False)
        return [Answer.of(o.outputs[0]) for o in outputs], [o.num_cached_tokens for o in outputs]

    assert smollm2.reset_prefix_cache()
    cold, cached = ask(prompts)
    assert cached == [0] * 8
    for _ in range(2):
        hot, cached = ask(prompts)
        assert hot == cold
        assert cached == [0, 0, 0, 16, 16, 16, 32, 32]
    longer, shorter = [*prompts[5], 777], prompts[7][:32]
    hot, cached = ask([longer, shorter])
    assert cached == [32, 16]
    assert smollm2.reset_prefix_cache()
    assert ask([longer, shorter]) == (hot, [0, 0])


@pytest.mark.model
def test_case_26_keys_of_the_prefix_cache(smollm2: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=2)

    def ask(prompts: Sequence[Any]) -> tuple[list[int], list[Answer]]:
        outputs = [smollm2.generate(p, params, use_tqdm=False)[0] for p in prompts]
        return [o.num_cached_tokens for o in outputs], [Answer.of(o.outputs[0]) for o in outputs]

    assert smollm2.reset_prefix_cache()
    cached, answers = ask([[65] * 33, [321] * 33, [65] * 33])
    assert cached == [0, 0, 32]
    assert answers[0] == answers[2] != answers[1]
    assert smollm2.reset_prefix_cache()
    ids = list(range(100, 133))
    salts: list[str | None] = [None, "a", "a", "b", None, "a/b"]
    cached, answers = ask([{"prompt_token_ids": ids, "cache_salt": s} for s in salts])
    assert cached == [0, 0, 32, 0, 32, 0]
    assert len(set(answers)) == 1
    for salt in ("", "x" * 10_000, 5, b"a"):
        prompt: Any = {"prompt_token_ids": ids, "cache_salt": salt}
        with pytest.raises(RequestError, match="cache_salt"):
            smollm2.generate(prompt, params)


def test_case_28_preempted_requests(tiny_path: Path, tiny: LLM) -> None:
    """A pool of a quarter of the need: each is as alone, and is counted once."""
    rng = np.random.default_rng(28)
    prompts = [rng.integers(10, 256, 40).tolist() for _ in range(12)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=64, ignore_eos=True, logprobs=1)
        for i in range(12)
    ]
    roomy = [Answer.of(o.outputs[0]) for o in tiny.generate(prompts, params, use_tqdm=False)]
    for i in (0, 5, 11):
        (output,) = tiny.generate(prompts[i], params[i], use_tqdm=False)
        assert Answer.of(output.outputs[0]) == roomy[i]
    for depth in (1, 2):
        options: dict[str, Any] = {"pipeline_depth": depth, "num_threads": 1}
        with LLM(str(tiny_path), num_gpu_blocks_override=12 * 7 // 4 + 1, **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            stats = llm.stats()
        assert [Answer.of(o.outputs[0]) for o in outputs] == roomy
        assert {len(o.outputs[0].token_ids) for o in outputs} == {64}
        assert stats.num_preemptions > 0
        assert (stats.prompt_tokens, stats.generation_tokens) == (12 * 40, 12 * 64)
        assert (stats.prefix_queries, stats.prefix_hits) == (12 * 40, 0)


def test_case_28_waiting_is_not_counted_again(tiny_path: Path) -> None:
    rng = np.random.default_rng(29)
    prompts = [rng.integers(10, 256, 33).tolist() for _ in range(8)]
    with LLM(str(tiny_path), num_threads=1, max_num_seqs=1) as llm:
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=4), use_tqdm=False)
        stats = llm.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (264, 0)
