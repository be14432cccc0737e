"""What every model family is to the worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from octavo.config.model import ConfigReader
from octavo.contracts.kv_spec import KVCacheSpec
from octavo.contracts.tensor import DType
from octavo.kernels.ops import Backend, KVCache, Ops
from octavo.layers.base import WeightSlot

__all__ = ["CausalLM", "WeightSlot"]


class CausalLM(ABC):
    """A decoder-only language model, written once against `kernels.ops`.

    Life: `from_config` → weights stream into `slots` → `bind` → `forward` is captured.

    A model may be a stage of a pipeline: some of the layers. Each gives out "hidden_states"
    [T, hidden_size] float32, the residual stream after its last layer, and each but the first takes
    it as an input. The last one, the only one with a head, also gives of chosen rows the "logits"
    [R, vocab] float32 and "argmax" [R, 2] float32, the best of each (`Ops.argmax`).
    """

    vocab_size: int
    hidden_size: int
    max_position: int
    num_layers: int

    @classmethod
    @abstractmethod
    def from_config(cls, config: ConfigReader, layers: range | None = None) -> CausalLM:
        """Read every value it needs. `layers` of this stage; None is all of them.

        Raises:
            UnsupportedModelError: the configuration asks for something unknown.
        """

    @abstractmethod
    def slots(self) -> Sequence[WeightSlot]:
        """All weight slots, in checkpoint order."""

    def slot_name(self, name: str) -> str:
        """What `slots` call a tensor of a checkpoint."""
        return name

    def ignored(self, names: Iterable[str]) -> set[str]:
        """Known extras that this model does not need, `names` (as `slot_name` gives them) being the
        tensors without a slot."""
        return {n for n in names if n.endswith("rotary_emb.inv_freq")}

    @abstractmethod
    def kv_specs(self, dtype: DType) -> Mapping[str, KVCacheSpec]:
        """Layer name → what it keeps per token, in order of layers."""

    @abstractmethod
    def bind(self, backend: Backend, kv: KVCache, *, max_model_len: int) -> None:
        """Make rope tables for `max_model_len` and take the KV handles by layer name."""

    @abstractmethod
    def forward(self, ops: Ops) -> None:
        """Call ops; see above for its inputs and outputs."""

    @abstractmethod
    def head(self, ops: Ops) -> None:
        """The last stage's part from the input "hidden_states" to the outputs "logits" and
        "argmax", as in `forward`: of rows that come back later (prompt log probabilities, steps
        with many rows). And "last_hidden_state" [R, hidden_size] act, the rows after the last
        norm, which pooling reads."""
