"""A conversation: its turns, what a backend makes of them, and what happens when it grows too long.

Nothing here knows of terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.errors import PromptTooLongError

Message = dict[str, str]

_ROOM_FOR_ANSWER = 256
"""Tokens that are kept free for an answer whose length is not given; at most a quarter of all."""


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of an answer; `finish_reason` with the last one."""

    text: str
    finish_reason: str | None = None


class ChatBackend(Protocol):
    """What answers.

    Attributes:
        name: of the model.
        max_model_len: most tokens of prompt and answer; None where that is not known.
    """

    name: str
    max_model_len: int | None

    def count_tokens(self, messages: Sequence[Message]) -> int | None:
        """Tokens of the messages as a prompt; None where that cannot be known."""

    def stream(self, messages: Sequence[Message], params: Mapping[str, Any]) -> Iterator[Piece]:
        """The answer as it comes. Leaving the iterator ends it.

        Raises:
            PromptTooLongError: before the first piece: the messages do not fit the model.
            OctavoError: it failed.
        """


class ChatSession:
    """One conversation.

    Args:
        params: of the sampling, by name.
        tell: called with what the user should know.

    Attributes:
        system: the system prompt; "" is none.
    """

    def __init__(
        self,
        backend: ChatBackend,
        *,
        system: str = "",
        params: Mapping[str, Any],
        tell: Callable[[str], None],
    ) -> None:
        self.backend = backend
        self.system = system
        self.params = dict(params)
        self._tell = tell
        self._turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        """What the model is given."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + self._turns

    def reset(self) -> None:
        """Forget all turns; the system prompt stays."""
        self._turns.clear()

    def reply(self, text: str) -> Iterator[str]:
        """Say `text`, and get the answer in pieces. Leaving the iterator ends the answer; what was
        said of it until then stays a part of the conversation.

        Raises:
            OctavoError: there is no answer; the conversation is as before.
        """
        self._turns.append({"role": "user", "content": text})
        said: list[str] = []
        reason = None
        try:
            for piece in self._stream():
                said.append(piece.text)
                reason = piece.finish_reason
                yield piece.text
        finally:
            answer = "".join(said)
            if answer or reason:
                self._turns.append({"role": "assistant", "content": answer})
            else:
                self._turns.pop()
        if reason == "length":
            self._tell(self._why_cut())

    def _stream(self) -> Iterator[Piece]:
        dropped = self._make_room()
        while True:
            pieces = self.backend.stream(self.messages, self.params)
            try:
                first = next(pieces, None)
            except PromptTooLongError:
                if not self._drop_oldest():
                    raise
                dropped += 1
            else:
                break
        if dropped:
            self._tell(
                f"the context{self._size()} is full: the model no longer sees the oldest "
                f"{'turn' if dropped == 1 else f'{dropped} turns'}; /reset starts anew"
            )
        if first is not None:
            yield first
            yield from pieces

    def _make_room(self) -> int:
        """Drop the oldest turns until there is room for an answer. Returns how many."""
        dropped, limit = 0, self.backend.max_model_len
        if limit is None:
            return 0
        room = min(self.params.get("max_tokens") or _ROOM_FOR_ANSWER, limit // 4)
        while (count := self.backend.count_tokens(self.messages)) is not None:
            if count + room <= limit or not self._drop_oldest():
                break
            dropped += 1
        return dropped

    def _drop_oldest(self) -> bool:
        """Drop the first turn of the user and its answer, unless it is the one to be answered."""
        users = [i for i, turn in enumerate(self._turns) if turn["role"] == "user"]
        if len(users) < 2:
            return False
        del self._turns[: users[1]]
        return True

    def _why_cut(self) -> str:
        limit = self.params.get("max_tokens")
        if limit is not None:
            return f"cut after max_tokens={limit}; /params max_tokens=… changes it"
        return f"cut: the context{self._size()} is full; /reset starts anew"

    def _size(self) -> str:
        limit = self.backend.max_model_len
        return "" if limit is None else f" of {limit} tokens"
