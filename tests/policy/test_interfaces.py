"""The interfaces in docs/architecture.md are those of the code: names, parameters, defaults."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from typing import Any

import pytest

from tests.policy.tree import ROOT

DOCUMENT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PARAMETERS = r"\([^()]*(?:\(\)[^()]*)*\)"  # with defaults like ()


def _documented() -> list[tuple[list[str], ast.stmt]]:
    """(modules, definition) pairs: the comment before a block names where its parts are."""
    (code,) = re.findall(r"## Interfaces between packages.*?```python\n(.*?)```", DOCUMENT, re.S)
    found: list[tuple[list[str], ast.stmt]] = []
    for block in code.split("\n\n"):
        modules = re.findall(r"([\w/]+)\.py", block.split("\n")[0])
        lines = [line.split("  #")[0].split(" #")[0].rstrip() for line in block.split("\n")[1:]]
        text = "\n".join(lines)
        text = re.sub(r"^(\w+\(.*)$", r"def \1", text, flags=re.M)  # functions
        text = re.sub(f"^( *def [^:]*?{PARAMETERS}(?: -> .*)?)$", r"\1: ...", text, flags=re.M)
        found += [(modules, statement) for statement in ast.parse(text).body]
    return found


DOCUMENTED = _documented()


def _find(modules: list[str], name: str) -> Any:
    for module in modules:
        value = getattr(import_module(f"octavo.{module.replace('/', '.')}"), name, None)
        if value is not None:
            return value
    raise AssertionError(f"no {name} in {modules}")


def _assert_same_parameters(documented: ast.FunctionDef, function: Any) -> None:
    there = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self",)]
    arguments = documented.args
    named = [*arguments.args, *arguments.kwonlyargs]
    extra = [arguments.kwarg] if arguments.kwarg else []
    assert [p.name for p in there] == [a.arg for a in (*named, *extra) if a.arg != "self"]
    keyword_only = {p.name for p in there if p.kind is p.KEYWORD_ONLY}
    assert keyword_only == {a.arg for a in arguments.kwonlyargs}
    positional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    defaults = dict(zip((a.arg for a in positional), arguments.defaults))
    defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults) if d}
    assert {p.name: p.default for p in there if p.default is not p.empty} == {
        name: ast.literal_eval(value) for name, value in defaults.items()
    }


@pytest.mark.parametrize(
    ("modules", "documented"), DOCUMENTED, ids=[getattr(d, "name", "?") for _, d in DOCUMENTED]
)
def test_as_documented(modules: list[str], documented: ast.stmt) -> None:
    assert isinstance(documented, (ast.FunctionDef, ast.ClassDef))
    value = _find(modules, documented.name)
    if isinstance(documented, ast.FunctionDef):
        _assert_same_parameters(documented, value)
        return
    source = inspect.getsource(value)
    for member in documented.body:
        if isinstance(member, ast.FunctionDef):
            _assert_same_parameters(member, getattr(value, member.name))
        else:
            assert isinstance(member, ast.AnnAssign)
            assert isinstance(member.target, ast.Name)
            assert re.search(rf"\b{member.target.id}\b", source), member.target.id


def test_all_of_it_was_read() -> None:
    names = {getattr(d, "name", "") for _, d in DOCUMENTED}
    assert {"resolve_model", "Tokenizer", "Scheduler", "EngineCore", "AsyncLLM"} <= names
