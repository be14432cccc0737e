"""Every error that Octavo raises on purpose.

    OctavoError
    ├── ConfigError            the engine cannot be built as asked (also a ValueError)
    │   └── MemoryPlanError    what was asked for does not fit into memory
    ├── ModelError             a model's files cannot be used
    │   ├── DownloadError          it could not be fetched
    │   ├── UnsupportedModelError  architecture, rope type, activation, tensor type … unknown
    │   ├── WeightsError           a tensor is missing, left over, misshapen or unreadable
    │   └── TokenizerError         no usable tokenizer, or a broken one
    ├── RequestError           one request is wrong; the engine goes on (also a ValueError)
    │   ├── DuplicateIdError       its request id is in use
    │   ├── PromptTooLongError     prompt (plus max_tokens) does not fit max_model_len
    │   └── ChatTemplateError      the chat template refused, failed, or ran too long
    ├── RequestFailedError     a request failed while it ran, by no fault of its own
    │   └── RequestAbortedError    it was ended from outside
    ├── EngineDeadError        the engine core is gone; nothing more can be asked of it
    ├── EngineUnresponsiveError  the core's process shows no sign of life; it may come back
    └── KernelError            a native kernel refused its arguments: our own bug

A message gives the value, the rule and the remedy. User input never meets an `assert`.
"""

from __future__ import annotations

from typing import Any

_MAX_SHOWN = 80


def shown(value: object) -> str:
    """A user's value for an error message: its repr, without its middle if over 80 characters."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python may refuse to print it
        return f"<a number of {value.bit_length()} bits>"
    try:
        if isinstance(value, (str, bytes, list, tuple)) and len(value) > 2 * _MAX_SHOWN:
            ends: Any = value  # mypy pairs all the kinds in a sum
            value = ends[:_MAX_SHOWN] + ends[-_MAX_SHOWN:]
        text = repr(value)
    except Exception:  # a broken __repr__, or a huge number inside
        return f"<{type(value).__name__}>"
    half = _MAX_SHOWN // 2
    return text if len(text) <= _MAX_SHOWN else f"{text[: half - 1]}…{text[-half:]}"


class OctavoError(Exception):
    """Root of the tree: catch this to catch all that Octavo raises on purpose."""


class ConfigError(OctavoError, ValueError):
    """The engine cannot be built as asked."""


class MemoryPlanError(ConfigError):
    """What was asked for does not fit into memory; the message says what would."""


class ModelError(OctavoError):
    """A model's files cannot be used."""


class DownloadError(ModelError):
    """A model could not be fetched."""


class UnsupportedModelError(ModelError):
    """The model needs something unknown to Octavo; the message lists what is supported."""


class WeightsError(ModelError):
    """A tensor is missing, left over, misshapen or unreadable; the message names it."""


class TokenizerError(ModelError):
    """No usable tokenizer in the model's files, or a broken one."""


class RequestError(OctavoError, ValueError):
    """One request is wrong. `param` names the field at fault, where one is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class DuplicateIdError(RequestError):
    """The request's id is that of another, which goes on."""


class PromptTooLongError(RequestError):
    """The prompt (plus the tokens asked for) does not fit into `max_model_len`."""


class ChatTemplateError(RequestError):
    """The chat template refused the messages, failed, or exceeded its limits."""


class RequestFailedError(OctavoError):
    """A request failed while it ran, by no fault of its own."""


class RequestAbortedError(RequestFailedError):
    """A request was ended from outside before it was done."""


class EngineDeadError(OctavoError):
    """The engine core is gone."""


class EngineUnresponsiveError(OctavoError):
    """The engine core's process has shown no sign of life for seconds (stopped, swapped out)."""


class KernelError(OctavoError):
    """A native kernel refused its arguments: a bug in Octavo, never in a request."""
