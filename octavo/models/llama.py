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
from octavo.layers.norm import QKNorm, RMSNorm
from octavo.layers.rope import RopeParameters, read_rope
from octavo.models.base import CausalLM
from octavo.models.reading import (
    FULL,
    LARGEST_SIZE,
    read_heads,
    read_num_layers,
    read_size,
    read_windows,
)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """What shapes the forward; families built on this one replace what differs.

    Attributes:
        max_position: the most positions, rope scaling included.
        ropes: of each layer.
        windows: of each layer, the sliding window; None is full attention.
        qkv_bias, o_bias, mlp_bias: biases of q, k and v; of o; of gate, up and down.
        tied: the head is the embedding's table.
        fused: the checkpoint holds q, k and v in one tensor, gate and up in another.
        qk_norm: each head of q and of k is normalized.
        norm_offset: added to the weights of all norms.
        attention_scale: of the scores; None is head_dim ** -0.5.
        attention_soft_cap, logits_soft_cap: c in c * tanh(x / c).
        embedding_scale: multiplies the rows of the embedding.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: HeadShape
    max_position: int
    rms_norm_eps: float
    activation: Activation
    ropes: tuple[RopeParameters, ...]
    windows: tuple[int | None, ...]
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    tied: bool
    fused: bool = False
    qk_norm: bool = False
    norm_offset: float = 0.0
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    logits_soft_cap: float | None = None
    embedding_scale: float = 1.0

    @classmethod
    def read(
        cls,
        config: ConfigReader,
        *,
        layer_types: Sequence[str] | None = None,
        activation: str = "hidden_act",
    ) -> LlamaConfig:
        """From Hugging Face keys. Raises UnsupportedModelError.

        Args:
            layer_types: of every layer (`read_layer_types`); None is full attention.
            activation: the key of the MLP's activation.
        """
        heads = read_heads(config)
        max_position = read_size(config, "max_position_embeddings")
        num_layers = read_num_layers(config)
        layer_types = layer_types or [FULL] * num_layers
        ropes = {
            kind: read_rope(
                config, head_dim=heads.head_dim, max_position=max_position, layer_type=kind
            )
            for kind in set(layer_types)
        }
        reach = max(rope.scaling.extended(max_position) for rope in ropes.values())
        attention_bias = config.bool("attention_bias", False)
        eps = config.float("rms_norm_eps")
        if eps < 0:
            raise config.unsupported(f"rms_norm_eps={eps} must not be negative")
        return cls(
            vocab_size=read_size(config, "vocab_size"),
            hidden_size=read_size(config, "hidden_size"),
            intermediate_size=read_size(config, "intermediate_size"),
            num_layers=num_layers,
            heads=heads,
            max_position=min(reach, LARGEST_SIZE),
            rms_norm_eps=eps,
            activation=config.choice(activation, ACTIVATIONS),
            ropes=tuple(ropes[kind] for kind in layer_types),
            windows=read_windows(config, layer_types),
            qkv_bias=attention_bias,
            o_bias=attention_bias,
            mlp_bias=config.bool("mlp_bias", False),
            tied=config.bool("tie_word_embeddings", False),
        )


class LlamaAttention(Attention):
    """Llama's projections, by their checkpoint names."""

    def __init__(self, config: LlamaConfig, index: int) -> None:
        heads, name = config.heads, f"model.layers.{index}.self_attn"
        q_size, kv_size = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
        parts = {"q_proj": [q_size], "k_proj": [kv_size], "v_proj": [kv_size]}
        super().__init__(
            name,
            heads=heads,
            qkv_proj=ColumnParallelLinear(
                _under(name, {"qkv_proj": [q_size, kv_size, kv_size]} if config.fused else parts),
                config.hidden_size,
                bias=config.qkv_bias,
            ),
            o_proj=RowParallelLinear(
                f"{name}.o_proj", q_size, config.hidden_size, bias=config.o_bias
            ),
            rope=config.ropes[index],
            qk_norm=_qk_norm(config, name) if config.qk_norm else None,
            scale=config.attention_scale,
            sliding_window=config.windows[index],
            soft_cap=config.attention_soft_cap,
        )


