"""A typed reader for foreign configuration (config.json, GGUF metadata).

Model families read every value that shapes their forward through `ConfigReader`; a missing key, a
wrong type or an unknown choice is an error that says what is supported. Nothing is guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import UnsupportedModelError, shown

_MISSING: Any = object()
_LARGEST = 1e15
"""Of numbers that scale others."""


class ConfigReader:
    """Typed access to a (nested) mapping.

    Args:
        values: what config.json (or its GGUF translation) holds.
        where: for error messages, e.g. the file's path.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigReader:
        """The same, with values for keys that are absent. A key that is null stays null."""
        return ConfigReader({**defaults, **self._values}, self._where)

    def keys(self) -> Sequence[str]:
        """All keys that are present and not null."""
        return [k for k, v in self._values.items() if v is not None]

    def int(self, key: str, default: Any = _MISSING) -> Any:
        """A positive or zero integer."""
        value = self._get(key, default)
        if value is default and default is not _MISSING:
            return value
        if type(value) is not int or value < 0:
            raise self._wrong(key, value, "a non-negative integer")
        return value

    def float(self, key: str, default: Any = _MISSING) -> Any:
        """A finite number."""
        value = self._get(key, default)
        if value is default and default is not _MISSING:
            return value
        if type(value) not in (int, float) or abs(value) > sys.float_info.max or value != value:
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def positive(self, key: str, default: Any = _MISSING) -> Any:
        """A number above 0, neither so small nor so large that float32 could not hold products of
        it. A default is checked, too, unless it is None."""
        value = self.float(key, default)
        if value is not None and not 1 / _LARGEST <= value <= _LARGEST:
            raise self._wrong(
                key, value, f"above 0, at least {1 / _LARGEST:g} and at most {_LARGEST:g}"
            )
        return value

    def bool(self, key: str, default: Any = _MISSING) -> Any:
        """true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def choice(
        self, key: str, choices: Mapping[str, Any] | Sequence[str], default: Any = _MISSING
    ) -> Any:
        """One of `choices`; a mapping translates it."""
        value = self._get(key, default)
        if value not in tuple(choices):  # a tuple, because a value may be unhashable
            raise UnsupportedModelError(
                f"{self._where}: {key}={shown(value)} is not supported; supported: "
                f"{', '.join(map(str, choices))}"
            )
        return choices[value] if isinstance(choices, Mapping) else value

    def list(self, key: str, default: Any = _MISSING) -> Any:
        """A list."""
        value = self._get(key, default)
        if value is not default and not isinstance(value, (list, tuple)):
            raise self._wrong(key, value, "a list")
        return value

    def section(self, key: str) -> ConfigReader | None:
        """A nested mapping, or None where it is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return ConfigReader(value, f"{self._where}: {key}")

    def unsupported(self, message: str) -> UnsupportedModelError:
        """An error that names the file."""
        return UnsupportedModelError(f"{self._where}: {message}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is None:
            if default is _MISSING:
                raise UnsupportedModelError(f"{self._where}: {key} is missing")
            return default
        return value

    def _wrong(self, key: str, value: object, rule: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._where}: {key}={shown(value)} must be {rule}")
