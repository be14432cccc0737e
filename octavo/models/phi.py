"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al., *Phi-3 Technical Report*, 2024)."""

from __future__ import annotations

from dataclasses import replace

from octavo.config.model import ConfigReader
from octavo.layers.rope import LongRopeScaling, RopeScaling
from octavo.models.llama import LlamaConfig, LlamaForCausalLM
from octavo.models.reading import read_layer_types


class Phi3ForCausalLM(LlamaForCausalLM):
    """Llama, with fused projections in the checkpoint, and often longrope over part of a head."""

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        read = LlamaConfig.read(config, layer_types=read_layer_types(config))
        if not all(type(r.scaling) in (RopeScaling, LongRopeScaling) for r in read.ropes):
            raise config.unsupported("rope of Phi-3 must be of the type default, longrope or su")
        return replace(read, fused=True)
