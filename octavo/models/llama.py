"""Llama 2 and 3.x, and the families that are Llama in other names (SmolLM2, TinyLlama, Yi …).

Touvron et al., *Llama 2*, 2023; Grattafiori et al., *The Llama 3 Herd of Models*, 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from octavo.config.model import ConfigReader
from octavo.contracts.kv_spec import KVCacheSpec
from octavo.contracts.tensor import DType
from octavo.errors import ConfigError
from octavo.kernels.ops import Activation, Backend, HeadShape, KVCache, Ops, RopeTable, Value
from octavo.layers.attention import Attention
from octavo.layers.base import Module, WeightSlot
from octavo.layers.embedding import Embedding, LMHead
from octavo.layers.linear import ColumnParallelLinear, GatedLinear, RowParallelLinear
from octavo.layers.mlp import ACTIVATIONS, GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rope import RopeParameters, read_rope
from octavo.models.base import CausalLM

_LARGEST = 2**31 - 1
"""Of any size in a configuration."""
_MOST_LAYERS = 4096


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """What shapes the forward; families built on this one replace what differs.

    Attributes:
        max_position: the most positions, rope scaling included.
        qkv_bias, o_bias, mlp_bias: biases of q, k and v; of o; of gate, up and down.
        tied: the head is the embedding's table.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: HeadShape
    max_position: int
    rms_norm_eps: float
    activation: Activation
    rope: RopeParameters
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    tied: bool
    sliding_window: int | None = None

    @classmethod
    def read(cls, config: ConfigReader) -> LlamaConfig:
        """From Hugging Face keys. Raises UnsupportedModelError."""
        hidden_size = _size(config, "hidden_size")
        heads = _read_heads(config, hidden_size)
        max_position = _size(config, "max_position_embeddings")
        rope = read_rope(config, head_dim=heads.head_dim, max_position=max_position)
        attention_bias = config.bool("attention_bias", False)
        eps = config.float("rms_norm_eps")
        if eps < 0:
            raise config.unsupported(f"rms_norm_eps={eps} must not be negative")
        return cls(
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_size(config, "intermediate_size"),
            num_layers=_size(config, "num_hidden_layers", most=_MOST_LAYERS),
            heads=heads,
            max_position=min(rope.scaling.extended(max_position), _LARGEST),
            rms_norm_eps=eps,
            activation=config.choice("hidden_act", ACTIVATIONS),
            rope=rope,
            qkv_bias=attention_bias,
            o_bias=attention_bias,
            mlp_bias=config.bool("mlp_bias", False),
            tied=config.bool("tie_word_embeddings", False),
        )


def _size(config: ConfigReader, key: str, *default: int, most: int = _LARGEST) -> int:
    value: int = config.int(key, *default)
    if not 1 <= value <= most:
        raise config.unsupported(f"{key}={value} must be in 1…{most}")
    return value


