"""Calls in Python's syntax, and what of it is none of their business."""

from __future__ import annotations

import pytest

from tests.engine.parsers.lab import Case, check


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ("a=-5, b=+3.5, c=-1e-3", {"a": -5, "b": 3.5, "c": -0.001}),
        ('from=1, class="x"', {"from": 1, "class": "x"}),
        ('max-results=3', {"max-results": 3}),
        ('a="one\ntwo"', {"a": "one\ntwo"}),
        ('a="""one\ntwo"""', {"a": "one\ntwo"}),
        ("a=\"it's\", b='say \"hi\"'", {"a": "it's", "b": 'say "hi"'}),
        (r'a="x\ny\\ \"q\" \u4f60"', {"a": 'x\ny\\ "q" 你'}),
        (r'a="\d+\w"', {"a": r"\d+\w"}),
        ('a="f(x)] [y, z=1"', {"a": "f(x)] [y, z=1"}),
        ("a=true, b=False, c=null, d=None", {"a": True, "b": False, "c": None, "d": None}),
        ("a=(800, 600), b=[{'k': [1]}]", {"a": [800, 600], "b": [{"k": [1]}]}),
        ("a=1,", {"a": 1}),
        ("\n  a=1,\n  b=2\n", {"a": 1, "b": 2}),
        ("", {}),
    ],
)  # fmt: skip
def test_values(arguments: str, value: object) -> None:
    """vllm#15462, #48171, sglang#27910."""
    check(Case("pythonic", f"[get_time({arguments})]", [("get_time", value)]))


@pytest.mark.parametrize(
    "call",
    [
        'get_time("Paris")',
        "get_time(a=f(1))",
        "get_time(a=b)",
        "get_time(a=1e999)",
        "get_time(a={1: 2})",
        "get_time(a={1, 2})",
        "get_time(**x)",
        "get_time(a=1, , b=2)",
        "get_time(a==1)",
        "get_time(a=[1)",
        "get_time",
        "gone(a=1)",
        "get_time(a=" + "[" * 70 + "]" * 70 + ")",
    ],
)
def test_what_is_no_call_is_content(call: str) -> None:
    check(Case("pythonic", f"[{call}]", content=f"[{call}]"))
