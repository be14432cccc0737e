"""Mistral (Jiang et al., *Mistral 7B*, 2023): Llama, with a sliding window where one is set."""

from __future__ import annotations

from dataclasses import replace

from octavo.config.model import ConfigReader
from octavo.models.llama import LlamaConfig, LlamaForCausalLM


class MistralForCausalLM(LlamaForCausalLM):
    """`sliding_window` null or absent is full attention."""

    @classmethod
    def read_config(cls, config: ConfigReader) -> LlamaConfig:
        window = config.int("sliding_window", None)
        if window == 0:
            raise config.unsupported("sliding_window=0 must be above 0, or null")
        return replace(LlamaConfig.read(config), sliding_window=window)
