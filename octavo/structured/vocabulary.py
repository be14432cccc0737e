"""What grammars need to know of a tokenizer, and llguidance's form of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class Encoder(Protocol):
    """What is used of `engine.tokenizer.Tokenizer`."""

    @property
    def all_special_ids(self) -> Collection[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def encode_plain(self, text: str) -> list[int]: ...


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokens of a model.

    Attributes:
        token_bytes: exact bytes by id, as many as the model's logits are wide; b"" for ids that
            stand for no text, which no grammar allows.
        special_ids: tokens that are not text, whatever their spelling; a grammar may name them.
        eos_token_ids: allowed where the text may end.
        encoder: the tokenizer.
    """

    token_bytes: Sequence[bytes]
    special_ids: Sequence[int]
    eos_token_ids: Sequence[int]
    encoder: Encoder

    @classmethod
    def of(cls, encoder: Encoder, *, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
        """The vocabulary of a tokenizer beside a model with logits of `vocab_size` columns."""
        special_ids = {*encoder.all_special_ids, *eos_token_ids}
        return cls(
            token_bytes=[encoder.token_bytes(i) for i in range(vocab_size)],
            special_ids=sorted(i for i in special_ids if 0 <= i < vocab_size),
            eos_token_ids=list(eos_token_ids),
            encoder=encoder,
        )

    @property
    def special_tokens(self) -> dict[int, bytes]:
        """Spellings of the special tokens."""
        return {i: self.token_bytes[i] for i in self.special_ids}

    def tokenizer(self) -> LLTokenizer:
        """llguidance's tokenizer. Takes a quarter of a second for 49,152 tokens."""
        return ll_tokenizer(
            self.token_bytes, self.special_ids, self.eos_token_ids, _TextEncoder(self)
        )


def sparse_tokenizer(
    vocab_size: int, special_tokens: Mapping[int, bytes], eos_token_ids: Sequence[int]
) -> LLTokenizer:
    """A tokenizer with the same ids and special tokens, whose only other tokens are the 256 bytes:
    grammars compile over it as over the whole one, and it takes no time to build."""
    tokens = [b""] * vocab_size
    plain = (i for i in range(vocab_size) if i not in special_tokens)
    for byte, i in zip(range(256), plain):
        tokens[i] = bytes([byte])
    for i, spelling in special_tokens.items():
        tokens[i] = spelling
    by_bytes = {token: i for i, token in enumerate(tokens) if len(token) == 1}
    return ll_tokenizer(
        tokens,
        list(special_tokens),
        eos_token_ids,
        lambda text: _greedy(text.encode(), by_bytes, 1),
    )


def ll_tokenizer(
    tokens: Sequence[bytes],
    special_ids: Sequence[int],
    eos_token_ids: Sequence[int],
    encode: Callable[[str], list[int]],
) -> LLTokenizer:
    """An LLTokenizer over these tokens."""
    from llguidance import LLTokenizer

    wrapper = _Wrapper(list(tokens), list(special_ids), eos_token_ids[0], encode)
    return LLTokenizer(wrapper, len(tokens), list(eos_token_ids))  # type: ignore[arg-type]


class _Wrapper:
    """What LLTokenizer reads of a tokenizer; called with text, it gives ids."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self,
        tokens: list[bytes],
        special_token_ids: list[int],
        eos_token_id: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


_MAX_FORCED_CHARS = 512


class _TextEncoder:
    """Text that a grammar forces, as tokens: those of the model's own tokenizer, so that it reads
    what it knows; by longest match where that adds a space or drops one.

    Only its beginning, since llguidance asks again after every token: the whole of a long constant
    would be encoded each time.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._by_bytes: dict[bytes, int] = {}
        self._longest = 0

    def __call__(self, text: str) -> list[int]:
        text = text[:_MAX_FORCED_CHARS]
        wanted, token_bytes = text.encode(), self._vocabulary.token_bytes
        ids = self._vocabulary.encoder.encode_plain(text)
        if max(ids, default=0) < len(token_bytes) and wanted == b"".join(
            [token_bytes[i] for i in ids]
        ):
            return ids
        if not self._by_bytes:
            specials = set(self._vocabulary.special_ids)
            for i, token in enumerate(token_bytes):
                if token and i not in specials:
                    self._by_bytes.setdefault(token, i)
            self._longest = max(map(len, self._by_bytes), default=0)
        return _greedy(wanted, self._by_bytes, self._longest)


def _greedy(wanted: bytes, by_bytes: Mapping[bytes, int], longest: int) -> list[int]:
    """Tokens by longest match; it ends where no token goes on."""
    ids: list[int] = []
    start = 0
    while start < len(wanted):
        for end in range(min(len(wanted), start + longest), start, -1):
            token_id = by_bytes.get(wanted[start:end])
            if token_id is not None:
                break
        else:
            break
        ids.append(token_id)
        start = end
    return ids
