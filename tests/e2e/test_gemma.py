"""Gemma-3-270m from its GGUF file (Q4_K, Q5_0, Q6_K; norms with 1 added; a tied Q8_0 head) against
transformers on the same weights, and its tokens against SentencePiece's algorithm."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.engine.tokenizer import Tokenizer, load_tokenizer
from octavo.errors import ChatTemplateError
from octavo.models.files import ModelFiles, resolve_model
from tests.e2e.theirs import (
    Comparison,
    assert_bfloat16_stays_near,
    assert_logprobs_are_near,
    compare,
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
    with closing(resolve_model(str(gemma3_path))) as files:
        yield files


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return load_tokenizer(files)


@pytest.fixture(scope="module")
def compared(gemma3_path: Path) -> Iterator[Comparison]:
    with compare(gemma3_path, PROMPTS, num_tokens=NUM_TOKENS, max_model_len=640) as compared:
        yield compared


def test_the_window_is_exceeded(compared: Comparison) -> None:
    assert len(compared.ours[-1].prompt_token_ids) > 512
    assert compared.ours[PROMPTS.index("")].prompt_token_ids == [2]


def test_float32_equals_transformers(compared: Comparison) -> None:
    """The same choice wherever the margin is 1e-3 or more, along our text."""
    num_clear = 0
    for output, there in zip(compared.ours, compared.theirs):
        clear = there.margins >= 1e-3
        ids = np.array(output.outputs[0].token_ids)
        assert (ids == there.choices)[clear].all(), output.prompt
        num_clear += clear.sum()
    assert num_clear > 0.9 * len(PROMPTS) * NUM_TOKENS


def test_float32_logprobs(compared: Comparison) -> None:
    assert_logprobs_are_near(compared)


def test_bfloat16_stays_near(compared: Comparison) -> None:
    assert_bfloat16_stays_near(compared, max_len=96)


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
