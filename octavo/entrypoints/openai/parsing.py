"""Request bodies: JSON to a typed request, or a 400 that names the field.

A `null` is the same as an absent field. Every other value must be of its field's type; a field
that Octavo does not know, or knows and cannot honour yet, is refused by name, never ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from octavo.entrypoints.openai.errors import APIError, bad_request
from octavo.errors import shown

T = TypeVar("T", bound=msgspec.Struct)

_MOST = {
    b",": 2 * 2**20,  # list elements, most of them token ids
    b"[{": 2**18,  # lists and objects
    b":": 2**18,  # fields
    b'"': 2**20,  # two for a string
}
"""How often characters may come in a body, strings included. Decoding and checking take
the event loop, by what is in a body and not by its bytes: 8 MiB of `[],` would stop every stream
for 2.5 s. At these limits it is at most 0.15 s."""

_MOVED = {
    "guided_json": "it is structured_outputs.json now",
    "guided_regex": "it is structured_outputs.regex now",
    "guided_choice": "it is structured_outputs.choice now",
    "guided_grammar": "it is structured_outputs.grammar now",
    "guided_whitespace_pattern": "it is structured_outputs.whitespace_pattern now",
    "regex": "it is structured_outputs.regex here",
    "ebnf": "it is structured_outputs.grammar here",
    "grammar": "it is structured_outputs.grammar here",
    "json_schema": "it is structured_outputs.json here, or in response_format",
    "enable_thinking": "it is a variable of the template: chat_template_kwargs.enable_thinking",
    "guided_decoding_backend": "there is one backend of grammars; leave it out",
    "extra_body": "OpenAI's Python client takes it; in JSON its fields stand beside the others",
    "max_new_tokens": "it is max_tokens here",
    "best_of": "only /v1/completions has it; n and logprobs let you choose yourself",
}
"""Names that users bring from elsewhere, and what to do, where a route has no such field."""

_MOST_PARAMS = 100
_BOM = b"\xef\xbb\xbf"
"""What .NET and PowerShell write before UTF-8. RFC 8259 lets parsers pass over it."""

_WHERE = re.compile(r" - at `(?P<path>[^`]*)`$")
_HALF_PAIR = re.compile(
    rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")


def parse_body(
    body: bytes | bytearray, kind: type[T], unsupported: Mapping[str, tuple[Any, ...]]
) -> T:
    """Decode one request.

    Args:
        kind: the request's struct; its fields are what is honoured.
        unsupported: fields that exist elsewhere → their neutral values, which are accepted.

    Raises:
        APIError: 400 (413 for too many values); `param` is the field at fault.
    """
    return parse_values(parse_object(body), kind, unsupported)


def parse_values(
    values: dict[str, Any], kind: type[T], unsupported: Mapping[str, tuple[Any, ...]]
) -> T:
    """The same of an object that was decoded already, without its nulls."""
    known = kind.__struct_fields__
    for name, value in list(values.items()):
        if name in known:
            continue
        if name not in unsupported:
            raise bad_request(_unknown(name, [*known, *unsupported]), name)
        if not any(
            type(value) is type(neutral) and value == neutral for neutral in unsupported[name]
        ):
            raise bad_request(f"{name} is not supported by this server; leave it out", name)
        del values[name]
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None
    except RecursionError:
        raise _too_deep() from None


def parse_query(query: bytes, kind: type[T]) -> T:
    """Decode a URL's query, whose values are text: "true", "17".

    Raises:
        APIError: 400; `param` is the parameter at fault.
    """
    known = kind.__struct_fields__
    try:
        pairs = parse_qsl(query.decode("ascii"), True, errors="strict", max_num_fields=_MOST_PARAMS)
    except ValueError as error:
        raise bad_request(f"the query is not valid: {error}") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise bad_request(_unknown(name, [*known], "parameter"), name)
        if name in values:
            raise bad_request(f"{name} is given twice", name)
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Decode a JSON object and drop its nulls. Raises APIError 400, or 413 for too many values."""
    for characters, most in _MOST.items():
        if len(body) > most and sum(map(body.count, characters)) > most:
            raise APIError(
                413,
                f"the body has too many JSON values: more than {most} {characters.decode()!r}",
                code="request_too_large",
            )
    try:
        values = msgspec.json.decode(without_bom(body))
    except msgspec.ValidationError:  # of values without a type it is only ever this
        raise bad_request(
            "the body holds a number out of range: at most 1.7e308, an integer 4,300 digits"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        half = _HALF_PAIR.search(body)
        why = error if half is None else f"{half[1].decode()} is half a surrogate pair"
        raise bad_request(f"the body is not valid JSON: {why}") from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(values, dict):
        raise bad_request("the body must be a JSON object")
    return {name: value for name, value in values.items() if value is not None}


def without_bom(body: bytes | bytearray) -> bytes | bytearray | memoryview:
    """JSON without the byte order mark in front of it."""
    return memoryview(body)[len(_BOM) :] if body.startswith(_BOM) else body


def _unknown(name: str, known: list[str], what: str = "field") -> str:
    if name in _MOVED:
        return f"unknown {what} {shown(name)}: {_MOVED[name]}"
    close = difflib.get_close_matches(name[:64], known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {shown(name)}{hint}"


def _wrong_type(error: msgspec.ValidationError) -> APIError:
    text = str(error)
    path = ""
    if match := _WHERE.search(text):
        path = match["path"].removeprefix("$").removeprefix(".")
        text = text[: match.start()]
    elif match := _MISSING.search(text):
        return bad_request(f"{match['name']} is missing", match["name"])
    text = text.replace(" | null", "")
    return bad_request(f"{path}: {text}" if path else text, path.partition("[")[0] or None)


def _too_deep() -> APIError:
    return bad_request("the body's JSON is nested too deeply")
