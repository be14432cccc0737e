"""What every model family is to the worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from octavo.config.model import ConfigReader
from octavo.contracts.kv_spec import KVCacheSpec
from octavo.contracts.tensor import DType, HostTensor
from octavo.kernels.ops import Backend, KVCache, Ops


class WeightSlot(ABC):
    """A place that one or more checkpoint tensors fill: it packs itself when the last arrives."""

    @abstractmethod
    def expected(self) -> Mapping[str, tuple[int, ...]]:
        """Checkpoint tensor name → shape of all that it needs."""

    @abstractmethod
    def put(self, name: str, tensor: HostTensor, backend: Backend) -> int:
        """Take one tensor. Returns the bytes packed by this call (0 until complete)."""


class CausalLM(ABC):
    """A decoder-only language model, written once against `kernels.ops`.

    Life: `from_config` → weights stream into `slots` → `bind` → `forward` is captured.
    """

    vocab_size: int
    max_position: int
    num_layers: int

    @classmethod
    @abstractmethod
    def from_config(cls, config: ConfigReader) -> CausalLM:
        """Read every value it needs. Raises UnsupportedModelError."""

    @abstractmethod
    def slots(self) -> Sequence[WeightSlot]:
        """All weight slots, in checkpoint order."""

    def ignored(self, names: Iterable[str]) -> set[str]:
        """Of these checkpoint tensors, the known extras that this family does not need."""
        return {n for n in names if n.endswith("rotary_emb.inv_freq")}

    @abstractmethod
    def kv_specs(self, dtype: DType) -> Mapping[str, KVCacheSpec]:
        """Layer name → what it keeps per token, in order of layers."""

    @abstractmethod
    def bind(self, backend: Backend, kv: KVCache, *, max_model_len: int) -> None:
        """Make rope tables for `max_model_len` and take the KV handles by layer name."""

    @abstractmethod
    def forward(self, ops: Ops) -> None:
        """Call ops; the last one is `ops.output("logits", …)`."""
