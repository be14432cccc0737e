"""Plain numbers out of what callers give, and the checks of them.

Ids and biases may be as many as the vocabulary, and the core checks them between two steps: what is
plain already, as all is that comes over the wire, is looked at by built-ins alone.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Collection, Mapping
from typing import Any

from octavo.errors import RequestError, shown

MAX_LOGIT_BIAS = 100.0
_MAX_TOKEN_ID = 2**31 - 1
_ID = re.compile(r"0|[1-9][0-9]{0,9}")
"""A token id as JSON writes it: a key "05" or "+5" is a slip of who wrote it, and may be another's
"5"."""


def plain_int(value: Any) -> Any:
    """numpy's and other integers as int; anything else as it is, for the check to refuse."""
    exact = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return int(value) if exact else value


def plain_float(value: Any) -> Any:
    """Any real number as float; anything else, or a number beyond floats, as it is."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return value


def distinct_ids(ids: Collection[Any]) -> list[Any]:
    """Plain ints, each once; what is none as it is, for the check to refuse."""
    plain = ids if set(map(type, ids)) == {int} else [plain_int(i) for i in ids]
    return list(dict.fromkeys(plain) if set(map(type, plain)) == {int} else plain)


def check_token_ids(name: str, ids: Collection[Any]) -> None:
    """Each must be an int that can be a token id. Raises RequestError."""
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= _MAX_TOKEN_ID):
        return
    wrong = next(i for i in ids if type(i) is not int or not 0 <= i <= _MAX_TOKEN_ID)
    raise RequestError(
        f"{name} holds {shown(wrong)}, which is no token id: an integer from 0 on", param=name
    )


def are_numbers(values: Collection[Any]) -> bool:
    """Whether all are floats within ±MAX_LOGIT_BIAS, and none is NaN."""
    return set(map(type, values)) <= {float} and (
        min(values, default=0.0) >= -MAX_LOGIT_BIAS
        and max(values, default=0.0) <= MAX_LOGIT_BIAS
        and not math.isnan(sum(values))
    )


def plain_bias(bias: Mapping[Any, Any]) -> dict[Any, Any]:
    """Keys as int, canonical decimals included; numbers as float, cut to ±MAX_LOGIT_BIAS."""
    if set(map(type, bias)) == {int} and are_numbers(bias.values()):
        return dict(bias)
    plain = {_plain_key(key): plain_float(value) for key, value in bias.items()}
    if len(plain) < len(bias):
        raise RequestError("logit_bias names a token id twice", param="logit_bias")
    return {
        key: max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, value))
        if type(value) is float and value == value
        else value
        for key, value in plain.items()
    }


def _plain_key(key: Any) -> Any:
    return int(key) if isinstance(key, str) and _ID.fullmatch(key) else plain_int(key)


def check_int(name: str, value: object, low: int, high: int, note: str = "") -> None:
    """It must be an int in low…high. Raises RequestError."""
    if type(value) is not int:
        raise RequestError(f"{name}={shown(value)} must be an integer", param=name)
    if not low <= value <= high:
        tail = f" ({note})" if note else ""
        raise RequestError(f"{name}={shown(value)} must be in {low}…{high}{tail}", param=name)


def check_float(
    name: str, value: object, low: float, high: float, *, low_open: bool = False
) -> None:
    """It must be a float in [low, high], or (low, high] if `low_open`. Raises RequestError."""
    if type(value) is not float:
        raise RequestError(f"{name}={shown(value)} must be a number", param=name)
    inside = (value > low if low_open else value >= low) and value <= high  # False for NaN
    if not inside:
        bracket = "(" if low_open else "["
        raise RequestError(f"{name}={value} must be in {bracket}{low:g}, {high:g}]", param=name)
