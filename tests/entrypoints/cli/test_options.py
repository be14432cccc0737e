"""Options come from the configuration's fields, all of them, with their types and help."""

from __future__ import annotations

import inspect
import typing
from dataclasses import fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from octavo.config.engine import EngineConfig, section_fields
from octavo.contracts.sampling_params import SamplingParams
from octavo.entrypoints.cli.options import (
    attribute_docs,
    engine_options,
    sampling_options,
    vllm_flags,
)
from octavo.errors import ConfigError


def test_every_engine_field_is_an_option() -> None:
    got: list[tuple[str, EngineConfig]] = []

    @engine_options
    def command(x: str, engine: EngineConfig) -> None:
        got.append((x, engine))

    parameters = inspect.signature(command).parameters
    names = [f.name for section in fields(EngineConfig) for f in section_fields(section.name)]
    assert list(parameters) == ["x", *names]
    defaults = {name: parameters[name].default for name in names}
    command(x="y", **defaults | {"max_num_seqs": 3})
    assert got == [("y", EngineConfig.from_flat(max_num_seqs=3))]
    for name in names:
        annotation = parameters[name].annotation
        assert annotation.__metadata__[0].help


def test_an_option_of_json() -> None:
    app = typer.Typer()
    got: list[EngineConfig] = []

    @app.command()
    @engine_options
    def command(engine: EngineConfig) -> None:
        got.append(engine)

    flag = "--override-generation-config"
    for args in ([], [flag, '{"top_k": 5, "temperature": 0.5}']):
        assert CliRunner().invoke(app, args).exit_code == 0
    overrides = [engine.model.override_generation_config for engine in got]
    assert overrides == [None, {"top_k": 5, "temperature": 0.5}]
    for text in ("{", "[1]", "temperature=1", ""):
        result = CliRunner().invoke(app, [flag, text])
        assert result.exit_code == 2
        assert "Invalid value" in result.output


def test_flags_of_vllm_are_hidden_and_taken_where_they_ask_for_nothing() -> None:
    got: list[str] = []

    @vllm_flags
    def command(x: str) -> None:
        got.append(x)

    parameters = inspect.signature(command).parameters
    defaults = {name: p.default for name, p in parameters.items() if name != "x"}
    assert len(defaults) > 30
    assert all(p.annotation.__metadata__[0].hidden for n, p in parameters.items() if n != "x")
    command(x="y", **defaults)
    command(x="z", **defaults | {"tensor_parallel_size": 1, "uvicorn_log_level": None})
    assert got == ["y", "z"]
    with pytest.raises(ConfigError, match="uvicorn_log_level='info' is not supported: log_level"):
        command(x="y", **defaults | {"uvicorn_log_level": "info"})


def test_only_given_sampling_options_arrive() -> None:
    got: list[dict[str, Any]] = []

    @sampling_options(without=["top_k", "output_kind"])
    def command(sampling: dict[str, Any]) -> None:
        got.append(sampling)

    parameters = inspect.signature(command).parameters
    values = {name: p.default for name, p in parameters.items()}
    command(**values)
    command(**values | {"temperature": 0.0, "n": 2, "ignore_eos": False, "stop": ["a"]})
    assert got == [{}, {"temperature": 0.0, "n": 2, "ignore_eos": False, "stop": ["a"]}]
    assert set(parameters) <= set(SamplingParams.__struct_fields__) - {"top_k"}
    assert "top_p" in parameters


def test_attribute_docs() -> None:
    docs = attribute_docs(SamplingParams)
    assert docs["max_tokens"] == "most new tokens; None is as many as fit the model length."
    documented = set(docs)
    hints = typing.get_type_hints(SamplingParams)
    assert documented <= set(hints)
    assert attribute_docs(object) == {}

    class Example:
        """Title.

        Attributes:
            one: first
                line.
            two: second.

        Not: this.
        """

    assert attribute_docs(Example) == {"one": "first line.", "two": "second."}
