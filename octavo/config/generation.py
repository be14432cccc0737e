"""Default sampling: what counts of a model's generation config, and what overrides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.config.sections import ModelConfig
from octavo.contracts.sampling_params import SamplingParams
from octavo.errors import ConfigError, RequestError, shown

SAMPLING_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Field of a generation_config.json → of SamplingParams."""


def default_sampling(config: ModelConfig, of_model: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams that a request has without asking.

    Args:
        of_model: the model's generation config.
    """
    of_model = of_model if config.generation_config == "auto" else {}
    values = {**of_model, **(config.override_generation_config or {})}
    return {
        ours: value
        for theirs, ours in SAMPLING_FIELDS.items()
        if (value := values.get(theirs)) is not None
    }


def check_override(override: Mapping[str, Any]) -> None:
    """Check `override_generation_config`. Raises ConfigError."""
    for name in override:
        if name not in SAMPLING_FIELDS:
            raise ConfigError(
                f"override_generation_config holds {shown(name)}; it can hold "
                f"{', '.join(SAMPLING_FIELDS)}"
            )
    try:
        SamplingParams(**{SAMPLING_FIELDS[name]: value for name, value in override.items()})
    except RequestError as error:
        raise ConfigError(f"override_generation_config: {error}") from None
