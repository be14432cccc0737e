"""Model families by architecture, imported only when chosen."""

from __future__ import annotations

from importlib import import_module

from octavo.config.model import ConfigReader
from octavo.models.base import CausalLM

_MODELS = {
    "Gemma2ForCausalLM": "octavo.models.gemma",
    "Gemma3ForCausalLM": "octavo.models.gemma",
    "Gemma3ForConditionalGeneration": "octavo.models.gemma",
    "LlamaForCausalLM": "octavo.models.llama",
    "MistralForCausalLM": "octavo.models.mistral",
    "Phi3ForCausalLM": "octavo.models.phi",
    "Qwen2ForCausalLM": "octavo.models.qwen",
    "Qwen3ForCausalLM": "octavo.models.qwen",
}
"""Architecture (the name of a class) → its module."""


def supported_architectures() -> list[str]:
    """Names that `build_model` knows, sorted."""
    return sorted(_MODELS)


def build_model(config: ConfigReader, layers: range | None = None) -> CausalLM:
    """The model of `architectures[0]`, without weights.

    Args:
        layers: a pipeline stage's; None is all.

    Raises:
        UnsupportedModelError: an unknown architecture, or a configuration that its family refuses.
    """
    architectures = config.list("architectures")
    name = architectures[0] if architectures else None
    if not isinstance(name, str) or name not in _MODELS:
        raise config.unsupported(
            f"architecture {name!r} is not supported; supported: "
            f"{', '.join(supported_architectures())}"
        )
    model: type[CausalLM] = getattr(import_module(_MODELS[name]), name)
    return model.from_config(config, layers)
