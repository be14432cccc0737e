from __future__ import annotations

import math

import msgspec
import pytest

from octavo.contracts.messages import Logprob
from octavo.entrypoints.openai.logprobs import (
    chat_logprobs,
    completion_logprobs,
    finite,
    prompt_logprobs,
)
from octavo.entrypoints.openai.tokens import TokenTable
from tests.engine.fakes import ByteTokenizer

TABLE = TokenTable(ByteTokenizer())  # type: ignore[arg-type]
# The sampled token is only fourth: it stands first, the alternatives follow by rank.
POSITION = {
    100: Logprob(-3.0, 4, "d"),
    97: Logprob(-0.5, 1, "a"),
    98: Logprob(-1.5, 2, "b"),
    99: Logprob(-math.inf, 3, "c"),
}


@pytest.mark.parametrize(
    ("value", "json"), [(-1.0, -1.0), (-math.inf, -9999.0), (math.nan, -9999.0), (-1e9, -9999.0)]
)
def test_finite(value: float, json: float) -> None:
    assert finite(value) == json


def test_chat() -> None:
    for k, names in ((0, []), (2, ["a", "b"]), (3, ["a", "b", "c"]), (-1, ["a", "b", "c", "d"])):
        [entry] = chat_logprobs([100], [POSITION], TABLE, num_top=k, as_ids=False).content
        assert (entry.token, entry.logprob) == ("d", -3.0)
        assert [t.token for t in entry.top_logprobs] == names
    assert b"-9999.0" in msgspec.json.encode(entry)


def test_completion() -> None:
    offsets = TABLE.offsets(skip_special_tokens=True)
    result = completion_logprobs(
        [104, 100], [None, POSITION], TABLE, offsets, num_top=2, as_ids=False
    )
    assert result.tokens == ["h", "d"]
    assert result.token_logprobs == [None, -3.0]
    assert result.top_logprobs == [None, {"a": -0.5, "b": -1.5, "d": -3.0}]
    assert result.text_offset == [0, 1]
    result = completion_logprobs([100], [POSITION], TABLE, offsets, num_top=1, as_ids=True)
    assert result.tokens == ["token_id:100"]
    assert result.top_logprobs == [{"token_id:97": -0.5, "token_id:100": -3.0}]


def test_prompt() -> None:
    [first, second] = prompt_logprobs([None, POSITION], -1)
    assert first is None
    assert second is not None
    assert msgspec.to_builtins(second["99"]) == {
        "logprob": -9999.0,
        "rank": 3,
        "decoded_token": "c",
    }
    assert len(second) == len(POSITION)
    [few] = prompt_logprobs([POSITION], 1)
    assert few is not None
    assert list(few) == [str(next(iter(POSITION))), "97"]
