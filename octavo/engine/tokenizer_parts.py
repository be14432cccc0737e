"""What a model's files say about its tokenizer, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer, processors


@dataclass(frozen=True, kw_only=True)
class TokenizerParts:
    """Input of `Tokenizer`.

    Attributes:
        core: encodes and decodes; its post-processor adds BOS and EOS as the model wants them.
        vocab_size: its ids are below; None: it is to be asked for all of them, which takes longer.
        bos_token_id: None where the model has none.
        eos_token_ids: ids that end a text.
        special_tokens: what chat templates see: "bos_token", "eos_token" … → spelling.
        chat_templates: Jinja sources by name; "default" is the one to use unless a more special
            one fits ("tool_use").
    """

    core: Tokenizer
    vocab_size: int | None = None
    bos_token_id: int | None
    eos_token_ids: list[int]
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def add_around(core: Tokenizer, bos: int | None, eos: int | None) -> None:
    """Let `core` add these ids before and after each text that it encodes."""
    tokens = [
        {"id": name, "ids": [i], "tokens": [core.id_to_token(i)]}
        for name, i in (("BOS", bos), ("EOS", eos))
        if i is not None
    ]
    single = [*(["BOS"] if bos is not None else []), "$A", *(["EOS"] if eos is not None else [])]
    core.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
