"""Sampling ops in torch, float64: the specification of `SamplingOps`, one row after the other."""

from __future__ import annotations

import numpy as np
import torch

from octavo.errors import KernelError
from octavo.kernels.ops import SamplingOps, SamplingRows
from octavo.kernels.rng import uniform


class TorchSampling(SamplingOps):
    """Plain and slow. Logits are torch tensors [R, vocab] float32. NaN counts as -inf."""

    def mask(self, logits: torch.Tensor, rows: np.ndarray, token_ids: np.ndarray) -> None:
        logits[torch.from_numpy(rows).long(), torch.from_numpy(token_ids).long()] = -torch.inf

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> np.ndarray:
        if len(rows.temperature) != len(logits):
            raise KernelError(
                f"{len(rows.temperature)} sampling rows for {len(logits)} logits rows"
            )
        draws = uniform(rows.seed, rows.position, rows.sample_index)
        ids = [
            _sample_row(
                row,
                temperature=float(rows.temperature[i]),
                top_k=int(rows.top_k[i]),
                top_p=float(rows.top_p[i]),
                min_p=float(rows.min_p[i]),
                draw=float(draws[i]),
            )
            for i, row in enumerate(_finite(logits))
        ]
        return np.array(ids, dtype=np.int32)

    def logprobs(
        self, logits: torch.Tensor, rows: np.ndarray, token_ids: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        vocab = logits.shape[1]
        if not 0 <= k <= vocab:
            raise KernelError(f"k={k} logprobs asked of a vocabulary of {vocab}")
        n = len(rows)
        ids = np.empty((n, 1 + k), dtype=np.int32)
        logprobs = np.empty((n, 1 + k), dtype=np.float32)
        ranks = np.empty(n, dtype=np.int32)
        for i, (row, token) in enumerate(zip(rows.tolist(), token_ids.tolist())):
            x = _finite(logits[row])
            best = _by_likelihood(x)[:k]
            chosen = torch.cat([torch.tensor([token]), best])
            ids[i] = chosen.numpy()
            logprobs[i] = torch.log_softmax(x, dim=0)[chosen].float().numpy()
            ranks[i] = 1 + int((x > x[token]).sum())
        return ids, logprobs, ranks


def _finite(logits: torch.Tensor) -> torch.Tensor:
    """float64, NaN as -inf."""
    return logits.double().masked_fill(logits.isnan(), -torch.inf)


def _by_likelihood(logits: torch.Tensor) -> torch.Tensor:
    """Token ids from the most likely on, ties by id."""
    return torch.sort(logits, descending=True, stable=True).indices


def _sample_row(
    logits: torch.Tensor,  # [V] float64
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    draw: float,
) -> int:
    order = _by_likelihood(logits)
    if temperature == 0:
        return int(order[0])
    best = logits[order[0]]
    weights = torch.where(logits == best, 1.0, torch.exp((logits - best) / temperature))  # [V]
    # The most likely token has weight 1, so min_p <= 1 always keeps it.
    keep = weights >= min_p
    if top_k > 0:
        keep[order[top_k:]] = False
    if top_p < 1:
        kept = weights[order] * keep[order]  # falling
        before = kept.cumsum(0) - kept
        outside = before >= top_p * kept.sum()
        outside[0] = False
        keep[order[outside]] = False
    running = (weights * keep).cumsum(0)
    return int(torch.searchsorted(running, draw * running[-1], right=True))
