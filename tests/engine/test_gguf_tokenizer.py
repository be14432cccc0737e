from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.gguf_tokenizer import PRE_TOKENIZERS, gguf_tokenizer
from octavo.engine.tokenizer import Tokenizer
from octavo.engine.tokenizer_parts import TokenizerParts
from octavo.errors import TokenizerError, UnsupportedModelError
from tests.engine.tokenizer_lab import byte_level, gguf_metadata, metaspace, texts


def build(**more: Any) -> TokenizerParts:
    return gguf_tokenizer(gguf_metadata(byte_level(), **more), "m.gguf")


@given(texts)
def test_smollm_encodes_as_the_tokenizer_it_was_made_from(text: str) -> None:
    parts = build()
    assert parts.core.encode(text).ids == byte_level().encode(text).ids
    assert Tokenizer(parts).decode(byte_level().encode(text).ids) == text


def test_what_the_file_says_about_it() -> None:
    parts = build(
        **{
            "tokenizer.ggml.eot_token_id": 3,
            "tokenizer.ggml.eom_token_id": 2,
            "tokenizer.chat_template": "A",
            "tokenizer.chat_template.tool_use": "B",
            "tokenizer.chat_templates": ["tool_use"],
        }
    )
    assert parts.bos_token_id == 1
    assert parts.eos_token_ids == [2, 3]
    assert parts.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert parts.chat_templates == {"default": "A", "tool_use": "B"}


@pytest.mark.parametrize(
    ("flags", "around"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, ([1], [])),
        ({"add_eos_token": True}, ([], [2])),
        ({"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
        ({"pre": "llama-bpe"}, ([1], [])),
        ({"pre": "llama-bpe", "add_bos_token": False}, ([], [])),
    ],
)
def test_bos_and_eos(flags: dict[str, Any], around: tuple[list[int], list[int]]) -> None:
    tokenizer = Tokenizer(build(**{f"tokenizer.ggml.{k}": v for k, v in flags.items()}))
    bare = tokenizer.encode("Hello World", add_special_tokens=False)
    assert tokenizer.encode("Hello World") == around[0] + bare + around[1]
    assert tokenizer.encode("", add_special_tokens=False) == []


def test_kinds_of_tokens() -> None:
    tokenizer = Tokenizer(build())
    (call,) = tokenizer.encode("<tool_call>")
    assert call not in tokenizer.all_special_ids  # user-defined: text that is one token
    assert tokenizer.encode_plain("<tool_call>") == [call]
    assert tokenizer.all_special_ids == {0, 1, 2, 3}


def test_an_end_that_the_file_calls_normal_is_special_all_the_same() -> None:
    metadata = gguf_metadata(byte_level())
    metadata["tokenizer.ggml.token_type"][2] = 1
    tokenizer = Tokenizer(gguf_tokenizer(metadata, "m.gguf"))
    assert tokenizer.encode("<|im_end|>") == [2]
    assert 2 in tokenizer.all_special_ids


# ---------------------------------------------------------------- pre-tokenizers

# llama.cpp's patterns (src/llama-vocab.cpp; of gpt-4o the original), for another engine of
# regular expressions.
LLAMA_CPP = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
plain_texts = st.text(
    st.sampled_from(list("aBcé你'sTlL 0123½\n\r\t  .,!?/-_$+<|>👍\u0301")), max_size=30
)


@pytest.mark.parametrize("name", LLAMA_CPP)
@given(text=plain_texts)
def test_pieces(name: str, text: str) -> None:
    parts = build(**{"tokenizer.ggml.pre": name})
    pieces = [text[a:b] for _, (a, b) in parts.core.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == regex.findall(LLAMA_CPP[name], text)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("smollm", ["ab", "1", "2", "3", ",", " c", "4"]),
        ("gpt-2", ["ab", "123", ",", " c", "4"]),
        ("default", ["ab", "123", ",", " c", "4"]),
        ("dbrx", ["ab", "123", ",", " c", "4"]),
        ("llama3", ["ab", "123", ",", " c", "4"]),
        ("qwen2", ["ab", "1", "2", "3", ",", " c", "4"]),
    ],
)
def test_digits(name: str, pieces: list[str]) -> None:
    parts = build(**{"tokenizer.ggml.pre": name})
    text = "ab123, c4"
    found = parts.core.pre_tokenizer.pre_tokenize_str(text)
    assert [text[a:b] for _, (a, b) in found] == pieces


