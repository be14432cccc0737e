"""Default sampling: of the model, of its operator, of Octavo."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.config.engine import EngineConfig
from octavo.config.generation import default_sampling

MODEL = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "max_new_tokens": 99}


@pytest.mark.parametrize(
    ("source", "override", "values"),
    [
        ("auto", None, {"temperature": 0.6, "top_k": 20, "max_tokens": 99}),
        ("auto", {"top_k": 5}, {"temperature": 0.6, "top_k": 5, "max_tokens": 99}),
        ("auto", {"max_new_tokens": 7}, {"temperature": 0.6, "top_k": 20, "max_tokens": 7}),
        ("octavo", None, {}),
        ("octavo", {"temperature": 0, "min_p": 0.1}, {"temperature": 0, "min_p": 0.1}),
    ],
)
def test_what_counts(source: str, override: dict[str, Any] | None, values: dict[str, Any]) -> None:
    config = EngineConfig.from_flat(
        generation_config=source, override_generation_config=override
    ).model
    assert default_sampling(config, MODEL) == values


def test_it_comes_over_the_wire_as_it_is() -> None:
    """top_k stays an integer."""
    config = EngineConfig.from_flat(override_generation_config={"top_k": 5, "temperature": 1})
    data = msgspec.msgpack.encode(config)
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(data, type=EngineConfig)) == data
