"""What `LLM` was given, brought into one form: lists of prompts, conversations and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from octavo.errors import RequestError

Message = Mapping[str, Any]
"""One turn of a conversation, as in OpenAI's chat API: {"role": …, "content": …}."""


@contextmanager
def naming(what: str, index: int, count: int) -> Iterator[None]:
    """Errors of one in a list name its place."""
    try:
        yield
    except RequestError as error:
        if count == 1:
            raise
        raise type(error)(f"{what}[{index}]: {error}", param=error.param) from None


def as_prompts(prompts: Any) -> list[Any]:
    """A list of prompts, whether one or many were given. A list of ints is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise RequestError(
            f"prompts must be a string, a dict or a list, not {type(prompts).__name__}",
            param="prompts",
        )
    if prompts and all(isinstance(p, Integral) for p in prompts):
        return [prompts]
    return list(prompts)


def as_conversations(messages: Any) -> list[Sequence[Message]]:
    """A list of conversations, whether one or many were given."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError(
            "messages must be a list of messages, or a list of such lists, and not empty",
            param="messages",
        )
    if all(isinstance(m, Mapping) for m in messages):
        return [messages]
    if all(isinstance(m, (list, tuple)) for m in messages):
        return list(messages)
    raise RequestError(
        'each of messages must be a dict like {"role": "user", "content": "…"} (one conversation) '
        "or a list of such dicts (many)",
        param="messages",
    )


_TEMPLATE_ARGUMENTS = {
    "self",
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template",
}


def template_variables(values: Any) -> dict[str, Any]:
    """`chat_template_kwargs`, fit to be passed on beside the arguments of those names."""
    if values is None:
        return {}
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise RequestError(
            "chat_template_kwargs must be a dict whose keys are strings",
            param="chat_template_kwargs",
        )
    taken = sorted(_TEMPLATE_ARGUMENTS & values.keys())
    if taken:
        raise RequestError(
            f"chat_template_kwargs must not hold {', '.join(taken)}: an argument of chat() or a "
            "reserved name",
            param="chat_template_kwargs",
        )
    return dict(values)


def one_each(name: str, values: Any, count: int) -> list[Any]:
    """`values`, one for each of `count` prompts. Raises RequestError: they are no such list."""
    if not isinstance(values, (list, tuple)):
        raise RequestError(
            f"{name} must be one or a list of them, not {type(values).__name__}", param=name
        )
    if len(values) != count:
        raise RequestError(
            f"{name} has {len(values)} entries for {count} prompts; give one each", param=name
        )
    return list(values)
