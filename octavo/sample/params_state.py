"""Sampling parameters of the persistent batch, as columns: one entry per row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from octavo.contracts.features import RunnerFeature
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData
from octavo.errors import RequestError
from octavo.kernels.sampling_ops import SamplingRows


class StagedColumns:
    """Columns [num_rows], zero at first; the writes of a step are staged and applied at once."""

    def __init__(self, num_rows: int, *dtypes: DTypeLike) -> None:
        self.columns = [np.zeros(num_rows, dtype=dtype) for dtype in dtypes]
        self._staged: dict[int, tuple[Any, ...]] = {}

    def stage(self, row: int, *values: Any) -> None:
        """Values of `row`, one per column. A later stage of the same row replaces an earlier."""
        self._staged[row] = values

    def apply(self) -> None:
        """Put the staged values in force."""
        if not self._staged:
            return
        rows = list(self._staged)
        for column, values in zip(self.columns, zip(*self._staged.values())):
            column[rows] = np.array(values, dtype=column.dtype)
        self._staged.clear()


def sampling_params_of(request: NewRequestData) -> SamplingParams:
    """The request's sampling parameters. Raises RequestError where it has none."""
    if request.sampling_params is None:
        raise RequestError("a request that samples needs sampling_params", param="sampling_params")
    return request.sampling_params


class DrawParams(RunnerFeature):
    """How each row's token is drawn: filters and the key of its random stream."""

    def __init__(self, num_rows: int) -> None:
        self._state = StagedColumns(
            num_rows, np.float32, np.int32, np.float32, np.float32, np.uint64, np.int32
        )
        self._drawn: set[int] = set()  # rows that do not just take the best token

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        seed = params.seed
        if seed is None:
            if not params.is_greedy:
                raise RequestError("seed=None; a seed is drawn at admission", param="seed")
            seed = 0  # a greedy row draws nothing
        if not params.is_greedy:
            self._drawn.add(row)
        self._state.stage(
            row,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            seed & 0xFFFF_FFFF_FFFF_FFFF,
            request.sample_index,
        )

    def remove_request(self, row: int) -> None:
        self._drawn.discard(row)

    def apply_staged_writes(self) -> None:
        self._state.apply()

    @property
    def has_draws(self) -> bool:
        """Whether any row is drawn."""
        return bool(self._drawn)

    def are_greedy(self, rows: np.ndarray) -> bool:
        """Whether all of `rows` take the best token."""
        return not (self._drawn and self._state.columns[0][rows].any())

    def gather(self, rows: np.ndarray, positions: np.ndarray) -> SamplingRows:
        """The columns for logits rows.

        Args:
            rows: [R] rows of the batch.
            positions: [R] absolute position of the token to be sampled.
        """
        temperature, top_k, top_p, min_p, seed, sample_index = (
            column[rows] for column in self._state.columns
        )
        return SamplingRows(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            sample_index=sample_index,
            position=positions.astype(np.int32),
        )
