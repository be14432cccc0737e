"""Rotary position embedding (Su et al., *RoFormer*, 2021) and its scalings for longer contexts.

Tables are computed in float64 and stored in float32. They depend on `max_model_len` and never on
the current length, so that a token's keys are the same in every step. Two scalings are defined by
length, and take `max_model_len` for it: *dynamic* stretches its base as for a text of that length,
and *longrope* takes its long factors where `max_model_len` exceeds the original length. Within the
original length (`max_model_len` set so) both are what Hugging Face computes for every text.

Formulas as in transformers' `modeling_rope_utils.ROPE_INIT_FUNCTIONS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from octavo.config.model import ConfigReader

_ROWS_AT_ONCE = 16384
_LARGEST = 1e15
"""Of any number in a rope section: keeps lengths and powers of it finite."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Rotary frequencies without any scaling, and the interface of the others."""

    @classmethod
    def read(cls, section: ConfigReader, max_position: int, original: int) -> RopeScaling:
        """From the configuration's rope section. Raises UnsupportedModelError.

        `max_position` is the configuration's length, `original` that of the training before it was
        extended.
        """
        return cls()

    def inv_freq(self, theta: float, dim: int, max_model_len: int) -> np.ndarray:
        """Radians per position of each pair of dims: [dim / 2] float64."""
        return _base_inv_freq(theta, dim)

    @property
    def magnitude(self) -> float:
        """Factor of cos and sin."""
        return 1.0

    def extended(self, max_position: int) -> int:
        """Positions that the model reaches with this scaling."""
        return max_position


@dataclass(frozen=True, kw_only=True)
class LinearScaling(RopeScaling):
    """Positions divided by `factor` (Chen et al., *Position Interpolation*, 2023)."""

    factor: float

    @classmethod
    def read(cls, section: ConfigReader, max_position: int, original: int) -> RopeScaling:
        return cls(factor=section.positive("factor"))

    def inv_freq(self, theta: float, dim: int, max_model_len: int) -> np.ndarray:
        return _base_inv_freq(theta, dim) / self.factor

    def extended(self, max_position: int) -> int:
        return int(max_position * self.factor)


@dataclass(frozen=True, kw_only=True)
class DynamicScaling(RopeScaling):
    """NTK-aware base, as for a text of `max_model_len` tokens."""

    factor: float
    max_position: int

    @classmethod
    def read(cls, section: ConfigReader, max_position: int, original: int) -> RopeScaling:
        return cls(factor=section.positive("factor"), max_position=max_position)

    def inv_freq(self, theta: float, dim: int, max_model_len: int) -> np.ndarray:
        length = max(max_model_len, self.max_position)
        stretch = self.factor * length / self.max_position - (self.factor - 1)
        return _base_inv_freq(theta * stretch ** (dim / (dim - 2)), dim)

    def extended(self, max_position: int) -> int:
        return int(max_position * self.factor)


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(RopeScaling):
    """Low frequencies divided by `factor`, a smooth passage to the high ones (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    @classmethod
    def read(cls, section: ConfigReader, max_position: int, original: int) -> RopeScaling:
        low, high = section.positive("low_freq_factor"), section.positive("high_freq_factor")
        if high <= low:
            raise section.unsupported(f"high_freq_factor={high} must be above {low}")
        return cls(
            factor=section.positive("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_max_position=original,
        )

    def inv_freq(self, theta: float, dim: int, max_model_len: int) -> np.ndarray:
        inv_freq = _base_inv_freq(theta, dim)
        turns = self.original_max_position * inv_freq / (2 * math.pi)  # in the original context
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = np.clip(smooth, 0.0, 1.0)
        scaled: np.ndarray = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        return scaled


@dataclass(frozen=True, kw_only=True)
class YarnScaling(RopeScaling):
    """Interpolation by frequency, with a temperature (Peng et al., *YaRN*, 2023, section 3)."""

    factor: float
    original_max_position: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool

    @classmethod
    def read(cls, section: ConfigReader, max_position: int, original: int) -> RopeScaling:
        factor = section.positive("factor", max_position / original)
        mscale = section.float("mscale", 0.0)
        mscale_all_dim = section.float("mscale_all_dim", 0.0)
        if min(mscale, mscale_all_dim) < 0:
            raise section.unsupported("mscale and mscale_all_dim must not be negative")
        if mscale and mscale_all_dim:
            inferred = _yarn_mscale(factor, mscale) / _yarn_mscale(factor, mscale_all_dim)
        else:
            inferred = _yarn_mscale(factor, 1.0)
        return cls(
            factor=factor,
            original_max_position=original,
            attention_factor=section.positive("attention_factor", inferred),
            beta_fast=section.positive("beta_fast", 32.0),
            beta_slow=section.positive("beta_slow", 1.0),
            truncate=section.bool("truncate", True),
        )

    def inv_freq(self, theta: float, dim: int, max_model_len: int) -> np.ndarray:
        def dim_of(turns: float) -> float:
            wavelengths = self.original_max_position / (turns * 2 * math.pi)
            return dim * math.log(wavelengths) / (2 * math.log(theta))

        low, high = dim_of(self.beta_fast), dim_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        high = high + 0.001 if high == low else high
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
        inv_freq = _base_inv_freq(theta, dim)
        scaled: np.ndarray = inv_freq / self.factor * ramp + inv_freq * (1 - ramp)
        return scaled

    @property
    def magnitude(self) -> float:
        return self.attention_factor

    def extended(self, max_position: int) -> int:
        return int(self.original_max_position * self.factor)


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(RopeScaling):
    """A factor per pair of dims, short or long by length (Ding et al., *LongRoPE*, 2024)."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position: int
    attention_factor: float

    @classmethod
    def read(cls, section: ConfigReader, max_position: int, original: int) -> RopeScaling:
        factor = section.positive("factor", max_position / original)
        inferred = 1.0
        if factor > 1.0 and original > 1:
            inferred = math.sqrt(1 + math.log(factor) / math.log(original))
        return cls(
            short_factor=_factors(section, "short_factor"),
            long_factor=_factors(section, "long_factor"),
            original_max_position=original,
            attention_factor=section.positive("attention_factor", inferred),
        )

    def inv_freq(self, theta: float, dim: int, max_model_len: int) -> np.ndarray:
        is_long = max_model_len > self.original_max_position
        scaled: np.ndarray = _base_inv_freq(theta, dim) / np.array(
            self.long_factor if is_long else self.short_factor
        )
        return scaled

    @property
    def magnitude(self) -> float:
        return self.attention_factor


