"""Tiny random Hugging Face models: oracles that nobody here wrote."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import transformers

from octavo.config.model import ConfigReader
from octavo.contracts.tensor import HostTensor

torch.set_num_threads(1)

TINY: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


class HFModel:
    """A float32 model with random weights and biases, norms off 1, the same for the same seed.

    Args:
        architecture: the transformers class, e.g. "LlamaForCausalLM".
        options: what differs from `TINY`.
    """

    def __init__(self, architecture: str, seed: int = 0, **options: Any) -> None:
        family = getattr(transformers, architecture)
        torch.manual_seed(seed)
        self.config = family.config_class(**(TINY | options), architectures=[architecture])
        self.model = family(self.config).float().eval()
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(std=0.2)
                elif parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)

    @property
    def reader(self) -> ConfigReader:
        """As a config.json that transformers would save."""
        values = json.loads(self.config.to_json_string(use_diff=False))
        return ConfigReader(values, "config.json")

    def weights(self) -> list[tuple[str, HostTensor]]:
        """As a checkpoint that transformers would save: tied tensors once."""
        tied = set(self.model._tied_weights_keys or ()) if self.config.tie_word_embeddings else ()
        return [
            (name, HostTensor.of(tensor.numpy()))
            for name, tensor in self.model.state_dict().items()
            if name not in tied
        ]

    @torch.no_grad()
    def logprobs(self, token_ids: list[int]) -> np.ndarray:
        """Log probabilities after each token, [T, vocab] float32, eager attention in one pass."""
        logits = self.model(torch.tensor([token_ids]), use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), dim=-1).numpy()

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy continuation, each step a pass over the whole text."""
        ids = list(prompt)
        for _ in range(num_tokens):
            ids.append(int(self.logprobs(ids)[-1].argmax()))
        return ids[len(prompt) :]
