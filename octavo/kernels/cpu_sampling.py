"""Sampling ops of the CPU back end: rows in parallel on its thread pool, without a full sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo import _cpu
from octavo.errors import KernelError
from octavo.kernels.sampling_ops import PenaltyRows, SamplingOps, SamplingRows


class CpuSampling(SamplingOps):
    """Logits are a float32 matrix in numpy, changed in place."""

    def __init__(self, device: _cpu.Device) -> None:
        self._device = device

    def mask(self, logits: Any, rows: np.ndarray, token_ids: np.ndarray) -> None:
        _native(self._device.mask, logits, _column(rows), _column(token_ids))

    def allow(self, logits: Any, rows: np.ndarray, bitmask: np.ndarray) -> None:
        _native(self._device.allow, logits, _column(rows), _column(bitmask))

    def add_bias(
        self, logits: Any, rows: np.ndarray, token_ids: np.ndarray, bias: np.ndarray
    ) -> None:
        _native(
            self._device.add_bias,
            logits,
            _column(rows),
            _column(token_ids),
            _column(bias, np.float32),
        )

    def penalize(self, logits: Any, rows: np.ndarray, penalties: PenaltyRows) -> None:
        _native(
            self._device.penalize,
            logits,
            _column(rows),
            _column(penalties.repetition, np.float32),
            _column(penalties.frequency, np.float32),
            _column(penalties.presence, np.float32),
            _column(penalties.starts),
            _column(penalties.token_ids),
            _column(penalties.counts),
        )

    def process(self, logits: Any, rows: np.ndarray, sampling: SamplingRows) -> None:
        _native(self._device.process, logits, _column(rows), *_columns(sampling))

    def sample(self, logits: Any, rows: SamplingRows) -> np.ndarray:
        out = np.empty(len(logits), dtype=np.int32)
        _native(self._device.sample, logits, *_columns(rows), out)
        return out

    def logprobs(
        self,
        logits: Any,
        rows: np.ndarray,
        token_ids: np.ndarray,
        k: int,
        *,
        normalized: bool = True,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not 0 <= k <= logits.shape[1]:
            raise KernelError(f"logprobs k={k} must be in 0…{logits.shape[1]}")
        n = len(rows)
        ids = np.empty((n, 1 + k), dtype=np.int32)
        values = np.empty((n, 1 + k), dtype=np.float32)
        ranks = np.empty(n, dtype=np.int32)
        _native(
            self._device.logprobs,
            logits,
            _column(rows),
            _column(token_ids),
            normalized,
            ids,
            values,
            ranks,
        )
        return ids, values, ranks


def _column(values: np.ndarray, dtype: Any = np.int32) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=dtype)


def _columns(rows: SamplingRows) -> tuple[np.ndarray, ...]:
    return (
        _column(rows.temperature, np.float32),
        _column(rows.top_k),
        _column(rows.top_p, np.float32),
        _column(rows.min_p, np.float32),
        _column(rows.seed, np.uint64),
        _column(rows.sample_index),
        _column(rows.position),
    )


def _native(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except TypeError as error:
        raise KernelError(f"logits must be a float32 matrix: {error}") from error
