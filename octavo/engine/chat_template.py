"""A model's chat template: messages in, one text out, within limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from octavo.errors import ChatTemplateError

if TYPE_CHECKING:
    from octavo.engine.template_sandbox import ChatTemplateEnvironment

MAX_SOURCE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 1 << 24
MAX_SECONDS = 2.0
"""Of CPU time; templates in use take about a millisecond."""


class ChatTemplate:
    """One Jinja template. Compiled when it is first used; may be used by several threads."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lock = threading.Lock()
        self._compiled: Any = None

    def compile(self) -> Any:
        """The compiled template. Raises ChatTemplateError where the source is not valid."""
        with self._lock:
            if self._compiled is None:
                if len(self.source) > MAX_SOURCE_CHARS:
                    raise ChatTemplateError(
                        f"the chat template has {len(self.source)} characters, more than the "
                        f"{MAX_SOURCE_CHARS} allowed"
                    )
                try:
                    self._compiled = _environment().compile_limited(self.source)
                except Exception as error:  # syntax, unknown filters, nesting too deep …
                    raise ChatTemplateError(
                        f"the chat template is not valid: {_describe(error)}"
                    ) from error
            return self._compiled

    def render(
        self, variables: Mapping[str, Any], show: Callable[[str], str] = lambda text: text
    ) -> str:
        """The text for these variables.

        Args:
            show: makes texts of the template's own errors fit to be shown.

        Raises:
            ChatTemplateError: the template refused them (its own message is passed on), failed, or
                exceeded its limits.
        """
        from octavo.engine.template_sandbox import LimitExceededError, RaisedByTemplateError

        template = self.compile()
        chunks: list[str] = []
        num_chars = 0
        try:
            with _environment().limits(MAX_SECONDS):
                for chunk in template.generate(**variables):
                    chunks.append(chunk)
                    num_chars += len(chunk)
                    if num_chars > MAX_OUTPUT_CHARS:
                        raise LimitExceededError(
                            f"it writes more than {MAX_OUTPUT_CHARS} characters"
                        )
        except RaisedByTemplateError as error:
            message = show(str(error))[:1000]
            raise ChatTemplateError(f"the chat template refuses the messages: {message}") from None
        except LimitExceededError as error:
            raise ChatTemplateError(f"the chat template was stopped: {error}") from None
        except Exception as error:  # whatever a template can do wrong
            raise ChatTemplateError(
                f"the chat template failed on the messages: {show(_describe(error))}"
            ) from error
        return "".join(chunks)


@lru_cache(maxsize=1)
def _environment() -> ChatTemplateEnvironment:
    from octavo.engine.template_sandbox import ChatTemplateEnvironment

    return ChatTemplateEnvironment()


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"
