from __future__ import annotations

from typing import Any

import pytest

from octavo.config.model import ConfigReader
from octavo.errors import UnsupportedModelError
from octavo.kernels.ops import HeadShape
from octavo.models.reading import (
    FULL,
    SLIDING,
    read_heads,
    read_layer_types,
    read_size,
    read_windows,
)


def reader(**values: Any) -> ConfigReader:
    return ConfigReader({"num_hidden_layers": 3} | values, "config.json")


@pytest.mark.parametrize("size", [1, 7, 2**31 - 1])
def test_sizes(size: int) -> None:
    assert read_size(reader(size=size), "size") == size
    assert read_size(reader(), "size", size) == size


@pytest.mark.parametrize("size", [0, 2**31, 10**30])
def test_sizes_out_of_range(size: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"size={size} must be in 1…2147483647"):
        read_size(reader(size=size), "size")


def test_heads() -> None:
    shared = reader(num_attention_heads=4, hidden_size=32)
    assert read_heads(shared) == HeadShape(num_heads=4, num_kv_heads=4, head_dim=8)
    own = reader(num_attention_heads=4, num_key_value_heads=2, head_dim=24, hidden_size=30)
    assert read_heads(own) == HeadShape(num_heads=4, num_kv_heads=2, head_dim=24)


def test_layer_types_come_first_then_the_familys_rule() -> None:
    stated = reader(layer_types=[FULL, SLIDING, SLIDING])
    assert read_layer_types(stated, lambda i: i == 0) == (FULL, SLIDING, SLIDING)
    assert read_layer_types(reader(), lambda i: i == 0) == (SLIDING, FULL, FULL)


def test_a_window_for_every_layer() -> None:
    assert read_layer_types(reader(sliding_window=8)) == (SLIDING,) * 3
    assert read_layer_types(reader(sliding_window=None)) == (FULL,) * 3
    assert read_layer_types(reader(layer_types=[SLIDING] * 3)) == (FULL,) * 3


def test_windows() -> None:
    assert read_windows(reader(sliding_window=8), (SLIDING, FULL)) == (8, None)
    assert read_windows(reader(sliding_window="unread"), (FULL, FULL)) == (None, None)
    for window in (0, None, "8"):
        with pytest.raises(UnsupportedModelError, match="sliding_window"):
            read_windows(reader(sliding_window=window), (SLIDING, FULL))
