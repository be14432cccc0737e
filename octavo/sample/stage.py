"""What a stage of the sampler is: it edits logits before a token is chosen from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from octavo.contracts.features import RunnerFeature
from octavo.kernels.sampling_ops import SamplingOps

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """Logits rows of which a grammar allows some tokens only.

    Attributes:
        rows: [n] int32, rising.
        bitmask: [n, ceil(vocab / 32)] int32 (`SamplingOps.allow`).
    """

    rows: np.ndarray
    bitmask: np.ndarray

    def of(self, part: slice) -> MaskedRows | None:
        """Those among the logits rows of `part`, counted from its start; None if there are none."""
        chosen = (self.rows >= part.start) & (self.rows < part.stop)
        if not chosen.any():
            return None
        rows = self.rows[chosen] - np.int32(part.start)
        return MaskedRows(rows=rows, bitmask=self.bitmask[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """The logits rows of a step: whose they are, and what comes before the token to be sampled.

    The rows of a request, more than one where it has drafts, are neighbours with rising positions.
    A step of many rows is sampled in parts, which may begin amid those of a request.

    Attributes:
        rows: [R] row of the persistent batch.
        offsets: [R] how many drafts there are before the token to be sampled.
        positions: [R] absolute position of the token to be sampled.
        token_ids: [num_rows, max_model_len + 1] int32, the persistent batch: before logits row i
            come token_ids[rows[i], :positions[i]], drafts included.
        grammar: the masks of requests with a grammar; None where there are none.
        failed: logits rows that a stage could not edit, and why: their requests end.
    """

    rows: np.ndarray
    offsets: np.ndarray
    positions: np.ndarray
    token_ids: np.ndarray
    grammar: MaskedRows | None = None
    failed: dict[int, str] = field(default_factory=dict)


class LogitsStage(RunnerFeature, ABC):
    """State per row of the persistent batch, and an edit of the logits rows that have some."""

    @property
    @abstractmethod
    def is_needed(self) -> bool:
        """Whether `rows_to_edit` may name any, as long as no request comes or goes."""

    @abstractmethod
    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        """Indices of logits rows, rising; None where the stage has nothing to do."""

    @abstractmethod
    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        """Edit the logits rows that `rows_to_edit` named, in place."""


class RequestRows(Generic[T]):
    """State of those requests that ask for something, by row of the persistent batch."""

    def __init__(self, num_rows: int) -> None:
        self._states: dict[int, T] = {}
        self._has_state = np.zeros(num_rows, dtype=bool)

    def __bool__(self) -> bool:
        """Whether any row has a state."""
        return bool(self._states)

    def put(self, row: int, state: T) -> None:
        """`row` has a state now."""
        self._states[row] = state
        self._has_state[row] = True

    def drop(self, row: int) -> None:
        """`row` has none (any more)."""
        if self._states.pop(row, None) is not None:
            self._has_state[row] = False

    def find(self, rows: np.ndarray) -> np.ndarray | None:
        """Indices into `rows` [n] of those with a state; None where there are none."""
        if not self._states:
            return None
        found = np.flatnonzero(self._has_state[rows])
        return found if len(found) else None

    def get(self, row: int) -> T | None:
        """The state of a row, if it has one."""
        return self._states.get(row)

    def of(self, rows: np.ndarray) -> list[T]:
        """The states of rows that have one."""
        return [self._states[row] for row in rows.tolist()]
