"""Sampling in plain numpy float64, written from the text of `SamplingOps` alone."""

from __future__ import annotations

import numpy as np

from octavo.kernels.rng import uniform
from octavo.kernels.sampling_ops import PenaltyRows, SamplingOps, SamplingRows

FLOAT32_MAX = np.finfo(np.float32).max


def keep_ids(
    logits: np.ndarray, *, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[np.ndarray, list[int]]:
    """All weights [V] float64, and the ids that the filters keep, most likely first. T > 0."""
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
    return weights, kept


def keep(logits: np.ndarray, **filters: float) -> np.ndarray:
    """Weights [V] float64 of the tokens that the filters keep, 0 for the others."""
    weights, kept = keep_ids(logits, **filters)  # type: ignore[arg-type]
    out = np.zeros(len(weights))
    out[kept] = weights[kept]
    return out


class TwinSampling(SamplingOps):
    """Logits are numpy arrays."""

    def mask(self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray) -> None:
        logits[rows, token_ids] = -np.inf

    def allow(self, logits: np.ndarray, rows: np.ndarray, bitmask: np.ndarray) -> None:
        for row, words in zip(rows.tolist(), bitmask.tolist()):
            for token in range(logits.shape[1]):
                if not words[token // 32] >> token % 32 & 1:
                    logits[row, token] = -np.inf

    def add_bias(
        self, logits: np.ndarray, rows: np.ndarray, token_ids: np.ndarray, bias: np.ndarray
    ) -> None:
        np.add.at(logits, (rows, token_ids), bias)

    def penalize(self, logits: np.ndarray, rows: np.ndarray, penalties: PenaltyRows) -> None:
        p = penalties
        for i, row in enumerate(rows.tolist()):
            for j in range(p.starts[i], p.starts[i + 1]):
                x = logits[row, p.token_ids[j]]
                with np.errstate(all="ignore"):
                    x = x / p.repetition[i] if x > 0 else x * p.repetition[i]
                x = FLOAT32_MAX if x > FLOAT32_MAX else x
                if p.counts[j] > 0:
                    x = x - p.frequency[i] * np.float32(p.counts[j])
                    x = x - p.presence[i]
                logits[row, p.token_ids[j]] = x

    def process(self, logits: np.ndarray, rows: np.ndarray, sampling: SamplingRows) -> None:
        for i, row in enumerate(rows.tolist()):
            temperature = float(sampling.temperature[i])
            if temperature == 0:
                continue
            top_k, top_p = int(sampling.top_k[i]), float(sampling.top_p[i])
            min_p = float(sampling.min_p[i])
            x = np.where(np.isnan(logits[row]), -np.inf, logits[row])
            _, kept = keep_ids(x, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
            divisor = np.float32(max(temperature, 1e-30))
            dropped = np.ones(len(x), dtype=bool)
            dropped[kept] = False
            x = np.where(dropped, -np.inf, x)
            logits[row] = x / divisor

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
        self,
        logits: np.ndarray,
        rows: np.ndarray,
        token_ids: np.ndarray,
        k: int,
        *,
        normalized: bool = True,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ids, values, ranks = [], [], []
        for row, token in zip(rows.tolist(), token_ids.tolist()):
            x = logits[row].astype(np.float64)
            logs = x - x.max() - np.log(np.exp(x - x.max()).sum()) if normalized else x
            chosen = [token, *np.lexsort((np.arange(len(x)), -x))[:k].tolist()]
            ids.append(chosen)
            values.append(logs[chosen])
            ranks.append(1 + int((x > x[token]).sum()))
        return (
            np.array(ids, dtype=np.int32),
            np.array(values, dtype=np.float32),
            np.array(ranks, dtype=np.int32),
        )
