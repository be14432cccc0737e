"""Gemma-3-270m from its GGUF file (Q4_K, Q5_0, Q6_K; norms with 1 added; a tied Q8_0 head) against
transformers on the same weights, and its tokens against SentencePiece's algorithm."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.contracts.messages import RequestOutput
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.tokenizer import Tokenizer, load_tokenizer
from octavo.entrypoints.llm import LLM
from octavo.errors import ChatTemplateError
from octavo.models.files import ModelFiles, resolve_model
from tests.e2e.theirs import (
    Theirs,
    ask,
    assert_bfloat16_stays_near,
    their_model,
    worst_logprob,
)

pytestmark = pytest.mark.model

NUM_TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Hello",
    "",  # BOS alone
    "def fibonacci(n):\n    ",
    "Zoë → 你好, 👨‍👩‍👧‍👦 🇫🇷",
    "one two three four " * 140,  # longer than the window of 512
]


@pytest.fixture(scope="module")
def files(gemma3_path: Path) -> Iterator[ModelFiles]:
    files = resolve_model(str(gemma3_path))
    yield files
    files.close()


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return load_tokenizer(files)


@pytest.fixture(scope="module")
def ours(gemma3_path: Path) -> list[RequestOutput]:
    """Greedy texts of all prompts, in one batch, in float32."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=5)
    with LLM(str(gemma3_path), dtype="float32", max_model_len=640, num_threads=1) as llm:
        return llm.generate(PROMPTS, params, use_tqdm=False)


@pytest.fixture(scope="module")
def theirs(files: ModelFiles, ours: list[RequestOutput]) -> list[Theirs]:
    model = their_model(files)
    return [ask(model, output) for output in ours]


def test_the_window_is_exceeded(ours: list[RequestOutput]) -> None:
    assert len(ours[-1].prompt_token_ids) > 512
    assert ours[PROMPTS.index("")].prompt_token_ids == [2]


def test_float32_equals_transformers(ours: list[RequestOutput], theirs: list[Theirs]) -> None:
    """The same choice wherever the margin is 1e-3 or more, along our text."""
    num_clear = 0
    for output, there in zip(ours, theirs):
        clear = there.margins >= 1e-3
        ids = np.array(output.outputs[0].token_ids)
        assert (ids == there.choices)[clear].all(), output.prompt
        num_clear += clear.sum()
    assert num_clear > 0.9 * len(PROMPTS) * NUM_TOKENS


def test_float32_logprobs(ours: list[RequestOutput], theirs: list[Theirs]) -> None:
    """Of the sampled token and the five likeliest, within 1e-3 at every step."""
    assert max(worst_logprob(output, there) for output, there in zip(ours, theirs)) < 1e-3


def test_bfloat16_stays_near(
    files: ModelFiles, ours: list[RequestOutput], theirs: list[Theirs]
) -> None:
    # Without the longest: the runner has logits of every token.
    assert_bfloat16_stays_near(files, ours[:-1], theirs[:-1], max_len=96)


# -------------------------------------------------------------------- tokens


def test_bos_is_added_once(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hello") == [2, 9259]
    assert tokenizer.encode("Hello", add_special_tokens=False) == [9259]
    assert tokenizer.encode("") == [2]
    assert tokenizer.encode("<bos>Hello") == [2, 9259]
    assert tokenizer.encode_plain("<bos>Hello")[0] != 2


def test_there_is_no_chat_template(tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])


def test_a_template_that_writes_bos_gets_no_second_one(files: ModelFiles) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    chat = load_tokenizer(files, chat_template=template)
    assert chat.apply_chat_template([{"role": "user", "content": "Hello"}]) == [2, 9259]


@pytest.mark.parametrize("text", ["  two   spaces ", "a\tb\n\n\nc", "<b>bold</b>", "½ 🌶️ \0 \ue000"])
def test_every_text_comes_back(text: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(i) for i in ids).decode() == text


def test_tokens_are_sentencepieces(files: ModelFiles, tokenizer: Tokenizer) -> None:
    """Over texts of few different pieces, where merges compete most."""
    assert files.gguf_metadata is not None
    rng = random.Random(0)
    pieces = ["=", "-", "a", " ", "ha", "0", "é", "中", "the", "ing", "#", "(", "😀", "ab", "ba"]
    reference = SentencePiece(files.gguf_metadata)
    for _ in range(300):
        few = rng.sample(pieces, rng.randint(1, 3))
        # Runs of spaces are tokens of their own kind, cut out before anything is merged.
        text = " ".join("".join(rng.choices(few, k=rng.randint(1, 20))).split())
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text), text


class SentencePiece:
    """Its algorithm in plain words: merge the adjacent pair whose union has the best score, of
    equal ones the first; spell in bytes what is no token then (sentencepiece, bpe_model.cc)."""

    def __init__(self, metadata: Any) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        scores, types = (metadata[f"tokenizer.ggml.{k}"].tolist() for k in ("scores", "token_type"))
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.scores = {t: s for t, s, kind in zip(tokens, scores, types) if kind == 1}

    def encode(self, text: str) -> list[int]:
        symbols = list(text.replace(" ", "▁"))
        while True:
            pairs = [a + b for a, b in pairwise(symbols)]
            known = [i for i, pair in enumerate(pairs) if pair in self.scores]
            if not known:
                break
            best = max(known, key=lambda i: (self.scores[pairs[i]], -i))
            symbols[best : best + 2] = [pairs[best]]
        ids = []
        for symbol in symbols:
            spelled = [f"<0x{byte:02X}>" for byte in symbol.encode()]
            ids += [self.ids[s] for s in ([symbol] if symbol in self.ids else spelled)]
        return ids
