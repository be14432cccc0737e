"""Sampling ops of the CPU back end: rows in parallel on its thread pool, without a full sort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo import _cpu
from octavo.errors import KernelError
from octavo.kernels.ops import SamplingOps, SamplingRows


class CpuSampling(SamplingOps):
    def __init__(self, device: _cpu.Device) -> None:
        self._device = device

    def mask(self, logits: Any, rows: np.ndarray, token_ids: np.ndarray) -> None:
        _native(self._device.mask, logits, _column(rows), _column(token_ids))

    def sample(self, logits: Any, rows: SamplingRows) -> np.ndarray:
        out = np.empty(len(logits), dtype=np.int32)
        _native(
            self._device.sample,
            logits,
            _column(rows.temperature, np.float32),
            _column(rows.top_k),
            _column(rows.top_p, np.float32),
            _column(rows.min_p, np.float32),
            _column(rows.seed, np.uint64),
            _column(rows.sample_index),
            _column(rows.position),
            out,
        )
        return out

    def logprobs(
        self, logits: Any, rows: np.ndarray, token_ids: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not 0 <= k <= logits.shape[1]:
            raise KernelError(f"logprobs k={k} must be in 0…{logits.shape[1]}")
        n = len(rows)
        ids = np.empty((n, 1 + k), dtype=np.int32)
        values = np.empty((n, 1 + k), dtype=np.float32)
        ranks = np.empty(n, dtype=np.int32)
        _native(
            self._device.logprobs, logits, _column(rows), _column(token_ids), ids, values, ranks
        )
        return ids, values, ranks


def _column(values: np.ndarray, dtype: Any = np.int32) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=dtype)


def _native(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except TypeError as error:
        raise KernelError(f"logits must be a float32 matrix: {error}") from error
