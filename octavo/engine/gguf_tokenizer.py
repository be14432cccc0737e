"""A tokenizer built from a GGUF file's metadata.

Two kinds (`tokenizer.ggml.model`): "gpt2", byte-level BPE with a pre-tokenizer that
`tokenizer.ggml.pre` names, and "llama", SentencePiece's BPE with scores and byte fallback. What the
names mean is llama.cpp's (src/llama-vocab.cpp); the patterns are those of the models' own
tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from octavo.config.model import ConfigReader
from octavo.engine.merge_cache import cached_pairs
from octavo.engine.tokenizer_parts import TokenizerParts, add_around
from octavo.errors import TokenizerError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # values of tokenizer.ggml.token_type
_NORMAL = 1
_SPACE = "▁"
_LARGE_VOCABULARY = 65536

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = rf"{_CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_LETTERS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SLASHED}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTED}?|{_CASED[1]}{_CONTRACTED}?|\p{{N}}{{1,3}}|{_SLASHED}"
_DIGIT = r"\p{N}"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """How a text is cut before byte pairs are merged.

    Attributes:
        patterns: applied in turn, each to the pieces of the one before.
        ignore_merges: a piece that is a token as a whole is not built by merges.
        add_bos: unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_PRE = {
    "default": PreTokenizer(patterns=(_PUNCTUATION, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "dbrx": PreTokenizer(patterns=(_LLAMA3,)),
    "gpt-2": PreTokenizer(patterns=(_GPT2,)),
    "gpt-4o": PreTokenizer(patterns=(_GPT4O,)),
    "llama-bpe": PreTokenizer(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer(patterns=(_QWEN2,)),
    "smollm": PreTokenizer(patterns=(_DIGIT, _GPT2)),
    "tekken": PreTokenizer(patterns=(_TEKKEN,), ignore_merges=True, add_bos=True),
}
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **_PRE,
    "deepseek-r1-qwen": _PRE["qwen2"],
    "llama-v3": _PRE["llama-bpe"],
    "llama3": _PRE["llama-bpe"],
    "megrez": _PRE["qwen2"],
    "olmo": _PRE["gpt-2"],
    "phi-2": _PRE["gpt-2"],
    "pixtral": _PRE["llama-bpe"],
    "smaug-bpe": _PRE["dbrx"],
    "starcoder": _PRE["smollm"],
}
"""By tokenizer.ggml.pre."""


def gguf_tokenizer(metadata: Mapping[str, Any], where: str) -> TokenizerParts:
    """The tokenizer that a GGUF file describes.

    Args:
        metadata: of the file.
        where: its path, for messages.

    Raises:
        TokenizerError: none there, an unknown kind, or lists that do not fit together.
    """
    vocabulary = _Vocabulary(metadata, where)
    kind = vocabulary.text("model")
    if kind not in _BUILDERS:
        raise TokenizerError(
            f"{where}: tokenizer.ggml.model={kind!r} is not supported; supported: "
            f"{', '.join(_BUILDERS)}"
        )
    core, adds_bos = _BUILDERS[kind](vocabulary)
    core.add_tokens(vocabulary.added_tokens())
    bos, eos = vocabulary.token_id("bos_token_id"), vocabulary.token_id("eos_token_id")
    add_around(
        core,
        bos if vocabulary.flag("add_bos_token", adds_bos) else None,
        eos if vocabulary.flag("add_eos_token", False) else None,
    )
    ends = [eos, *(vocabulary.token_id(f"{name}_token_id") for name in ("eot", "eom"))]
    return TokenizerParts(
        core=core,
        vocab_size=core.get_vocab_size(with_added_tokens=True),  # ids without a hole
        bos_token_id=bos,
        eos_token_ids=list(dict.fromkeys(i for i in ends if i is not None)),
        special_tokens=vocabulary.special_spellings(),
        chat_templates=_chat_templates(metadata),
    )


class _Vocabulary:
    """Typed and checked access to `tokenizer.ggml.*`."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self._metadata = metadata
        self.where = where
        self.tokens = self._strings("tokens")
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise TokenizerError(f"{where}: tokenizer.ggml.tokens has the same token twice")
        self.types = self._numbers("token_type", _NORMAL)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, str):
            raise TokenizerError(f"{self.where}: tokenizer.ggml.{key} is missing or no text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise TokenizerError(f"{self.where}: tokenizer.ggml.{key}={value!r} must be a bool")
        return value

    def token_id(self, key: str) -> int | None:
        value: int | None = ConfigReader(self._metadata, self.where).int(
            f"tokenizer.ggml.{key}", None
        )
        if value is not None and value >= len(self.tokens):
            raise TokenizerError(
                f"{self.where}: tokenizer.ggml.{key}={value}, but there are "
                f"{len(self.tokens)} tokens"
            )
        return value

    def merges(self) -> list[tuple[str, str]]:
        """As the file says, with "" for a part that is missing; `bpe` looks at them."""
        return [merge.partition(" ")[::2] for merge in self._strings("merges")]

    def bpe(self, merges: list[tuple[str, str]], **options: Any) -> models.BPE:
        """The model of these merges. The library checks that they are of two tokens and give one;
        which one does not is looked for when it refuses."""
        ids = self.ids
        try:
            return models.BPE(ids, merges, **options)
        except Exception as error:  # the library raises plain Exception
            for pair in merges:
                if not all(part in ids for part in (*pair, "".join(pair))):
                    merge = " ".join(filter(None, pair))
                    raise TokenizerError(
                        f"{self.where}: merge {merge!r} is not of two tokens"
                    ) from error
            raise TokenizerError(f"{self.where}: no tokenizer comes of it: {error}") from error

    def scores(self) -> list[float]:
        return self._numbers("scores", 0.0)

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that are found in text before anything else, in order of ids. BOS and EOS are
        special whatever the file calls them."""
        special = {_CONTROL, _UNKNOWN}
        ends = {self.token_id(f"{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
        return [
            AddedToken(token, special=kind in special or i in ends, normalized=False)
            for i, (token, kind) in enumerate(zip(self.tokens, self.types))
            if token and (kind in special or kind == _USER_DEFINED or i in ends)
        ]

    def special_spellings(self) -> dict[str, str]:
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        ids = {name: self.token_id(f"{stored}_token_id") for name, stored in names.items()}
        return {f"{name}_token": self.tokens[i] for name, i in ids.items() if i is not None}

    def _strings(self, key: str) -> list[str]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or not value:
            raise TokenizerError(f"{self.where}: tokenizer.ggml.{key} is missing or no list")
        return value

    def _numbers(self, key: str, default: float) -> list[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return [default] * len(self.tokens)
        if not isinstance(value, np.ndarray) or len(value) != len(self.tokens):
            raise TokenizerError(
                f"{self.where}: tokenizer.ggml.{key} must have {len(self.tokens)} numbers"
            )
        return value.tolist()


def _byte_level_bpe(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    name = vocabulary.text("pre", "default")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise TokenizerError(
            f"{vocabulary.where}: tokenizer.ggml.pre={name!r} is not supported; supported: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}"
        )
    core = Tokenizer(vocabulary.bpe(vocabulary.merges(), ignore_merges=pre.ignore_merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(p), "isolated") for p in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    return core, pre.add_bos


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """SentencePiece merges the adjacent pair whose union has the best score. As ranked merges: all
    pairs of tokens whose union is a token, by the union's score, then by its id."""
    unknown = vocabulary.token_id("unknown_token_id")
    core = Tokenizer(
        vocabulary.bpe(
            _merges_by_score(vocabulary),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", _SPACE)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.flag("add_space_prefix", True):
        core.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        core.normalizer = replace
    core.decoder = decoders.Sequence(parts)
    return core, True


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The ranked merges; those of a large vocabulary are kept (Gemma's 262,144 tokens: 0.7 s)."""
    tokens, scores = vocabulary.tokens, vocabulary.scores()
    if len(tokens) < _LARGE_VOCABULARY:
        pairs = _pairs_by_score(vocabulary, scores)
    else:
        key = msgspec.msgpack.encode((tokens, scores, vocabulary.types))
        pairs = cached_pairs(key, len(tokens), lambda: _pairs_by_score(vocabulary, scores))
    return [(tokens[left], tokens[right]) for left, right in pairs.tolist()]


def _pairs_by_score(vocabulary: _Vocabulary, scores: list[float]) -> np.ndarray:
    """[n, 2] ids of the two tokens of each merge, the best first."""
    ids = vocabulary.ids
    pairs: list[tuple[int, int]] = []
    for i in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):
        token = vocabulary.tokens[i]
        if vocabulary.types[i] == _NORMAL:
            for n in range(1, len(token)):
                left, right = ids.get(token[:n]), ids.get(token[n:])
                if left is not None and right is not None:
                    pairs.append((left, right))
    return np.array(pairs, np.int32).reshape(-1, 2)


_BUILDERS = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    return {
        key[len(prefix) + 1 :] or "default": value
        for key, value in metadata.items()
        if isinstance(value, str) and (key == prefix or key.startswith(f"{prefix}."))
    }
