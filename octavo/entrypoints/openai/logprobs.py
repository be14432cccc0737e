"""Log probabilities in the shapes of chat and of completions.

Values are clamped to -9999.0, because JSON has no infinity (and OpenAI's clients expect that).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from octavo.entrypoints.openai.answers import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from octavo.entrypoints.openai.errors import bad_request
from octavo.errors import shown

if TYPE_CHECKING:
    from octavo.contracts.messages import Logprob
    from octavo.entrypoints.openai.tokens import TextOffsets, TokenTable

LOWEST = -9999.0

_TOKEN_NAME = re.compile(r"token_id:([0-9]{1,9})")

Position = Mapping[int, "Logprob"]
"""{token id: Logprob}: the token itself first, then the alternatives by rank."""


def finite(value: float) -> float:
    """`value`, or LOWEST for less than that and for NaN."""
    return value if value > LOWEST else LOWEST


def token_name(token_id: int) -> str:
    """A token by its id, for return_tokens_as_token_ids."""
    return f"token_id:{token_id}"


def token_id_of(name: str) -> int:
    """The id that `token_name` gave. Raises APIError."""
    match = _TOKEN_NAME.fullmatch(name)
    if match is None:
        raise bad_request(f"{shown(name)} is no token as token_id:17")
    return int(match[1])


def chat_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Position],
    table: TokenTable,
    *,
    num_top: int,
    as_ids: bool,
) -> ChatLogprobs:
    """`choices[].logprobs` of chat: `num_top` alternatives per token, by rank."""

    def spell(token_id: int, logprob: float) -> tuple[str, float, list[int]]:
        spelling = table.spell(token_id)
        text = token_name(token_id) if as_ids else spelling.chat
        return text, finite(logprob), list(spelling.data)

    content = []
    for token_id, position in zip(token_ids, positions):
        top = [TopLogprob(*spell(i, p.logprob)) for i, p in _top(position, num_top)]
        content.append(TokenLogprob(*spell(token_id, position[token_id].logprob), top))
    return ChatLogprobs(content)


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[Position | None],
    table: TokenTable,
    offsets: TextOffsets,
    *,
    num_top: int,
    as_ids: bool,
) -> CompletionLogprobs:
    """`choices[].logprobs` of completions: `num_top` alternatives and the token itself. None stands
    for the first token of an echoed prompt, which has no probability."""

    def spell(token_id: int) -> str:
        return token_name(token_id) if as_ids else table.spell(token_id).completion

    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token_id, position in zip(token_ids, positions):
        if position is None:
            values.append(None)
            tops.append(None)
            continue
        own = finite(position[token_id].logprob)
        values.append(own)
        top = {spell(i): finite(p.logprob) for i, p in _top(position, num_top)}
        top.setdefault(spell(token_id), own)
        tops.append(top)
    return CompletionLogprobs(
        tokens=[spell(i) for i in token_ids],
        token_logprobs=values,
        top_logprobs=tops,
        text_offset=offsets.advance(token_ids),
    )


def prompt_logprobs(positions: Sequence[Position | None], num_top: int) -> PromptLogprobs:
    """`prompt_logprobs`, vLLM's addition: each token and its `num_top` alternatives (-1: all)."""
    return [p if p is None else _prompt_position(p, num_top) for p in positions]


def _prompt_position(position: Position, num_top: int) -> dict[str, PromptLogprob]:
    own = next(iter(position))
    chosen = {own: position[own], **dict(_top(position, num_top))}
    return {
        str(i): PromptLogprob(finite(p.logprob), p.rank, p.decoded_token) for i, p in chosen.items()
    }


def _top(position: Position, num_top: int) -> list[tuple[int, Logprob]]:
    """The `num_top` most likely tokens (-1: all); the token itself is one only by its rank. Then
    those that were listed, which have none."""
    ranked = sorted(
        (item for item in position.items() if item[1].rank is not None),
        key=lambda item: item[1].rank or 0,
    )
    listed = [item for item in position.items() if item[1].rank is None]
    return (ranked if num_top < 0 else ranked[:num_top]) + listed
