"""`response_format`, `structured_outputs` and forced calls to `StructuredOutputsParams`."""

from __future__ import annotations

from typing import Any

from octavo.contracts.structured_outputs import StructuredOutputsParams
from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.protocol import ChatCompletionRequest, GenerationRequest
from octavo.entrypoints.openai.tool_choice import forced_calls, forces_call, leniently
from octavo.errors import RequestError, shown

RESPONSE_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
_SCHEMA_FIELDS: dict[str, type] = {
    "name": str,
    "description": str,
    "schema": object,
    "strict": bool,
}


def structured_outputs(request: GenerationRequest) -> StructuredOutputsParams | None:
    """What the output must be, if a request says so.

    Raises:
        APIError, RequestError: what is wrong with it; `param` names the body's field.
    """
    if isinstance(request, ChatCompletionRequest):
        forced = forced_calls(request)
        if forced is not None:
            return forced
    options = request.structured_outputs
    form = request.response_format
    if options is None:
        return None if form is None else _of_response_format(form)
    if form is not None and form != {"type": "text"}:
        raise bad_request(
            "response_format and structured_outputs exclude each other; give one of them",
            "response_format",
        )
    unknown = set(options) - set(StructuredOutputsParams.__struct_fields__)
    if unknown:
        raise bad_request(
            f"structured_outputs has the unknown field {shown(min(unknown))}; it has "
            f"{', '.join(StructuredOutputsParams.__struct_fields__)}",
            "structured_outputs",
        )
    return StructuredOutputsParams(**{k: v for k, v in options.items() if v is not None})


def grammar_field(request: GenerationRequest, format_field: str) -> str:
    """The body's field that `structured_outputs` follows.

    Args:
        format_field: how the API calls `response_format`.
    """
    if isinstance(request, ChatCompletionRequest) and forces_call(request):
        return "tools"
    return format_field if request.structured_outputs is None else "structured_outputs"


def _of_response_format(form: dict[str, Any]) -> StructuredOutputsParams | None:
    form = {name: value for name, value in form.items() if value is not None}
    kind = form.get("type")
    expected = {"type"}
    if kind == "json_object" and "schema" in form:  # as llama.cpp's and others' users write it
        kind, form = "json_schema", {"type": kind, "json_schema": {"schema": form["schema"]}}
    if kind == "json_schema":
        expected = {"type", "json_schema"}
    elif kind == "structural_tag":
        expected = {"type", "format"} if "format" in form else {"type", "structures", "triggers"}
    elif kind not in RESPONSE_FORMATS:
        raise bad_request(
            f"response_format.type={shown(kind)} must be one of {', '.join(RESPONSE_FORMATS)}",
            "response_format",
        )
    if set(form) != expected:
        raise bad_request(
            f"response_format has the fields {shown(sorted(form))}; with type {kind!r} it must "
            f"have {', '.join(sorted(expected))}",
            "response_format",
        )
    if kind == "text":
        return None
    try:
        if kind == "json_object":
            return StructuredOutputsParams(json_object=True)
        if kind == "structural_tag":
            return StructuredOutputsParams(structural_tag=form)
        return StructuredOutputsParams(json=_schema(form["json_schema"]))
    except RequestError as error:
        raise bad_request(f"response_format: {error}", "response_format") from None


def _schema(value: Any) -> dict[str, Any]:
    """The schema in OpenAI's envelope."""
    fields = value if isinstance(value, dict) else {}
    given = {name: item for name, item in fields.items() if item is not None}
    if "schema" not in given or not all(
        name in _SCHEMA_FIELDS and isinstance(item, _SCHEMA_FIELDS[name])
        for name, item in given.items()
    ):
        raise RequestError(
            f"json_schema={shown(value)} must have a schema, and may have a name and a description "
            "(text) and strict (true or false)"
        )
    schema: dict[str, Any] = given["schema"]
    return (
        leniently(schema) if given.get("strict") is False and isinstance(schema, dict) else schema
    )
