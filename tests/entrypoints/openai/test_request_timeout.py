"""`--request-timeout`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.contracts.messages import RequestOutput
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.input_processor import CheckedRequest
from tests.entrypoints.openai.fake_engine import FakeEngine
from tests.entrypoints.openai.harness import serving


class Watched(FakeEngine):
    """Notes the parameters; its beam search never ends."""

    seen: SamplingParams | PoolingParams

    def run(self, request: CheckedRequest, *args: Any, **options: Any) -> Any:
        self.seen = request.params
        return super().run(request, *args, **options)

    async def search(self, *args: Any, **options: Any) -> RequestOutput:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("limit", "asked", "expected"),
    [
        *((0.0, None, None), (0.0, 700, 700), (2.5, None, 2500), (2.5, 700, 700)),
        *((2.5, 9000, 2500), (0.0001, None, 1)),
    ],
)
async def test_it_is_the_most_that_a_request_may_take(
    limit: float, asked: int | None, expected: int | None
) -> None:
    engine = Watched()
    async with serving(engine, request_timeout=limit) as s:
        fields = {} if asked is None else {"max_time_ms": asked}
        for stream in (False, True):
            assert (await s.completion("SAY:x", stream=stream, **fields)).status == 200
            assert engine.seen.max_time_ms == expected


async def test_a_beam_search() -> None:
    async with serving(Watched(), request_timeout=0.05) as s:
        reply = await s.completion("SAY:x", use_beam_search=True, n=2)
        assert (reply.status, reply.error["code"]) == (503, "request_timeout")
        assert "longer than 0.05 s" in reply.error["message"]
