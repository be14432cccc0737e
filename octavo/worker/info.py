"""What a worker tells of itself once it has started."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config.engine import EngineConfig
from octavo.contracts.kv_spec import KVCacheConfig, MemoryPlan


@dataclass(frozen=True, kw_only=True)
class ExecutorInfo:
    """What the core needs to know of the loaded model.

    `config` is resolved: `max_model_len` is set, and lowered where memory asks for it.
    """

    config: EngineConfig
    kv_cache_config: KVCacheConfig
    memory_plan: MemoryPlan
    vocab_size: int
    hidden_size: int
