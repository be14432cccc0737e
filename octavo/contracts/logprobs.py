"""Log probabilities as the user gets them: per position, {token id: Logprob}."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

_NO_RANK = 0


@dataclass(slots=True)
class Logprob:
    """Log probability of one token at one position.

    Attributes:
        logprob: natural log, of the raw distribution (or see `ModelConfig.logprobs_mode`).
        rank: from 1; None where it was not asked for.
        decoded_token: its text; None without detokenizing.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class FlatLogprobs(Sequence["dict[int, Logprob] | None"]):
    """Reads as the list of {token id: Logprob} that it stands for, and takes a tenth of its memory:
    numbers are kept as numbers, and dicts are made when they are looked at.

    Args:
        positions: {token id: Logprob}, or None where there is none.
    """

    def __init__(self, positions: Iterable[Mapping[int, Logprob] | None] = ()) -> None:
        self._ends = array("q")  # of each position, in the arrays below
        self._are_none: set[int] = set()
        self.token_ids = array("q")
        self.logprobs = array("d")
        self._ranks = array("q")
        self.decoded_tokens: list[str | None] = []
        for position in positions:
            self.append(position)

    def append(self, position: Mapping[int, Logprob] | None) -> None:
        """Add a position."""
        if position is None:
            self._are_none.add(len(self._ends))
        for token_id, entry in (position or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(entry.logprob)
            self._ranks.append(_NO_RANK if entry.rank is None else entry.rank)
            self.decoded_tokens.append(entry.decoded_token)
        self._ends.append(len(self.token_ids))

    def __iadd__(self, positions: Iterable[Mapping[int, Logprob] | None]) -> FlatLogprobs:
        for position in positions:
            self.append(position)
        return self

    def __add__(self, positions: Iterable[Mapping[int, Logprob] | None]) -> FlatLogprobs:
        both = FlatLogprobs(self)
        both += positions
        return both

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[dict[int, Logprob] | None]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> dict[int, Logprob] | None: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> dict[int, Logprob] | FlatLogprobs | None:
        """One position, or some as another `FlatLogprobs`."""
        if isinstance(index, slice):
            return FlatLogprobs(self[i] for i in range(*index.indices(len(self))))
        i = range(len(self))[index]
        if i in self._are_none:
            return None
        start = self._ends[i - 1] if i else 0
        return {
            self.token_ids[j]: Logprob(
                self.logprobs[j], self._ranks[j] or None, self.decoded_tokens[j]
            )
            for j in range(start, self._ends[i])
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (FlatLogprobs, list)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
