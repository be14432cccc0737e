"""Sampling ops in torch: the specification of `SamplingOps`, one row after the other. Edits and
weights are computed in float32, in single operations; sums and log probabilities in float64."""

from __future__ import annotations

import math

import numpy as np
import torch

from octavo.errors import KernelError
from octavo.kernels.rng import uniform
from octavo.kernels.sampling_ops import PenaltyRows, SamplingOps, SamplingRows

_LEAST_DIVISOR = np.float32(1e-30)
_LEAST_EXPONENT = -25.0  # its weight is 0
_ROUNDING = 2.0**-11  # adding and taking it away leaves a multiple of 2^-34
_POLYNOMIAL = (8.312524296e-3, 4.189011455e-2, 1.666711420e-1, 4.999923110e-1, 1.0, 1.0)


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
        allowed = bits.reshape(len(rows), 32 * num_words)[:, : logits.shape[1]].bool()
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
            temperature = sampling.temperature[i]
            x = _without_nan(logits[row])
            if temperature == 0 or not x.max().isfinite():
                continue
            _, keep = _filter(x, sampling, i)
            divisor = float(max(temperature, _LEAST_DIVISOR))
            logits[row] = (x / divisor).masked_fill(~keep, -torch.inf)

    # ---- results

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> np.ndarray:
        if len(rows.temperature) != len(logits):
            raise KernelError(
                f"{len(rows.temperature)} sampling rows for {len(logits)} logits rows"
            )
        draws = uniform(rows.seed, rows.position, rows.sample_index)
        ids = [_sample_row(_without_nan(x), rows, i, float(draws[i])) for i, x in enumerate(logits)]
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
            x = _without_nan(logits[row]).double()
            best = _by_likelihood(x)[:k]
            chosen = torch.cat([torch.tensor([token]), best])
            all_values = torch.log_softmax(x, dim=0) if normalized else x
            ids[i] = chosen.numpy()
            values[i] = all_values[chosen].float().numpy()
            ranks[i] = 1 + int((x > x[token]).sum())
        return ids, values, ranks


def _index(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).long()


def _without_nan(logits: torch.Tensor) -> torch.Tensor:
    """NaN as -inf."""
    return logits.masked_fill(logits.isnan(), -torch.inf)


def _by_likelihood(logits: torch.Tensor) -> torch.Tensor:
    """Token ids from the most likely on, ties by id."""
    return torch.sort(logits, descending=True, stable=True).indices


def _scaled(logits: torch.Tensor, temperature: np.float32) -> torch.Tensor:
    """z = (logit - max) / T of a row [V] float32."""
    with np.errstate(over="ignore"):
        inverse = min(np.float32(1) / temperature, np.finfo(np.float32).max)
    return (logits - logits.max()) * float(inverse)


def _weights(z: torch.Tensor) -> torch.Tensor:
    """e^z [V] float64, to a multiple of 2^-34. Cody and Waite's reduction by multiples of log 2,
    then a minimax polynomial; the steps are those of csrc/kernels/sampling.inl.h."""
    z = z.clamp(min=_LEAST_EXPONENT)
    n = (z * 1.442695041).round()
    r = (z - n * 0.693359375) + n * 2.12194440e-4
    e = torch.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        e = e * r + coefficient
    e = e * (n.int() + 127 << 23).view(torch.float32)  # 2^n
    return ((e + _ROUNDING) - _ROUNDING).double()


def _filter(logits: torch.Tensor, rows: SamplingRows, i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a row [V] float32 whose temperature is not 0: all weights, and which tokens stay."""
    top_k, top_p, min_p = int(rows.top_k[i]), float(rows.top_p[i]), float(rows.min_p[i])
    order = _by_likelihood(logits)
    z = _scaled(logits, rows.temperature[i])
    weights = _weights(z)
    keep = torch.ones_like(z, dtype=torch.bool)
    if min_p > 0:
        keep = z >= float(np.float32(math.log(min(min_p, 1.0))))
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
    if rows.temperature[i] == 0 or not logits.max().isfinite():
        return int(_by_likelihood(logits)[0])
    weights, keep = _filter(logits, rows, i)
    ids = (weights * keep).nonzero().squeeze(1)
    running = weights[ids].cumsum(0)
    drawn = torch.searchsorted(running, draw * running[-1], right=True)
    return int(ids[min(int(drawn), len(ids) - 1)])  # rounding may hide the total's last bit
