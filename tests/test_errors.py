"""The error tree, and how values are shown in messages."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from octavo import errors
from octavo.errors import OctavoError, RequestError, shown


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        ("x", "'x'"),
        (None, "None"),
        pytest.param(2**9999, "<a number of 10000 bits>", id="huge"),
        pytest.param([2**99999], "<list>", id="huge inside"),
        (Broken(), "<Broken>"),
        ("x" * 78, f"'{'x' * 78}'"),
        ("x" * 10**6, f"'{'x' * 38}…{'x' * 39}'"),
        ("/folder" * 20 + "/model.gguf", f"'{'/folder' * 5}/fo…{'/folder' * 4}/model.gguf'"),
        ([1] * 10**4, f"[{'1, ' * 12}1,…,{' 1,' * 12} 1]"),
    ],
)
def test_shown(value: Any, text: str) -> None:
    assert shown(value) == text


def test_the_drawn_tree_is_the_real_one() -> None:
    classes = {
        n for n, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, OctavoError)
    }
    drawn = re.findall(r"(?:──|^    )\s?(\w*Error)", errors.__doc__ or "", re.MULTILINE)
    assert set(drawn) == classes
    assert len(drawn) == len(classes)


def test_user_errors_are_value_errors() -> None:
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.RequestError, ValueError)
    assert not issubclass(errors.KernelError, ValueError)


def test_request_errors_name_their_field() -> None:
    assert RequestError("bad", param="top_p").param == "top_p"
    assert RequestError("bad").param is None
