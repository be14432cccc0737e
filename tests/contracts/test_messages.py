"""Messages: defaults, and what users read of them."""

from __future__ import annotations

import pytest

from octavo.contracts.messages import (
    CompletionOutput,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestOutput,
    SchedulerStats,
)


def test_finish_reasons_read_as_vllms() -> None:
    assert [str(r) for r in FinishReason] == [
        *("stop", "length", "abort", "error"),
        *("repetition", "timeout"),
    ]


def test_defaults_are_not_shared() -> None:
    a, b = (EngineRequest(request_id=i, prompt_token_ids=[1]) for i in "ab")
    a.eos_token_ids.append(2)
    a.extras["x"] = 1
    assert (b.eos_token_ids, b.extras) == ([], {})
    c, d = (EngineOutput(request_id=i) for i in "cd")
    c.new_token_ids.append(1)
    assert d.new_token_ids == []
    e, f = (RequestOutput(i, None, []) for i in "ef")
    e.outputs.append(CompletionOutput(0, "", []))
    assert f.outputs == []


@pytest.mark.parametrize(
    ("used", "total", "share"), [(0, 0, 0.0), (0, 8, 0.0), (2, 8, 0.25), (8, 8, 1.0)]
)
def test_kv_cache_usage(used: int, total: int, share: float) -> None:
    assert SchedulerStats(num_used_blocks=used, num_blocks=total).kv_cache_usage == share


def test_a_completion_is_finished_once_it_has_a_reason() -> None:
    assert not CompletionOutput(0, "", []).finished
    assert CompletionOutput(0, "", [], finish_reason="length").finished
