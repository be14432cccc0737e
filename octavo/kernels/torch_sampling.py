"""Sampling ops in torch: the specification of `SamplingOps`, one row after the other. Results are
computed in float64, edits in float32."""

from __future__ import annotations

import numpy as np
import torch

from octavo.errors import KernelError
from octavo.kernels.rng import uniform
from octavo.kernels.sampling_ops import PenaltyRows, SamplingOps, SamplingRows

_LEAST_DIVISOR = 1e-30
_LEAST_WEIGHT = 1e-38


class TorchSampling(SamplingOps):
    """Plain and slow. Logits are torch tensors [R, vocab] float32."""

    # ---- edits

    def mask(self, logits: torch.Tensor, rows: np.ndarray, token_ids: np.ndarray) -> None:
        logits[_index(rows), _index(token_ids)] = -torch.inf

    def allow(self, logits: torch.Tensor, rows: np.ndarray, bitmask: np.ndarray) -> None:
        num_words = -(-logits.shape[1] // 32)
        if bitmask.shape != (len(rows), num_words):
            raise KernelError(f"a bitmask of {bitmask.shape} for {len(rows)} rows of {num_words}")
        bits = torch.from_numpy(bitmask)[:, :, None] >> torch.arange(32, dtype=torch.int32) & 1
        allowed = bits.reshape(len(rows), -1)[:, : logits.shape[1]].bool()
        logits[_index(rows)] = logits[_index(rows)].masked_fill(~allowed, -torch.inf)

    def add_bias(
        self, logits: torch.Tensor, rows: np.ndarray, token_ids: np.ndarray, bias: np.ndarray
    ) -> None:
        for row, token, value in zip(rows.tolist(), token_ids.tolist(), torch.from_numpy(bias)):
            logits[row, token] += value

    def penalize(self, logits: torch.Tensor, rows: np.ndarray, penalties: PenaltyRows) -> None:
        p = penalties
        columns = map(torch.from_numpy, (p.repetition, p.frequency, p.presence))
        starts = p.starts.tolist()
        for row, start, end, repetition, frequency, presence in zip(
            rows.tolist(), starts, starts[1:], *columns
        ):
            ids = _index(p.token_ids[start:end])
            counts = torch.from_numpy(p.counts[start:end]).float()
            x = logits[row, ids]
            largest = torch.finfo(torch.float32).max
            x = torch.where(x > 0, (x / repetition).clamp(max=largest), x * repetition)
            x = torch.where(counts > 0, x - frequency * counts - presence, x)
            logits[row, ids] = x

    def process(self, logits: torch.Tensor, rows: np.ndarray, sampling: SamplingRows) -> None:
        for i, row in enumerate(rows.tolist()):
            temperature = float(sampling.temperature[i])
            if temperature == 0:
                continue
            x = _finite(logits[row])
            weights, keep = _filter(x, sampling, i)
            if not keep.all():
                keep &= weights >= _LEAST_WEIGHT
            x = x / max(temperature, float(np.float32(_LEAST_DIVISOR)))
            logits[row] = x.masked_fill(~keep, -torch.inf).float()

    # ---- results

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> np.ndarray:
        if len(rows.temperature) != len(logits):
            raise KernelError(
                f"{len(rows.temperature)} sampling rows for {len(logits)} logits rows"
            )
        draws = uniform(rows.seed, rows.position, rows.sample_index)
        ids = [_sample_row(row, rows, i, float(draws[i])) for i, row in enumerate(_finite(logits))]
        return np.array(ids, dtype=np.int32)

    def logprobs(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        token_ids: np.ndarray,
        k: int,
        *,
        normalized: bool = True,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        vocab = logits.shape[1]
        if not 0 <= k <= vocab:
            raise KernelError(f"k={k} logprobs asked of a vocabulary of {vocab}")
        n = len(rows)
        ids = np.empty((n, 1 + k), dtype=np.int32)
        values = np.empty((n, 1 + k), dtype=np.float32)
        ranks = np.empty(n, dtype=np.int32)
        for i, (row, token) in enumerate(zip(rows.tolist(), token_ids.tolist())):
            x = _finite(logits[row])
            best = _by_likelihood(x)[:k]
            chosen = torch.cat([torch.tensor([token]), best])
            all_values = torch.log_softmax(x, dim=0) if normalized else x
            ids[i] = chosen.numpy()
            values[i] = all_values[chosen].float().numpy()
            ranks[i] = 1 + int((x > x[token]).sum())
        return ids, values, ranks


def _index(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).long()


def _finite(logits: torch.Tensor) -> torch.Tensor:
    """float64, NaN as -inf."""
    return logits.double().masked_fill(logits.isnan(), -torch.inf)


def _by_likelihood(logits: torch.Tensor) -> torch.Tensor:
    """Token ids from the most likely on, ties by id."""
    return torch.sort(logits, descending=True, stable=True).indices


def _filter(logits: torch.Tensor, rows: SamplingRows, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a row [V] float64 whose temperature is not 0: all weights, and which tokens stay."""
    top_k, top_p = int(rows.top_k[i]), float(rows.top_p[i])
    order = _by_likelihood(logits)
    best = logits[order[0]]
    weights = torch.exp((logits - best) / float(rows.temperature[i]))
    weights = torch.where(logits == best, 1.0, weights)
    # The most likely token has weight 1, so min_p <= 1 always keeps it.
    keep = weights >= float(rows.min_p[i])
    if top_k > 0:
        keep[order[top_k:]] = False
    if top_p < 1:
        kept = weights[order] * keep[order]  # falling
        before = kept.cumsum(0) - kept
        outside = before >= top_p * kept.sum()
        outside[0] = False
        keep[order[outside]] = False
    return weights, keep


def _sample_row(logits: torch.Tensor, rows: SamplingRows, i: int, draw: float) -> int:
    if rows.temperature[i] == 0:
        return int(_by_likelihood(logits)[0])
    weights, keep = _filter(logits, rows, i)
    running = (weights * keep).cumsum(0)
    return int(torch.searchsorted(running, draw * running[-1], right=True))
