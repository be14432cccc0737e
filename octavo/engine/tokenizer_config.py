"""What a tokenizer_config.json says of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tokenizer_config(
    special_tokens: Mapping[str, str], chat_templates: Mapping[str, str]
) -> dict[str, Any]:
    """Its fields, for transformers' class that reads any tokenizer.json.

    Args:
        special_tokens, chat_templates: as of `TokenizerParts`.
    """
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens}
    if list(chat_templates) == ["default"]:
        config["chat_template"] = chat_templates["default"]
    elif chat_templates:
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in chat_templates.items()
        ]
    return config
