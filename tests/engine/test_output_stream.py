"""Outputs on their way to a reader, slow or fast."""

from __future__ import annotations

import asyncio

import pytest

from octavo.contracts.messages import CompletionOutput, PromptProgress, RequestOutput
from octavo.contracts.sampling_params import RequestOutputKind
from octavo.engine.output_stream import OutputStream
from octavo.errors import EngineDeadError


def output(index: int, text: str, ids: list[int], reason: str | None = None) -> RequestOutput:
    completion = CompletionOutput(index=index, text=text, token_ids=ids, finish_reason=reason)
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1],
        outputs=[completion],
        finished=reason is not None,
    )


def test_a_slow_reader_gets_joined_deltas() -> None:
    async def main() -> None:
        stream = OutputStream(RequestOutputKind.DELTA)
        stream.put(output(1, "x", [7]))
        stream.put(output(0, "a", [1]))
        stream.put(output(0, "b", [2, 3]))
        stream.put(output(1, "", [], "stop"))
        stream.fail(EngineDeadError("gone"))
        got = await stream.get()
        assert got.finished
        assert [(c.index, c.text, c.token_ids, c.finish_reason) for c in got.outputs] == [
            (0, "ab", [1, 2, 3], None),
            (1, "x", [7], "stop"),
        ]
        with pytest.raises(EngineDeadError):
            await stream.get()

    asyncio.run(main())


def test_a_slow_reader_hears_of_progress_only_where_there_is_nothing_else() -> None:
    async def main() -> None:
        stream = OutputStream(RequestOutputKind.DELTA)
        for num_computed in (16, 32):
            progress = PromptProgress(None, num_computed)
            stream.put(RequestOutput("r", None, [1], progress=progress))
        assert (await stream.get()).progress == PromptProgress(None, 32)
        stream.put(RequestOutput("r", None, [1], progress=PromptProgress(None, 48)))
        stream.put(output(0, "a", [1]))
        got = await stream.get()
        assert (got.progress, got.outputs[0].text) == (None, "a")

    asyncio.run(main())


def test_a_slow_reader_gets_the_newest_of_cumulative_outputs() -> None:
    async def main() -> None:
        stream = OutputStream(RequestOutputKind.CUMULATIVE)
        stream.put(output(0, "a", [1]))
        stream.put(output(0, "ab", [1, 2]))
        assert (await stream.get()).outputs[0].text == "ab"

    asyncio.run(main())


def test_a_waiting_reader_is_woken() -> None:
    async def main() -> None:
        stream = OutputStream(RequestOutputKind.DELTA)
        reader = asyncio.ensure_future(stream.get())
        await asyncio.sleep(0)
        stream.put(output(0, "a", [1]))
        assert (await reader).outputs[0].text == "a"
        reader = asyncio.ensure_future(stream.get())
        await asyncio.sleep(0)
        stream.fail(EngineDeadError("gone"))
        with pytest.raises(EngineDeadError, match="gone"):
            await reader

    asyncio.run(main())
