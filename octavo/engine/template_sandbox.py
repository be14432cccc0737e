"""Jinja with the features that chat templates use, and hard limits on what one render may do.

transformers' environment (ImmutableSandboxedEnvironment; trim_blocks, lstrip_blocks, loop controls,
`{% generation %}`, `tojson`, `raise_exception`, `strftime_now`), in which in addition everything
that costs is counted: each turn of a loop, each call and filter, each value that one of them or an
operator makes. That leaves a template no way to run or grow without being counted, because

- loops over anything go through `_each`; recursion is calls;
- containers are weighed when a literal, operator, filter or call makes them, so none ever weighs
  more than `MAX_VALUE`, however its parts are shared;
- operations whose result can be larger than their operands are refused beforehand;
- nothing is computed at compile time (no optimizer, no constant folding).
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

MAX_VALUE = 1 << 26
"""Largest weight of one value. A character weighs 1, any other object `_OBJECT`."""
MAX_TOTAL = 1 << 29
"""Most weight that one render may handle."""
MAX_INTEGER_BITS = 256

_OBJECT = 256
_TICKS_PER_CLOCK_CHECK = 32
_TEXT = (str, bytes)
_NUMBER = (int, float)
_GROWING_METHODS = {
    *("center", "expandtabs", "join", "ljust", "rjust", "to_bytes", "translate", "zfill"),
}
_GROWING_FILTERS = {
    *("batch", "center", "indent", "join", "round", "slice", "tojson", "wordwrap"),
}
_UNWANTED_FILTERS = {"pprint", "random", "sum", "urlize", "xmlattr"}
"""Not in chat templates; slow on hostile input, or never the same twice. `sum` is replaced."""
_WIDE = re.compile(
    r"%(?:\([^)]{0,99}\))?[-+ #0-9.]*(?:\d{5}|\*)"  # %99999d, %*d
    r"|\{[^}]*(?:\d{5}|\{)"  # {:99999}, {:{}}
)
"""Formats of a width of five digits or more, or of one that is a value."""
_TOO_LARGE = "it makes too large a value"
_NOT_ASCII_NOR_PLANE_15 = re.compile("[^\x00-\x7f\U000f0000-\U000ffffd]")


class LimitExceededError(Exception):
    """The template did more than one render may."""


class RaisedByTemplateError(Exception):
    """`raise_exception(message)` was called."""


class _Budget:
    """What is left for one render."""

    __slots__ = ("clock_ends", "seconds", "ticks", "weight")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.clock_ends = time.thread_time() + seconds  # of this thread: load does not count
        self.weight = MAX_TOTAL
        self.ticks = 0

    def spend(self, weight: int) -> None:
        self.weight -= weight
        if self.weight < 0:
            raise LimitExceededError("it handles too much text")
        self.ticks += 1
        if self.ticks % _TICKS_PER_CLOCK_CHECK == 0 and time.thread_time() > self.clock_ends:
            raise LimitExceededError(f"it takes more than {self.seconds:g} s")


class ChatTemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders limited templates. May be used by several threads."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            optimized=False,
            finalize=_finalize,
        )
        self._local = threading.local()
        builtin = {k: f for k, f in self.filters.items() if k not in _UNWANTED_FILTERS}
        builtin |= {"tojson": _tojson, "sum": _sum_of_numbers}
        self.filters = {name: self._limited(name, f) for name, f in builtin.items()}
        self.filters |= {"_each": self._each, "_weighed": self._weighed, "_concat": self._concat}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def compile_limited(self, source: str) -> Any:
        """A template from its source. Raises what Jinja's parser and compiler do."""
        tree = _Rewriter(self).visit(self.parse(source))
        code = self.compile(tree, "chat_template", "chat_template")
        return self.template_class.from_code(self, code, self.make_globals(None))

    @contextmanager
    def limits(self, seconds: float) -> Iterator[None]:
        """Everything that this thread renders inside is limited."""
        self._local.budget = _Budget(seconds)
        try:
            yield
        finally:
            del self._local.budget

    # ---- what the sandbox lets us intercept

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        operands = [_materialised(__self, value) for value in args]
        weight_of([*operands, *kwargs.values()])
        if isinstance(__obj, types.BuiltinMethodType):
            if __obj.__name__ == "replace" and len(operands) >= 2:
                _check_replace(__obj.__self__, *operands[:2])
            elif __obj.__name__ in _GROWING_METHODS:
                _check_growth(__obj.__self__, (*operands, *kwargs.values()))
        return __self._weighed(super().call(__context, __obj, *operands, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, _NUMBER) and isinstance(right, _NUMBER):
            _check_number(operator, left, right)
        elif operator == "%" and isinstance(left, _TEXT):
            _check_format(left, (right,))
        elif operator == "*":
            _check_growth(*((right, (left,)) if isinstance(left, int) else (left, (right,))))
        elif operator == "+":
            weight_of([left, right])
        return self._weighed(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        @functools.wraps(wrapped)
        def limited(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return limited

    # ---- what the rewritten tree and the filters call

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is counted. A leading context or environment argument is kept."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            operands = [_materialised(self, value) for value in args[first:]]
            if name == "format" and operands:
                _check_format(operands[0], (*operands[1:], *kwargs.values()))
            elif name == "replace" and len(operands) >= 3:
                _check_replace(*operands[:3])
            elif name in _GROWING_FILTERS and operands:
                _check_growth(operands[0], (*operands[1:], *kwargs.values()))
            return self._weighed(function(*args[:first], *operands, **kwargs))

        return limited

    def _each(self, values: Iterable[Any], weight: int) -> Iterator[Any]:
        """What a loop runs over. `weight` is that of the text in its body."""
        budget: _Budget = self._local.budget
        for value in values:
            budget.spend(_OBJECT + weight)
            yield value

    def _weighed(self, value: Any) -> Any:
        self._local.budget.spend(weight_of(value))
        return value

    def _concat(self, values: list[Any]) -> str:
        weight_of(values)
        text: str = self._weighed("".join(map(str, values)))
        return text


class _Rewriter(NodeTransformer):
    """Puts the environment's hooks where Jinja has none: loops, literals, `~`."""

    def __init__(self, environment: ChatTemplateEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        weight = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = self._filter(node.iter, "_each", [nodes.Const(weight)])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_List(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(node, "_weighed")

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node  # else: targets of a loop

    def _filter(self, node: Any, name: str, args: list[nodes.Expr] | None = None) -> nodes.Filter:
        wrapped = nodes.Filter(node, name, args or [], [], None, None, lineno=node.lineno)
        return wrapped.set_environment(self._environment)  # type: ignore[return-value]


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's text for training; here it is
    its body."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def weight_of(value: Any) -> int:
    """Characters and objects of a value, those that it shares with itself counted each time.

    Raises:
        LimitExceededError: more than MAX_VALUE.
    """
    if isinstance(value, _TEXT):
        weight = _OBJECT + len(value)
    else:
        weight, stack = 0, [value]
        while stack and weight <= MAX_VALUE:
            item = stack.pop()
            weight += _OBJECT
            if isinstance(item, _TEXT):
                weight += len(item)
            elif isinstance(item, Mapping):
                stack.extend(item.keys())
                stack.extend(item.values())
            elif isinstance(item, (list, tuple, set, frozenset)):
                stack.extend(item)
    if weight > MAX_VALUE:
        raise LimitExceededError(_TOO_LARGE)
    return weight


def _materialised(environment: ChatTemplateEnvironment, value: Any) -> Any:
    """An iterator or view (of `map`, `items()`, `range` …) as the list of what it gives: lists can
    be weighed."""
    if isinstance(value, (Iterator, MappingView, range)) and not isinstance(value, LoopContext):
        items: Any = value
        return list(environment._each(items, 0))
    return value


def _check_growth(value: Any, factors: Iterable[Any]) -> None:
    """Refuse an operation whose result may weigh weight(value) × Σ factors, if that is too much."""
    if weight_of(value) * sum(map(_factor, factors)) > MAX_VALUE:
        raise LimitExceededError(_TOO_LARGE)


def _factor(value: Any) -> int:
    """By how much an operand can multiply another one."""
    if isinstance(value, _NUMBER):
        return int(min(abs(value), MAX_VALUE + 1)) if value == value else 1
    if isinstance(value, _TEXT):
        return len(value)
    if isinstance(value, Mapping):  # of `translate`: any of its texts, any number of times
        return weight_of(value)
    if value is None or isinstance(value, (list, tuple, set, frozenset, Undefined)):
        return weight_of(value) // _OBJECT
    raise LimitExceededError(f"it uses {type(value).__name__} where only text and lists may be")


def _check_number(operator: str, left: float, right: float) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = abs(left).bit_length()
        bits = bits * abs(right) if operator == "**" else bits + abs(right).bit_length()
        if bits > MAX_INTEGER_BITS:
            raise LimitExceededError(f"{operator} would make too large a number")


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        if weight_of(text) + text.count(old) * len(new) > MAX_VALUE:
            raise LimitExceededError(_TOO_LARGE)
    else:
        _check_growth(text, (old, new))


def _check_format(template: Any, values: tuple[Any, ...]) -> None:
    text = template if isinstance(template, str) else str(template)
    if _WIDE.search(text):
        raise LimitExceededError("it formats to a width of five digits or more, or to a given one")
    num_fields = text.count("%") + text.count("{")
    if len(text) + num_fields * weight_of(values) > MAX_VALUE:
        raise LimitExceededError(_TOO_LARGE)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Each `{{ value }}` passes here. (That it takes the context keeps Jinja from folding
    constants.)"""
    environment: Any = context.environment
    return environment._weighed(value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers': no HTML escapes. `ensure_ascii` leaves plane 15 alone: the stand-ins of
    special_text.Marker are there."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if not ensure_ascii:
        return text
    return _NOT_ASCII_NOR_PLANE_15.sub(lambda match: json.dumps(match.group())[1:-1], text)


def _sum_of_numbers(values: Iterable[Any], attribute: str | None = None, start: Any = 0) -> Any:
    """Jinja's `sum`, for numbers."""
    if attribute is not None:
        values = [value[attribute] for value in values]
    if not isinstance(start, _NUMBER):
        raise TypeError("sum is for numbers")
    return sum(values, start)


def _raise_exception(message: object = "") -> None:
    raise RaisedByTemplateError(str(message))


def _strftime_now(form: str) -> str:
    if not isinstance(form, str) or len(form) > 100:
        raise LimitExceededError("strftime_now takes a format of at most 100 characters")
    return datetime.now().strftime(form)
