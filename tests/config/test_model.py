"""ConfigReader: nothing is guessed, and an error says which file, key, value and rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.model import ConfigReader
from octavo.errors import UnsupportedModelError


def reader(**values: Any) -> ConfigReader:
    return ConfigReader(values, "config.json")


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ("int", 0, 0),
        ("int", 49152, 49152),
        ("float", 1, 1.0),
        ("float", 1e-5, 1e-5),
        ("float", -2.5, -2.5),
        ("bool", True, True),
        ("bool", False, False),
        ("positive", 8, 8.0),
        ("positive", 1e-15, 1e-15),
        ("list", [1, 2], [1, 2]),
        ("list", [], []),
    ],
)
def test_values(kind: str, value: Any, read: Any) -> None:
    found = getattr(reader(key=value), kind)("key")
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("kind", "value", "rule"),
    [
        ("int", -1, "a non-negative integer"),
        ("int", 1.0, "a non-negative integer"),
        ("int", True, "a non-negative integer"),
        ("int", "1", "a non-negative integer"),
        ("int", [1], "a non-negative integer"),
        ("float", "1", "a finite number"),
        ("float", True, "a finite number"),
        ("float", math.nan, "a finite number"),
        ("float", math.inf, "a finite number"),
        ("float", -math.inf, "a finite number"),
        pytest.param("float", 10**400, "a finite number", id="float-huge"),
        ("positive", 0, "above 0, at least 1e-15 and at most 1e\\+15"),
        ("positive", -1.0, "above 0"),
        ("positive", 1e16, "above 0"),
        ("positive", 1e-16, "above 0"),
        ("positive", math.nan, "a finite number"),
        ("bool", 1, "true or false"),
        ("bool", "true", "true or false"),
        ("list", "abc", "a list"),
        ("list", {"a": 1}, "a list"),
        ("section", [1], "an object"),
        ("section", "x", "an object"),
    ],
)
def test_wrong_values(kind: str, value: Any, rule: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"config\.json: key=.* must be {rule}"):
        getattr(reader(key=value), kind)("key")


@pytest.mark.parametrize("kind", ["int", "float", "positive", "bool", "list"])
@pytest.mark.parametrize("values", [{}, {"key": None}], ids=["absent", "null"])
def test_missing(kind: str, values: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"config\.json: key is missing"):
        getattr(reader(**values), kind)("key")
    assert "key" not in reader(**values)
    assert reader(**values).keys() == []


@pytest.mark.parametrize(
    ("kind", "default"), [("int", 7), ("int", None), ("float", 0.5), ("bool", True), ("list", None)]
)
@pytest.mark.parametrize("values", [{}, {"key": None}], ids=["absent", "null"])
def test_defaults(kind: str, default: Any, values: dict[str, Any]) -> None:
    assert getattr(reader(**values), kind)("key", default) == default


def test_with_defaults_fills_in_what_is_absent_and_keeps_null() -> None:
    given = reader(window=8, cap=None)
    filled = given.with_defaults({"window": 4, "cap": 50.0, "heads": 2})
    assert (filled.int("window"), filled.int("heads")) == (8, 2)
    assert "cap" not in filled
    assert "heads" not in given
    with pytest.raises(UnsupportedModelError, match=r"config\.json: size is missing"):
        filled.int("size")


def test_a_default_must_be_positive_too() -> None:
    assert reader().positive("key", None) is None
    assert reader().positive("key", 2.0) == 2.0
    with pytest.raises(UnsupportedModelError, match="above 0"):
        reader().positive("key", math.inf)


def test_choice() -> None:
    table = {"silu": 1, "gelu": 2}
    assert reader(act="gelu").choice("act", table) == 2
    assert reader(act="gelu").choice("act", ["gelu"]) == "gelu"
    assert reader().choice("act", table, "silu") == 1
    for wrong in ("relu", 5, True, ["silu"], {"silu": 1}):
        with pytest.raises(UnsupportedModelError) as caught:
            reader(act=wrong).choice("act", table)
        assert f"act={wrong!r} is not supported; supported: silu, gelu" in str(caught.value)


def test_sections_carry_their_place() -> None:
    outer = reader(rope={"factor": -1})
    inner = outer.section("rope")
    assert inner is not None
    with pytest.raises(UnsupportedModelError, match=r"config\.json: rope: factor=-1"):
        inner.int("factor")
    assert reader().section("rope") is None


def test_errors_of_families_name_the_file() -> None:
    error = reader().unsupported("odd heads")
    assert isinstance(error, UnsupportedModelError)
    assert str(error) == "config.json: odd heads"


def test_long_values_are_cut() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        reader(key=["x"] * 10_000).int("key")
    assert len(str(caught.value)) < 200


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(ANYTHING, st.sampled_from(["int", "float", "positive", "bool", "list", "section", "choice"]))
def test_any_json_either_reads_or_is_unsupported(value: Any, kind: str) -> None:
    extra = ({"a": 1},) if kind == "choice" else ()
    try:
        getattr(reader(key=value), kind)("key", *extra)
    except UnsupportedModelError as error:
        assert "config.json" in str(error)
