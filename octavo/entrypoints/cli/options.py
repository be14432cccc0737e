"""Command-line options made from the configuration: one per field, its help from the field's docs.

A command asks for them with a decorator and gets the finished object:

    @engine_options
    def generate(…, engine: EngineConfig) -> None: …
"""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from typing import Annotated, Any

import typer

from octavo.config.engine import EngineConfig, section_fields
from octavo.config.vllm_options import (
    VLLM_ENGINE_OPTIONS,
    VLLM_SERVER_OPTIONS,
    check_vllm_options,
)

Command = Callable[..., None]

_SAMPLING = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop"),
    *("stop_token_ids", "ignore_eos", "min_tokens", "logprobs"),
    *("skip_special_tokens", "include_stop_str_in_output"),
)
"""Fields of SamplingParams that are options, in order of the help. Not `seed`: the engine's --seed
decides all draws."""


def engine_options(command: Command) -> Command:
    """Add an option per field of the engine's configuration; they arrive as `engine`."""
    return _with_options(command, "engine", list(_engine_parameters()), EngineConfig.from_flat)


def sampling_options(*, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Add the options of sampling but some; those given arrive as the dict `sampling`."""

    def given(**values: Any) -> dict[str, Any]:
        return {k: v for k, v in values.items() if v not in (None, [], ())}

    added = [p for p in _sampling_parameters() if p.name not in without]
    return lambda command: _with_options(command, "sampling", added, given)


def config_options(name: str, cls: type, panel: str) -> Callable[[Command], Command]:
    """Add an option per field of a configuration dataclass; they arrive as one object, `name`."""
    hints = typing.get_type_hints(cls)
    added = [
        _option(f.name, hints[f.name], f.default, f.metadata["help"], panel) for f in fields(cls)
    ]
    return lambda command: _with_options(command, name, added, cls)


def vllm_flags(command: Command) -> Command:
    """Add vLLM's flags that are none here, out of sight of the help: they may stay in a command
    line where they ask for nothing."""
    options = VLLM_ENGINE_OPTIONS | VLLM_SERVER_OPTIONS
    added = [_hidden_option(name, option.kind) for name, option in options.items()]

    def checked(**values: Any) -> None:
        check_vllm_options({n: v for n, v in values.items() if v is not None})

    return _with_options(command, None, added, checked)


def _with_options(
    command: Command, name: str | None, added: list[inspect.Parameter], build: Callable[..., Any]
) -> Command:
    """`command`, taking the parameters `added` in place of its own parameter `name`; without one,
    `build` only looks at them."""

    def wrapper(**values: Any) -> None:
        taken = {p.name: values.pop(p.name) for p in added}
        built = build(**taken)
        command(**values, **({} if name is None else {name: built}))

    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [p for p in own if p.name != name] + added
    functools.update_wrapper(wrapper, command)
    wrapper.__dict__["__signature__"] = inspect.Signature(parameters)
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _engine_parameters() -> Iterator[inspect.Parameter]:
    for section in fields(EngineConfig):
        panel = f"Engine: {section.name}"
        hints = typing.get_type_hints(section.default_factory)
        for f in section_fields(section.name):
            yield _option(f.name, hints[f.name], f.default, f.metadata["help"], panel)


def _sampling_parameters() -> Iterator[inspect.Parameter]:
    from octavo.contracts.sampling_params import SamplingParams

    docs = attribute_docs(SamplingParams)
    hints = typing.get_type_hints(SamplingParams)
    for name in _SAMPLING:
        hint = hints[name]
        many = next((t for t in typing.get_args(hint) if typing.get_origin(t) is list), None)
        yield _option(name, many or hint | None, None, docs[name], "Sampling")


def _option(name: str, hint: Any, default: Any, help_text: str, panel: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    choices = parser = None
    if typing.get_origin(hint) is typing.Literal:  # the configuration checks the value
        hint, choices = str, "|".join(typing.get_args(hint))
    if any(typing.get_origin(t) is dict for t in typing.get_args(hint)):
        hint, choices, parser = str | None, "JSON", _json_object
    if typing.get_origin(hint) is tuple:  # given once per entry
        hint, default = list[str], list(default)
    if hint is bool or bool in typing.get_args(hint):
        flag = f"{flag}/--no-{flag[2:]}"
    option = typer.Option(
        flag, help=help_text, metavar=choices, parser=parser, rich_help_panel=panel
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, option],
    )


def _json_object(text: str) -> dict[str, Any]:
    """An option's value. Raises ValueError, which is a wrong command line."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _hidden_option(name: str, hint: Any) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    if hint is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[hint | None, typer.Option(flag, hidden=True)],
    )


def attribute_docs(cls: type) -> dict[str, str]:
    """Field name → its text in the "Attributes:" part of a class's docstring."""
    docs: dict[str, str] = {}
    name = None
    text = inspect.getdoc(cls) or ""
    for line in text.partition("Attributes:\n")[2].splitlines():
        stripped = line.strip()
        if not stripped:
            continue
        if not line.startswith(" "):
            break
        if line[4:5] != " ":
            name, _, stripped = stripped.partition(": ")
            docs[name] = stripped
        elif name is not None:
            docs[name] += f" {stripped}"
    return docs
