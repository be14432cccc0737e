from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.entrypoints.openai.config import ServerConfig
from octavo.errors import ConfigError


def test_every_field_is_documented() -> None:
    fields: Any = ServerConfig.__dataclass_fields__
    assert all(f.metadata["help"] for f in fields.values())


@pytest.mark.parametrize(
    "field",
    [
        {"port": -1},
        {"port": 65536},
        {"max_num_queued_reqs": -1},
        {"max_num_queued_tokens": -1},
        {"max_request_bytes": 0},
        {"max_logprobs": -2},
        {"shutdown_timeout": -1.0},
        {"body_timeout": math.nan},
        {"stall_timeout": -0.1},
        {"resume_timeout": -1.0},
        {"resume_timeout": math.inf},
        {"api_key": ["a", ""]},
        {"served_model_name": [""]},
        {"log_level": "loud"},
    ],
    ids=str,
)
def test_values_out_of_range(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        ServerConfig(**field)


def test_lists_may_be_empty() -> None:
    assert ServerConfig(api_key=[], served_model_name=[]).api_key == []
