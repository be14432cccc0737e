"""Sampling in plain numpy float64, written from the text of `SamplingOps` alone."""

from __future__ import annotations

import numpy as np

from octavo.kernels.ops import SamplingOps, SamplingRows
from octavo.kernels.rng import uniform


def keep(
    logits: np.ndarray, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """Weights [V] float64 of the tokens that the filters keep, 0 for the others. T > 0."""
    x = logits.astype(np.float64)
    order = np.lexsort((np.arange(len(x)), -x))
    with np.errstate(all="ignore"):
        gap = x - x.max()
        weights = np.where(gap == 0, 1.0, np.exp(gap / temperature))
    kept = [i for i in order if weights[i] >= min_p]
    if top_k:
        kept = kept[:top_k]
    if top_p < 1:
        total, running, last = sum(weights[i] for i in kept), 0.0, 0
        for last, i in enumerate(kept, 1):  # noqa: B007
            running += weights[i]
            if running >= top_p * total:
                break
        kept = kept[:last]
    out = np.zeros(len(x))
    out[kept] = weights[kept]
    return out


class TwinSampling(SamplingOps):
    """Logits are numpy arrays."""

    def mask(self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray) -> None:
        logits[rows, token_ids] = -np.inf

    def sample(self, logits: np.ndarray, rows: SamplingRows) -> np.ndarray:
        draws = uniform(rows.seed, rows.position, rows.sample_index)
        ids = []
        for i, row in enumerate(np.nan_to_num(logits, nan=-np.inf, posinf=np.inf, neginf=-np.inf)):
            if rows.temperature[i] == 0:
                ids.append(int(np.argmax(row)))
                continue
            weights = keep(
                row,
                temperature=float(rows.temperature[i]),
                top_k=int(rows.top_k[i]),
                top_p=float(rows.top_p[i]),
                min_p=float(rows.min_p[i]),
            )
            running = np.cumsum(weights)
            ids.append(int(np.searchsorted(running, draws[i] * running[-1], side="right")))
        return np.array(ids, dtype=np.int32)

    def logprobs(
        self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids, values, ranks = [], [], []
        for row, token in zip(rows.tolist(), token_ids.tolist()):
            x = logits[row].astype(np.float64)
            logs = x - x.max() - np.log(np.exp(x - x.max()).sum())
            chosen = [token, *np.lexsort((np.arange(len(x)), -x))[:k].tolist()]
            ids.append(chosen)
            values.append(logs[chosen])
            ranks.append(1 + int((x > x[token]).sum()))
        return (
            np.array(ids, dtype=np.int32),
            np.array(values, dtype=np.float32),
            np.array(ranks, dtype=np.int32),
        )
