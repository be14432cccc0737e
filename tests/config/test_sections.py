"""The sections: their fields are what the command line and the reference page are made of."""

from __future__ import annotations

import typing
from dataclasses import fields

import pytest

from octavo.config.engine import EngineConfig, section_fields

SECTIONS = [f.name for f in fields(EngineConfig)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_a_type_that_a_flag_can_have(section: str) -> None:
    simple = {str, int, float, bool, type(None)}
    hints = typing.get_type_hints(type(getattr(EngineConfig(), section)))
    for f in section_fields(section):
        options = typing.get_args(hints[f.name]) or (hints[f.name],)
        if typing.get_origin(hints[f.name]) is typing.Literal:
            assert f.default in options
            assert all(isinstance(o, str) for o in options)
        elif typing.get_origin(hints[f.name]) is tuple:
            assert (hints[f.name], f.default) == (tuple[str, ...], ())
        elif dict in map(typing.get_origin, options):
            assert (hints[f.name], f.default) == (dict[str, int | float] | None, None)
        else:
            assert set(options) <= simple, f.name
            assert type(f.default) in options, f.name


@pytest.mark.parametrize("section", SECTIONS)
def test_help_is_one_line_without_a_full_stop(section: str) -> None:
    for f in section_fields(section):
        text = f.metadata["help"]
        assert 10 <= len(text) <= 100, f.name
        assert "\n" not in text
        assert not text.endswith(".")