def _read_heads(config: ConfigReader, hidden_size: int) -> HeadShape:
    num_heads = _size(config, "num_attention_heads")
    num_kv_heads = _size(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.unsupported(
            f"num_attention_heads={num_heads} must be a multiple of "
            f"num_key_value_heads={num_kv_heads}"
        )
    if "head_dim" not in config and hidden_size % num_heads:
        raise config.unsupported(
            f"hidden_size={hidden_size} must be a multiple of num_attention_heads={num_heads}"
        )
    head_dim = _size(config, "head_dim", max(1, hidden_size // num_heads))
    return HeadShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)


class LlamaAttention(Attention):
    """Llama's projections, by their checkpoint names."""

    def __init__(self, config: LlamaConfig, name: str) -> None:
        heads = config.heads
        q_size, kv_size = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
        super().__init__(
            name,
            heads=heads,
            qkv_proj=ColumnParallelLinear(
                {
                    f"{name}.q_proj": [q_size],
                    f"{name}.k_proj": [kv_size],
                    f"{name}.v_proj": [kv_size],
                },
                config.hidden_size,
                bias=config.qkv_bias,
            ),
            o_proj=RowParallelLinear(
                f"{name}.o_proj", q_size, config.hidden_size, bias=config.o_bias
            ),
            rope=config.rope,
            sliding_window=config.sliding_window,
        )


class LlamaMLP(GatedMLP):
    """Llama's projections, by their checkpoint names."""

    def __init__(self, config: LlamaConfig, name: str) -> None:
        hidden_size, size, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        super().__init__(
            GatedLinear(
                {f"{name}.gate_proj": [size], f"{name}.up_proj": [size]},
                hidden_size,
                config.activation,
                bias=bias,
            ),
            RowParallelLinear(f"{name}.down_proj", size, hidden_size, bias=bias),
        )


class LlamaDecoderLayer(Module):
    """Attention and MLP, each behind a norm, each added to the residual."""

    def __init__(self, config: LlamaConfig, name: str) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(f"{name}.input_layernorm", size, eps)
        self.self_attn = LlamaAttention(config, f"{name}.self_attn")
        self.post_attention_layernorm = RMSNorm(f"{name}.post_attention_layernorm", size, eps)
        self.mlp = LlamaMLP(config, f"{name}.mlp")

    def __call__(self, ops: Ops, x: Value) -> Value:
        """x [T, D] float32, the residual stream."""
        x = self.self_attn(ops, self.input_layernorm(ops, x), x)
        return self.mlp(ops, self.post_attention_layernorm(ops, x), x)


class LlamaForCausalLM(Module, CausalLM):
    """The model, or a range of its layers."""

    def __init__(self, config: LlamaConfig, layers: range | None = None) -> None:
        everything = range(config.num_layers)
        layers = everything if layers is None else layers
        if not layers or layers[0] < 0 or layers[-1] >= len(everything) or layers.step != 1:
            raise ConfigError(f"layers={layers} must be a part of {everything}")
        self._first, self._last = layers[0] == 0, layers[-1] == everything[-1]
        self._config = config
        self.vocab_size = config.vocab_size
        self.max_position = config.max_position
        self.num_layers = len(layers)

        size = config.hidden_size
        if self._first or (self._last and config.tied):
            self.embed_tokens = Embedding(
                "model.embed_tokens", config.vocab_size, size, tied=config.tied
            )
        self.layers = [self.decoder_layer(config, i) for i in layers]
        if self._last:
            self.norm = RMSNorm("model.norm", size, config.rms_norm_eps)
            self.lm_head = LMHead(
                self.embed_tokens
                if config.tied
                else ColumnParallelLinear({"lm_head": [config.vocab_size]}, size)
            )

    @classmethod
    def from_config(cls, config: ConfigReader, layers: range | None = None) -> LlamaForCausalLM:
        return cls(cls.read_config(config), layers)

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        """For families to override: what they read differently."""
        return LlamaConfig.read(config)

    def decoder_layer(self, config: LlamaConfig, index: int) -> LlamaDecoderLayer:
        """For families to override: layer `index`."""
        return LlamaDecoderLayer(config, f"model.layers.{index}")

    def slots(self) -> Sequence[WeightSlot]:
        return self.find(WeightSlot)  # type: ignore[type-abstract]

    def ignored(self, names: Iterable[str]) -> set[str]:
        extras = super().ignored(names)
        if self._config.tied:
            extras.add("lm_head.weight")
        if self.num_layers < self._config.num_layers:
            whole = type(self)(self._config).slots()
            extras.update(name for slot in whole for name in slot.expected())
        return extras

    def kv_specs(self, dtype: DType) -> Mapping[str, KVCacheSpec]:
        return {layer.name: layer.kv_spec(dtype) for layer in self.find(Attention)}

    def bind(self, backend: Backend, kv: KVCache, *, max_model_len: int) -> None:
        tables: dict[RopeParameters, RopeTable] = {}
        for layer in self.find(Attention):
            rope = layer.rope
            if rope is not None and rope not in tables:
                cos, sin = rope.tables(max_model_len)
                tables[rope] = backend.pack_rope(cos, sin, interleaved=rope.interleaved)
            layer.bind(kv.layer(layer.name), None if rope is None else tables[rope])

    def forward(self, ops: Ops) -> None:
        if self._first:
            x = self.embed_tokens(ops)
        else:
            x = ops.input("hidden_states", self._config.hidden_size)
        for layer in self.layers:
            x = layer(ops, x)
        if not self._last:
            ops.output("hidden_states", x)
            return
        x = self.norm(ops, ops.select_rows(x))
        ops.output("logits", self.lm_head(ops, x))
