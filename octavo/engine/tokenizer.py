"""Text ↔ ids: one class over every kind of tokenizer file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo.config.sections import ModelConfig
from octavo.engine.chat_messages import (
    developer_as_system,
    last_content,
    map_strings,
    normal_messages,
    normal_tools,
    strings_in,
)
from octavo.engine.chat_template import ChatTemplate
from octavo.engine.tokenizer_config import tokenizer_config
from octavo.errors import ChatTemplateError, ConfigError, RequestError, shown
from octavo.models.files import ModelFiles, resolve_tokenizer

if TYPE_CHECKING:
    from octavo.engine.tokenizer_parts import TokenizerParts

_BYTE_TOKEN_LENGTH = len("<0x00>")


class RenderedChat(NamedTuple):
    """A chat as a prompt: the text as a reader sees it, and the ids that the model reads."""

    text: str
    token_ids: list[int]


def tokenizer_of(config: ModelConfig, files: ModelFiles) -> Tokenizer:
    """The tokenizer that a configuration asks for: the model's, or that of another place.

    Raises:
        DownloadError: the other place cannot be reached.
        TokenizerError, ConfigError: as `load_tokenizer`.
    """
    source = files if config.tokenizer is None else resolve_tokenizer(config.tokenizer)
    return load_tokenizer(source, chat_template=config.chat_template)


def load_tokenizer(files: ModelFiles, *, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer that comes with a model.

    Args:
        chat_template: file or text of a Jinja template to use instead of the model's.

    Raises:
        TokenizerError: there is none, or it is broken or of an unknown kind.
        ConfigError: `chat_template` is no file and no template.
    """
    if files.gguf_metadata is not None:
        from octavo.engine.gguf_tokenizer import gguf_tokenizer

        parts = gguf_tokenizer(files.gguf_metadata, str(files.path))
    else:
        from octavo.engine.hf_tokenizer import folder_tokenizer

        parts = folder_tokenizer(files.path)
    if chat_template is None:
        return Tokenizer(parts)
    return Tokenizer(parts, chat_template=_read_chat_template(chat_template))


