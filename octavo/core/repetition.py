"""Noticing that an output repeats itself (`RepetitionDetectionParams`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.contracts.sampling_params import RepetitionDetectionParams


class RepetitionDetector:
    """Tells when the end of an output is a pattern of p tokens, `min_count` times in a row.

    That is so where each of the last p * (min_count - 1) tokens equals the one p before it. So one
    number per p is kept, the length of the run of such tokens that ends the output; a token costs
    one pass over them, whatever has come before.
    """

    def __init__(self, params: RepetitionDetectionParams) -> None:
        smallest = max(1, params.min_pattern_size)
        self._sizes = np.arange(smallest, params.max_pattern_size + 1)
        self._needed = self._sizes * (params.min_count - 1)
        self._runs = np.zeros(len(self._sizes), dtype=np.int64)
        # Token i is at [i % length].
        self._recent = np.full(params.max_pattern_size, -1, dtype=np.int64)
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> int | None:
        """Take new tokens: how many of them were taken when the output was found stuck, or None."""
        for count, token_id in enumerate(token_ids, start=1):
            length = len(self._recent)
            is_same = self._recent[(self._num_tokens - self._sizes) % length] == token_id
            self._runs = np.where(is_same, self._runs + 1, 0)
            self._recent[self._num_tokens % length] = token_id
            self._num_tokens += 1
            if (self._runs >= self._needed).any():
                return count
        return None
