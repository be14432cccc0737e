"""The specification of quantized linear maps: how weights and activations are rounded.

Arithmetic is float32 in the order that is written here, so that codes come out the same to the
last one; sums over a group of weights are four, of every fourth element, added at the end.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from octavo.contracts.tensor import HostTensor
from octavo.contracts.weight_format import Grouping, WeightFormat

_SMALLEST_MAX = 1e-30
_CLIPS = (0.0, 0.03, 0.06, 0.1, 0.15)


def quantize_row(row: torch.Tensor, grouping: Grouping) -> torch.Tensor:
    """An activation row [K] as a weight of this grouping sees it: scale * code, float64."""
    x = _grouped(row.float()[None], grouping.group)
    top = x.abs().amax(-1, keepdim=True)
    usable = top > _SMALLEST_MAX
    unit = top  # has the code 127
    if grouping.has_outlier:
        quads = x.abs().unflatten(-1, (-1, 4)).amax(-1)
        unit = torch.maximum(quads.topk(2).values[..., 1:], top / 257)
    inverse = torch.full_like(unit, 127) / unit  # 127 / unit would be 127 times its reciprocal
    codes = torch.where(usable, torch.round(x * inverse), 0)
    scale = torch.where(usable, unit / 127, 0)
    return (codes.double() * scale.double()).reshape(-1)[: len(row)]


def round_weight(tensor: HostTensor, format: WeightFormat) -> torch.Tensor:
    """The values [N, K] that a quantized format keeps of a tensor, float64: exact for blocks that
    it holds."""
    values = torch.tensor(tensor.to_float32())
    grouping = format.grouping
    assert grouping is not None, "float formats round by themselves"
    if format.holds(tensor.dtype):
        return values.double()
    x = _grouped(values, values.shape[1] if grouping.per_output else grouping.group)
    rounded = _affine(x, grouping) if grouping.has_min else _symmetric(x, grouping)
    return rounded.reshape(len(values), -1)[:, : values.shape[1]]


def _grouped(x: torch.Tensor, group: int) -> torch.Tensor:
    """[N, K] → [N, groups, group], padded with zeros."""
    return functional.pad(x, (0, -x.shape[1] % group)).view(len(x), -1, group)


def _symmetric(x: torch.Tensor, grouping: Grouping) -> torch.Tensor:
    limit = float((1 << (grouping.bits - 1)) - 1)
    scale = _stored(x.abs().amax(-1, keepdim=True) / limit, grouping)
    inverse = torch.where(scale > 0, 1 / scale, 0)
    return torch.round((x * inverse).clamp(-limit, limit)).double() * scale.double()


def _affine(x: torch.Tensor, grouping: Grouping) -> torch.Tensor:
    """Scale and minimum from the extremes and from ranges clipped a little, each refined once by
    least squares; the one of least error stays, the first of equals."""
    levels = (1 << grouping.bits) - 1
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    best = _round(x, levels, _stored((high - low) / levels, grouping), _stored(low, grouping))
    for clip in torch.tensor(_CLIPS, dtype=torch.float32):
        scale, minimum = (high - low) * (1 - 2 * clip) / levels, low + (high - low) * clip
        codes = _round(x, levels, scale, minimum)[2]
        fitted = _fit(x, codes, scale, minimum)
        trial = _round(x, levels, *(_stored(part, grouping) for part in fitted))
        best = [torch.where(trial[3] < best[3], new, old) for new, old in zip(trial, best)]
    scale, minimum, codes, _ = (part.double() for part in best)
    return scale * codes + minimum


def _round(
    x: torch.Tensor, levels: int, scale: torch.Tensor, minimum: torch.Tensor
) -> list[torch.Tensor]:
    """[scale, minimum, codes, sum of squared errors]."""
    inverse = torch.where(scale > 0, 1 / scale, 0)
    codes = torch.round(((x - minimum) * inverse).clamp(0, levels))
    difference = scale * codes + minimum - x
    return [scale, minimum, codes, _sum(difference * difference)]


def _fit(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    n, q, qq, v, qv = x.shape[-1], _sum(codes), _sum(codes * codes), _sum(x), _sum(codes * x)
    determinant = n * qq - q * q
    fitted_scale = (n * qv - q * v) / determinant
    usable = (determinant > 0) & (fitted_scale > 0)
    return (
        torch.where(usable, fitted_scale, scale),
        torch.where(usable, (qq * v - q * qv) / determinant, minimum),
    )


def _sum(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[..., :4])
    for i in range(0, x.shape[-1], 4):
        total = total + x[..., i : i + 4]
    return (total[..., 0:1] + total[..., 2:3]) + (total[..., 1:2] + total[..., 3:4])


def _stored(x: torch.Tensor, grouping: Grouping) -> torch.Tensor:
    return x if grouping.wide else x.half().float()