class Tokenizer:
    """Encodes, decodes, and renders chats. May be used by several threads.

    Args:
        chat_template: instead of those of `parts`.

    Attributes:
        vocab_size: ids are 0 … vocab_size-1, as far as the tokenizer knows; a model may have more.
        bos_token_id: None where there is none.
        eos_token_ids: ids that end a text; the model's generation config may add some.
        all_special_ids: ids of all special tokens.
    """

    def __init__(self, parts: TokenizerParts, *, chat_template: str | None = None) -> None:
        from octavo.engine.special_text import SpecialText

        self._core = parts.core
        self._special = SpecialText(parts.core)
        self._special_tokens = parts.special_tokens
        sources = parts.chat_templates if chat_template is None else {"default": chat_template}
        self._chat_templates = {name: ChatTemplate(source) for name, source in sources.items()}
        if parts.vocab_size is None:
            self.vocab_size = max(self._vocab.values(), default=-1) + 1
        else:
            self.vocab_size = parts.vocab_size
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.all_special_ids = self._special.ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text in which special tokens may be spelled out.

        Args:
            add_special_tokens: add BOS and EOS as the model wants them. A text that spells its own
                BOS gets no second one.

        Raises:
            RequestError: not valid Unicode text.
        """
        _check_text(text)
        ids: list[int] = self._core.encode(text, add_special_tokens=add_special_tokens).ids
        bos = self.bos_token_id
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            return ids[1:]
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which spellings of special tokens are text like any other.

        Raises:
            RequestError: not valid Unicode text.
        """
        _check_text(text)
        return self._special.encode_plain(text)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids; ids that the tokenizer does not know have none. Bytes that are no valid
        UTF-8 become U+FFFD."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        text: str = self._core.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Exactly the bytes that a token stands for; b"" for an unknown id. Where tokens start
        words with a space, the space is there even at the start of a text."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    @cached_property
    def special_spellings(self) -> Mapping[str, int]:
        """Every special token by its text."""
        return {self.token_bytes(i).decode("utf-8", "replace"): i for i in self.all_special_ids}

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` has a template to apply."""
        return "default" in self._chat_templates

    @property
    def chat_template_source(self) -> str:
        """Text of all chat templates; "" where there are none."""
        return "\n".join(template.source for template in self._chat_templates.values())

    @property
    def config(self) -> dict[str, Any]:
        """What a tokenizer_config.json says of it: special tokens by their names, as "eos_token",
        and `chat_template`."""
        sources = {name: template.source for name, template in self._chat_templates.items()}
        return tokenizer_config(self._special_tokens, sources)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> RenderedChat:
        """Text and ids of a chat. Special tokens come from the template alone: what messages and
        tools spell stays text (special_text.py). BOS comes from the template too, if at all.

        Args:
            messages: with role and content, in OpenAI's shape (chat_messages.py).
            add_generation_prompt: begin the assistant's turn.
            continue_final_message: leave the last message open, so that it is continued. It must be
                the assistant's, and `add_generation_prompt` false.
            tools: JSON schemas.
            chat_template: Jinja, instead of the model's.
            kwargs: further variables of the template.

        Raises:
            RequestError: the messages, tools or kwargs are wrong.
            ChatTemplateError: there is no template, or it refused, failed or ran too long.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message exclude each other; set one of "
                "them to false",
                param="continue_final_message",
            )
        if reserved := self._special_tokens.keys() & kwargs.keys():
            raise RequestError(
                f"{', '.join(sorted(reserved))} cannot be a variable of the chat template",
                param="chat_template_kwargs",
            )
        chat = {"messages": normal_messages(messages), "tools": normal_tools(tools), **kwargs}
        template = self._choose_template(chat["tools"], chat_template)
        if "developer" not in template.source:
            chat["messages"] = developer_as_system(chat["messages"])
        texts = chain.from_iterable(strings_in(value, name) for name, value in chat.items())
        marker = self._special.marker(chain(texts, [template.source]))
        marked = {name: map_strings(value, marker.mark) for name, value in chat.items()}
        if continue_final_message:
            last = last_content(chat["messages"])
            marked["messages"][-1]["content"] = marker.mark(last) + marker.end + " "
        rendered = template.render(
            {
                **self._special_tokens,
                **marked,
                "add_generation_prompt": add_generation_prompt,
            },
            show=marker.unmark,
        )
        if continue_final_message:
            rendered = _cut_open(rendered, marker.end)
        _check_text(rendered)
        return RenderedChat(marker.unmark(rendered), self._special.encode(rendered, marker))

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: bool = True, **options: Any
    ) -> str | list[int]:
        """`render_chat` under the name that tokenizers of transformers have: the ids, or the text
        alone. As a prompt, ids are better: of a text nobody can tell any more which special tokens
        a user had spelled."""
        rendered = self.render_chat(messages, **options)
        return rendered.token_ids if tokenize else rendered.text

    def _choose_template(self, tools: object, given: str | None) -> ChatTemplate:
        if given is not None:
            return ChatTemplate(given)
        templates = self._chat_templates
        if tools is not None and "tool_use" in templates:
            return templates["tool_use"]
        if "default" not in templates:
            raise ChatTemplateError(
                "the model has no chat template; start the engine with a chat_template, or send a "
                "plain prompt instead of messages",
                param="messages",
            )
        return templates["default"]

    @cached_property
    def _vocab(self) -> dict[str, int]:
        vocab: dict[str, int] = self._core.get_vocab(with_added_tokens=True)
        return vocab

    @cached_property
    def _bytes(self) -> list[bytes]:
        """Bytes by id."""
        table = [b""] * self.vocab_size
        kind = self._core.decoder
        state = b"" if kind is None else kind.__getstate__()
        to_bytes = _byte_level_bytes if _uses(state, "ByteLevel") else _spaced_bytes
        added = self._core.get_added_tokens_decoder()
        for token, i in self._vocab.items():
            table[i] = token.encode() if i in added else to_bytes(token)
        return table


def _cut_open(rendered: str, end: str) -> str:
    """The prompt up to the end of its last message. A template that trims messages removes the
    space after `end`; then the message's own last spaces go too."""
    at = rendered.rfind(end)
    if at < 0:
        raise ChatTemplateError(
            "continue_final_message: the chat template does not show the last message's text",
            param="continue_final_message",
        )
    kept = rendered[:at]
    return kept if rendered[at + 1 : at + 2] == " " else kept.rstrip()


def _read_chat_template(value: str) -> str:
    """The text of a template, given itself or as a file's path."""
    source = value
    if not any(mark in value for mark in ("{", "\n")):
        try:
            source = Path(value).expanduser().read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"chat_template={shown(value)} is no Jinja text and cannot be read as a file: "
                f"{error}"
            ) from error
    try:
        ChatTemplate(source).compile()
    except ChatTemplateError as error:
        raise ConfigError(f"chat_template={shown(value)}: {error}") from error
    return source


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"text must be a string, not {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds a lone surrogate at character {error.start}: not valid Unicode"
            ) from None


def _uses(decoder_state: bytes, kind: str) -> bool:
    """Whether a decoder of this type is among a tokenizer's decoders."""
    state = json.loads(decoder_state) if decoder_state else {}
    return kind in (d.get("type") for d in [state, *state.get("decoders", [])])


def _byte_to_char() -> dict[int, str]:
    """GPT-2's printable stand-ins for bytes (openai/gpt-2, encoder.py `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + n) for n, b in enumerate(others)}


_CHAR_TO_BYTE = {char: byte for byte, char in _byte_to_char().items()}


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_CHAR_TO_BYTE[c] for c in token])
    except KeyError:  # not of this alphabet: it stands for itself
        return token.encode()


def _spaced_bytes(token: str) -> bytes:
    """SentencePiece style: ▁ is a space, <0x41> a byte."""
    if len(token) == _BYTE_TOKEN_LENGTH and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("▁", " ").encode()