def _under(name: str, parts: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    return {f"{name}.{part}": sizes for part, sizes in parts.items()}


def _qk_norm(config: LlamaConfig, name: str) -> QKNorm:
    dim = config.heads.head_dim
    return QKNorm(rms_norm(config, f"{name}.q_norm", dim), rms_norm(config, f"{name}.k_norm", dim))


def rms_norm(config: LlamaConfig, name: str, size: int | None = None) -> RMSNorm:
    """A norm of `size` dims (None: hidden_size), with the model's eps and offset."""
    size = config.hidden_size if size is None else size
    return RMSNorm(name, size, config.rms_norm_eps, offset=config.norm_offset)


class LlamaMLP(GatedMLP):
    """Llama's projections, by their checkpoint names."""

    def __init__(self, config: LlamaConfig, index: int) -> None:
        name, size, bias = f"model.layers.{index}.mlp", config.intermediate_size, config.mlp_bias
        parts = {"gate_proj": [size], "up_proj": [size]}
        super().__init__(
            GatedLinear(
                _under(name, {"gate_up_proj": [size, size]} if config.fused else parts),
                config.hidden_size,
                config.activation,
                bias=bias,
            ),
            RowParallelLinear(f"{name}.down_proj", size, config.hidden_size, bias=bias),
        )


class LlamaDecoderLayer(Module):
    """Attention and MLP, each behind a norm, each added to the residual."""

    def __init__(self, config: LlamaConfig, index: int) -> None:
        name = f"model.layers.{index}"
        self.input_layernorm = rms_norm(config, f"{name}.input_layernorm")
        self.self_attn = LlamaAttention(config, index)
        self.post_attention_layernorm = rms_norm(config, f"{name}.post_attention_layernorm")
        self.mlp = LlamaMLP(config, index)

    def __call__(self, ops: Ops, x: Value) -> Value:
        """x [T, D] float32, the residual stream."""
        x = self.self_attn(ops, self.input_layernorm(ops, x), x)
        return self.mlp(ops, self.post_attention_layernorm(ops, x), x)


class LlamaForCausalLM(Module, CausalLM):
    """The model, or a range of its layers.

    Attributes:
        decoder_layer: for families to override: builds a layer from its index.
    """

    decoder_layer: type[LlamaDecoderLayer] = LlamaDecoderLayer

    def __init__(self, config: LlamaConfig, layers: range | None = None) -> None:
        everything = range(config.num_layers)
        layers = everything if layers is None else layers
        if not layers or layers[0] < 0 or layers[-1] >= len(everything) or layers.step != 1:
            raise ConfigError(f"layers={layers} must be a part of {everything}")
        self._first, self._last = layers[0] == 0, layers[-1] == everything[-1]
        self._config = config
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.max_position = config.max_position
        self.num_layers = len(layers)

        size = config.hidden_size
        if self._first or (self._last and config.tied):
            self.embed_tokens = Embedding(
                "model.embed_tokens",
                config.vocab_size,
                size,
                scale=config.embedding_scale,
                tied=config.tied,
            )
        self.layers = [self.decoder_layer(config, i) for i in layers]
        if self._last:
            self.norm = rms_norm(config, "model.norm")
            self.lm_head = LMHead(
                self.embed_tokens
                if config.tied
                else ColumnParallelLinear({"lm_head": [config.vocab_size]}, size),
                soft_cap=config.logits_soft_cap,
            )

    @classmethod
    def from_config(cls, config: ConfigReader, layers: range | None = None) -> LlamaForCausalLM:
        return cls(cls.read_config(config), layers)

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        """For families to override: what they read differently."""
        return LlamaConfig.read(config)

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
        ops.output("hidden_states", x)
        if self._last:
            self._logits(ops, self.norm(ops, ops.select_rows(x)))

    def head(self, ops: Ops) -> None:
        x = ops.select_rows(ops.input("hidden_states", self._config.hidden_size))
        x = self.norm(ops, x)
        ops.output("last_hidden_state", x)
        self._logits(ops, x)

    def _logits(self, ops: Ops, x: Value) -> None:
        """x [R, D] act, after the last norm."""
        ops.output("logits", self.lm_head(ops, x))
        ops.output("argmax", self.lm_head.argmax(ops, x))
