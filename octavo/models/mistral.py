"""Mistral (Jiang et al., *Mistral 7B*, 2023): Llama, with a sliding window where one is set."""

from __future__ import annotations

from octavo.config.model import ConfigReader
from octavo.models.llama import LlamaConfig, LlamaForCausalLM
from octavo.models.reading import read_layer_types


class MistralForCausalLM(LlamaForCausalLM):
    """`sliding_window` null or absent is full attention."""

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        return LlamaConfig.read(config, layer_types=read_layer_types(config))