def test_default_has_its_own_rules_for_punctuation_and_long_numbers() -> None:
    parts = build(**{"tokenizer.ggml.pre": "default"})
    text = "x .,! 1234567"
    found = parts.core.pre_tokenizer.pre_tokenize_str(text)
    assert [text[a:b] for _, (a, b) in found] == ["x", " ", ".,!", " ", "123", "456", "7"]


def test_whole_words_need_no_merges_where_the_kind_says_so() -> None:
    metadata = gguf_metadata(byte_level())
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "zqzqz"]
    metadata["tokenizer.ggml.token_type"] = np.append(metadata["tokenizer.ggml.token_type"], 1)
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    for name in ("gpt-2", "llama-bpe"):
        metadata["tokenizer.ggml.pre"] = name
        ids = gguf_tokenizer(metadata, "m").core.encode("zqzqz", add_special_tokens=False).ids
        assert (ids == [last]) is PRE_TOKENIZERS[name].ignore_merges


# ---------------------------------------------------------------- SentencePiece


def spm_metadata(add_space: bool = True, **more: Any) -> dict[str, Any]:
    vocab = metaspace().get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = np.ones(len(tokens), dtype=np.int32)
    types[:3] = [2, 3, 3]
    types[3:259] = 6
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": -np.arange(len(tokens), dtype=np.float32),
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_space_prefix": add_space,
    }
    return {f"tokenizer.ggml.{k}": v for k, v in (metadata | more).items() if v is not None}


def sentencepiece(text: str, tokens: list[str]) -> list[int]:
    """SentencePiece's BPE (Kudo and Richardson, 2018) as a slow twin: merge the adjacent pair whose
    union has the best score until none is a token; spell what is left in bytes."""
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = list(text.replace(" ", "▁"))
    while True:
        pairs = [(ids.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(pairwise(pieces))]
        rank, i = min((p for p in pairs if p[0] > 258), default=(1 << 30, 0))
        if rank == 1 << 30:
            break
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    result: list[int] = []
    for piece in pieces:
        result += [ids[piece]] if piece in ids else [3 + byte for byte in piece.encode()]
    return result


@given(texts)
def test_sentencepiece(text: str) -> None:
    metadata = spm_metadata(add_space=False)
    core = gguf_tokenizer(metadata, "m").core
    expected = sentencepiece(text, metadata["tokenizer.ggml.tokens"])
    if not any(s in text for s in ("<s>", "</s>", "<unk>")):
        assert core.encode(text, add_special_tokens=False).ids == expected


@pytest.mark.parametrize("add_space", [True, False])
def test_space_before_a_text(add_space: bool) -> None:
    tokenizer = Tokenizer(gguf_tokenizer(spm_metadata(add_space), "m"))
    ids = tokenizer.encode("Hello World")
    assert ids[0] == 1, "no BOS"
    text = b"".join(tokenizer.token_bytes(i) for i in ids[1:]).decode()
    assert text == (" Hello World" if add_space else "Hello World")
    assert tokenizer.decode(ids) == "Hello World"
    assert tokenizer.decode(tokenizer.encode("→ 你好 👍")) == "→ 你好 👍"


# ---------------------------------------------------------------- what is wrong is named


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "t5"}, TokenizerError, "'t5' is not supported; supported: gpt2, llama"),
        ({"model": None}, TokenizerError, "tokenizer.ggml.model is missing"),
        ({"pre": "klingon"}, TokenizerError, "'klingon' is not supported; supported: dbrx, de"),
        ({"pre": 5}, TokenizerError, "pre is missing or no text"),
        ({"tokens": None}, TokenizerError, "tokens is missing"),
        ({"tokens": ["a", "b", "a"]}, TokenizerError, "the same token twice"),
        ({"merges": None}, TokenizerError, "merges is missing"),
        ({"merges": ["nospace"]}, TokenizerError, "merge 'nospace' is not of two tokens"),
        ({"merges": ["Ġ 你"]}, TokenizerError, "merge 'Ġ 你'"),
        ({"token_type": np.ones(3)}, TokenizerError, "token_type must have"),
        ({"eos_token_id": 10**6}, TokenizerError, "eos_token_id=1000000, but there are"),
        ({"eos_token_id": "x"}, UnsupportedModelError, "eos_token_id='x' must be"),
        ({"add_bos_token": 1}, TokenizerError, "add_bos_token=1 must be a bool"),
    ],
)
def test_faults(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(**{f"tokenizer.ggml.{k}": v for k, v in change.items()})
