"""A fake `Tokenizer` for the fake engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.chat_messages import normal_messages
from octavo.engine.tokenizer import RenderedChat
from octavo.errors import ChatTemplateError, RequestError
from tests.engine.fakes import ByteTokenizer


class FakeTokenizer(ByteTokenizer):
    """Bytes, with a template that can be told to misbehave, and perhaps a BOS id.

    Args:
        chat_template_source: what the template is said to be.
        specials: more special tokens; a script that spells one says it.
        opens: what the template writes at the beginning of the answer.
    """

    def __init__(
        self,
        *,
        bos: bool = False,
        has_template: bool = True,
        chat_template_source: str = "",
        specials: Sequence[str] = (),
        opens: str = "",
    ) -> None:
        super().__init__([s.encode() for s in specials])
        self.has_template = has_template
        self.chat_template_source = chat_template_source
        self.opens = opens
        self._specials = {s: self.vocab_size - len(specials) + i for i, s in enumerate(specials)}
        self.all_special_ids |= frozenset(self._specials.values())
        self.special_spellings |= self._specials
        if bos:
            self.bos_token_id = 257

    @property
    def config(self) -> dict[str, Any]:
        return {"tokenizer_class": "Fake", "chat_template": self.chat_template_source}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = super().encode(text)
        return [self.bos_token_id, *ids] if add_special_tokens and self.bos_token_id else ids

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, shout: bool = False, **options: Any
    ) -> RenderedChat:
        if not self.has_template:
            raise ChatTemplateError("the model has no chat template; give one", param="messages")
        if options.get("add_generation_prompt") and options.get("continue_final_message"):
            raise RequestError("the two exclude each other", param="continue_final_message")
        messages = normal_messages(messages)
        if options.get("continue_final_message") and messages[-1]["role"] != "assistant":
            raise RequestError("not the assistant's", param="continue_final_message")
        if any("RAISE" in m["content"] for m in messages):
            raise ChatTemplateError("Conversation roles must alternate", param="messages")
        if shout:
            messages = [{**m, "content": m["content"].upper()} for m in messages]
        chat = super().render_chat(messages, **options)
        return RenderedChat(chat.text + self.opens, chat.token_ids + self.encode_plain(self.opens))

    def script(self, text: str, index: int) -> list[int] | None:
        """What a prompt of this text has completion `index` say."""
        if "SAY:" not in text:
            return None
        said = text.rpartition("SAY:")[2].removesuffix(self.opens).removesuffix("assistant\n")
        said = said.replace("#", str(index))
        ids: list[int] = []
        while said:
            special = next((s for s in self._specials if said.startswith(s)), None)
            ids += [self._specials[special]] if special else said[0].encode()
            said = said[len(special) if special else 1 :]
        return ids
