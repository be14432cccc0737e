"""EngineConfig: the sections together, and all checks across them, done once."""

from __future__ import annotations

import difflib
import typing
from dataclasses import dataclass, field, fields, replace
from typing import Any

from octavo.config.generation import check_override
from octavo.config.sections import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig
from octavo.config.vllm_options import without_vllm_options
from octavo.errors import ConfigError, shown

MAX_NUM_SEQS = 4096
MAX_NUM_BATCHED_TOKENS = 131072
MAX_SEED = 2**63 - 1
MAX_FAKE_STEP_TIME = 60.0


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All of the engine's configuration. Components get their section, never this."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    @classmethod
    def from_flat(cls, **options: Any) -> EngineConfig:
        """Build from one flat namespace (`LLM(...)`, CLI flags), checked.

        vLLM's options that ask for nothing here are taken, too (vllm_options.py).

        Raises:
            ConfigError: an unknown option, a wrong type or a value out of range.
        """
        homes = {f.name: section for section in fields(cls) for f in section_fields(section.name)}
        parts: dict[str, dict[str, Any]] = {section.name: {} for section in fields(cls)}
        for name, value in without_vllm_options(options).items():
            if name not in homes:
                close = difflib.get_close_matches(name, homes, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise ConfigError(f"unknown engine option {name!r}{hint}")
            is_list = isinstance(value, list)
            parts[homes[name].name][name] = tuple(value) if is_list else value
        return cls(**{name: _SECTIONS[name](**values) for name, values in parts.items()}).checked()

    def checked(self) -> EngineConfig:
        """This configuration, if every value is of its type and range. Raises ConfigError."""
        for section in fields(self):
            value = getattr(self, section.name)
            hints = typing.get_type_hints(type(value))
            for f in fields(value):
                _check_type(f.name, getattr(value, f.name), hints[f.name])
        cache, scheduler = self.cache, self.scheduler
        _in_range("max_num_seqs", scheduler.max_num_seqs, 1, MAX_NUM_SEQS)
        if (num_tokens := scheduler.max_num_batched_tokens) is not None:
            _in_range("max_num_batched_tokens", num_tokens, 1, MAX_NUM_BATCHED_TOKENS)
        _in_range("long_prefill_token_threshold", scheduler.long_prefill_token_threshold, 0, 2**31)
        _in_range("pipeline_depth", scheduler.pipeline_depth, 1, 8)
        _in_range("seed", self.model.seed, 0, MAX_SEED)
        if self.model.override_generation_config:
            check_override(self.model.override_generation_config)
        if self.model.max_model_len is not None:
            _in_range("max_model_len", self.model.max_model_len, 1, 2**31)
        if cache.gpu_memory_utilization is not None and not 0 < cache.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization={shown(cache.gpu_memory_utilization)} must be in (0, 1]"
            )
        if cache.kv_cache_memory_bytes is not None:
            _in_range("kv_cache_memory_bytes", cache.kv_cache_memory_bytes, 1, 2**50)
        if cache.num_gpu_blocks_override is not None:
            _in_range("num_gpu_blocks_override", cache.num_gpu_blocks_override, 2, 2**31 - 1)
        if self.device.num_threads is not None:
            _in_range("num_threads", self.device.num_threads, 1, 1024)
        _in_range("engine_iteration_timeout", self.device.engine_iteration_timeout, 0.0, 86400.0)
        _in_range("fake_step_time", self.device.fake_step_time, 0.0, MAX_FAKE_STEP_TIME)
        return self

    def resolve(self, *, model_max_len: int) -> EngineConfig:
        """Fill in what depends on the model.

        Args:
            model_max_len: the most positions that the model was made for.

        Raises:
            ConfigError: `max_model_len` is more than that.
        """
        asked = self.model.max_model_len
        if asked is not None and asked > model_max_len:
            raise ConfigError(
                f"max_model_len={asked} is more than the model's {model_max_len} positions; "
                "lower it or leave it out"
            )
        return replace(self, model=replace(self.model, max_model_len=asked or model_max_len))


_SECTIONS: dict[str, Any] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "device": DeviceConfig,
}


def section_fields(section: str) -> tuple[Any, ...]:
    """The dataclass fields of a section, by the section's name in EngineConfig."""
    return fields(_SECTIONS[section])


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}={shown(value)} must be in {low}…{high}")


def _check_type(name: str, value: object, hint: Any) -> None:
    options = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        if value not in options:
            raise ConfigError(
                f"{name}={shown(value)} must be one of {', '.join(map(repr, options))}"
            )
        return
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{name}={shown(value)} must be a list of strings")
        return
    allowed = tuple(typing.get_origin(t) or t for t in options) if options else (hint,)
    if float in allowed and type(value) is int:
        return
    if type(value) not in allowed:
        names = " or ".join("None" if t is type(None) else t.__name__ for t in allowed)
        raise ConfigError(f"{name}={shown(value)} must be {names}")