ROPE_TYPES: dict[str, type[RopeScaling]] = {
    "default": RopeScaling,
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
    "su": LongRopeScaling,
}
"""By `rope_type` of Hugging Face configurations."""


@dataclass(frozen=True, kw_only=True)
class RopeParameters:
    """All that rope tables depend on, `max_model_len` aside. Layers with equal ones share a table.

    Attributes:
        rotary_dim: dims of a head that rotate, even; the others pass through.
        theta: base of the frequencies.
        scaling: for longer contexts.
        interleaved: pairs are (2i, 2i + 1) instead of (i, i + rotary_dim / 2).
    """

    rotary_dim: int
    theta: float
    scaling: RopeScaling
    interleaved: bool = False

    def tables(self, max_model_len: int) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin, [max_model_len, rotary_dim / 2] float32."""
        inv_freq = self.scaling.inv_freq(self.theta, self.rotary_dim, max_model_len)
        magnitude = self.scaling.magnitude
        cos = np.empty((max_model_len, len(inv_freq)), np.float32)
        sin = np.empty_like(cos)
        for start in range(0, max_model_len, _ROWS_AT_ONCE):  # float64 takes four times the tables
            end = min(start + _ROWS_AT_ONCE, max_model_len)
            angles = np.outer(np.arange(start, end), inv_freq)
            cos[start:end] = np.cos(angles) * magnitude
            sin[start:end] = np.sin(angles) * magnitude
        return cos, sin


def read_rope(
    config: ConfigReader,
    *,
    head_dim: int,
    max_position: int,
    layer_type: str | None = None,
    interleaved: bool = False,
) -> RopeParameters:
    """Rope of a Hugging Face configuration: `rope_parameters` (transformers 5) or `rope_theta`,
    `rope_scaling`, `partial_rotary_factor` and, of layers with a sliding window,
    `rope_local_base_freq` (earlier).

    Args:
        head_dim: dims of a head.
        max_position: the configuration's `max_position_embeddings`.
        layer_type: which one, where the kinds of layers have different ones.
        interleaved: as in `RopeParameters`.

    Raises:
        UnsupportedModelError: an unknown type, or a value missing or out of range.
    """
    section = config.section("rope_scaling") or config.section("rope_parameters")
    scaling = RopeScaling()
    theta = config.float("rope_theta", 10000.0)
    if section is not None and layer_type is not None and layer_type in section:
        section = section.section(layer_type)
    elif layer_type == "sliding_attention" and "rope_local_base_freq" in config:
        section, theta = None, config.float("rope_local_base_freq")
    partial = config.float("partial_rotary_factor", 1.0)
    if section is not None:
        kind = section.choice(
            "rope_type" if "rope_type" in section else "type", ROPE_TYPES, "default"
        )
        key = "original_max_position_embeddings"
        original = config.int(key, None) or section.int(key, max_position)
        if original < 1:
            raise section.unsupported(f"{key}={original} must be above 0")
        scaling = kind.read(section, max_position, original)
        theta = section.float("rope_theta", theta)
        partial = section.float("partial_rotary_factor", partial)
    if not 1 < theta <= _LARGEST or not 0 < partial <= 1:
        raise config.unsupported(
            f"rope_theta={theta}, partial_rotary_factor={partial}: out of range"
        )
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2 or rotary_dim < 4:
        raise config.unsupported(f"{rotary_dim} rotary dims of {head_dim}: must be even, from 4 on")
    if isinstance(scaling, LongRopeScaling):
        lengths = {len(scaling.short_factor), len(scaling.long_factor)}
        if lengths != {rotary_dim // 2}:
            raise config.unsupported(
                f"short_factor and long_factor must have {rotary_dim // 2} entries"
            )
    return RopeParameters(
        rotary_dim=rotary_dim, theta=theta, scaling=scaling, interleaved=interleaved
    )


def _base_inv_freq(theta: float, dim: int) -> np.ndarray:
    inv_freq: np.ndarray = theta ** -(np.arange(0, dim, 2) / dim)
    return inv_freq


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _factors(section: ConfigReader, key: str) -> tuple[float, ...]:
    values = section.list(key)
    if not all(isinstance(v, (int, float)) and 0 < v <= _LARGEST for v in values):
        raise section.unsupported(f"{key} must be numbers above 0")
    return tuple(map(float, values))
