"""Logits processors for tests."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from octavo.contracts.sampling_params import SamplingParams
from octavo.sample.logits_processor import BatchUpdate, LogitsProcessor


class Rows(LogitsProcessor):
    """Keeps what it is told, as vLLM's processors do: row → (parameters, prompt, output)."""

    made: ClassVar[list[Rows]] = []
    invariant = False

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.rows: dict[int, tuple[SamplingParams, list[int], list[int]]] = {}
        self.made.append(self)

    def is_argmax_invariant(self) -> bool:
        return self.invariant

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.rows.pop(row)
        for row, *rest in batch_update.added:
            self.rows[row] = tuple(rest)  # type: ignore[assignment]
        for source, target, how in batch_update.moved:
            there = self.rows.pop(target, None)
            assert (there is None) == (how == "move")
            self.rows[target] = self.rows.pop(source)
            if there is not None:
                self.rows[source] = there
        assert sorted(self.rows) == list(range(batch_update.batch_size))
        assert len(self.rows) <= self.max_num_seqs

    def apply(self, logits: np.ndarray) -> np.ndarray | None:
        assert logits.shape == (len(self.rows), self.vocab_size)
        return None


class Shift(Rows):
    """Adds a number of each request's own to a token that its context names; asked for by
    `extra_args={"shift": number}`."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        shift = (params.extra_args or {}).get("shift", 0)
        if not isinstance(shift, (int, float)):
            raise ValueError(f"shift={shift!r} must be a number")

    @classmethod
    def applies_to(cls, params: SamplingParams) -> bool:
        return bool(params.extra_args) and "shift" in params.extra_args

    def apply(self, logits: np.ndarray) -> np.ndarray | None:
        super().apply(logits)
        for row, (params, prompt, output) in self.rows.items():
            assert params.extra_args is not None
            token_id = (sum(output) + len(prompt)) % self.vocab_size
            logits[row, token_id] += params.extra_args["shift"]
        return None


class Sharpen(Rows):
    """Multiplies by 2: the most likely token stays. Returns other logits."""

    invariant = True

    @classmethod
    def applies_to(cls, params: SamplingParams) -> bool:
        return bool(params.extra_args) and "sharpen" in params.extra_args

    def apply(self, logits: np.ndarray) -> np.ndarray | None:
        return logits * 2


class Failing(Rows):
    """Raises where one of its requests says so."""

    def apply(self, logits: np.ndarray) -> np.ndarray | None:
        if any((params.extra_args or {}).get("fail") for params, _, _ in self.rows.values()):
            raise KeyError("no such row")
        return super().apply(logits)
