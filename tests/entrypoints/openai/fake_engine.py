"""A fake `AsyncLLM`: real input and output processing and metrics, over a toy core.

What the "model" says is scripted by its prompt: after the last `SAY:` come the bytes to generate,
then end-of-sequence. `#` in a script becomes the completion's index. Other prompts get a counting
text for ever. `FAIL:` in a prompt makes the request fail after two tokens, or at once, and by its
own fault, where it has a grammar.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from octavo.config.engine import EngineConfig
from octavo.contracts.engine_view import BlockMap, EngineView
from octavo.contracts.kv_spec import MemoryPlan
from octavo.contracts.messages import (
    EngineOutput,
    EngineOutputs,
    FinishReason,
    RequestOutput,
    SchedulerStats,
    ServiceClass,
)
from octavo.contracts.pause_mode import PauseMode
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.beam_search import CheckedBeamSearch, check_requests
from octavo.engine.input_processor import CheckedRequest, InputProcessor
from octavo.engine.metrics import CacheInfo, EngineMetrics
from octavo.engine.output_processor import OutputProcessor, ParserOf
from octavo.engine.wire import CoreInfo
from octavo.errors import EngineDeadError, EngineUnresponsiveError
from tests.engine.fakes import HIDDEN_SIZE
from tests.entrypoints.openai.fake_model import ScriptedSequence, next_output
from tests.entrypoints.openai.fake_tokenizer import FakeTokenizer

BLOCK_SIZE = 16


class FakeEngine:
    """See the module.

    Args:
        step_seconds: pause between steps.
        max_num_seqs: most sequences that run at once; the others wait.
        prefill_chunk: tokens of a prompt per step; None: all.
        default_params: as if from a generation config.

    Attributes:
        gate: while cleared, no step runs.
        looks: how often somebody asked what is going on.
    """

    def __init__(
        self,
        *,
        step_seconds: float = 0.0,
        max_num_seqs: int = 512,
        max_model_len: int = 4096,
        num_blocks: int = 100_000,
        prefill_chunk: int | None = None,
        tokenizer: FakeTokenizer | None = None,
        default_params: SamplingParams | None = None,
        **options: Any,
    ) -> None:
        config = EngineConfig.from_flat(max_num_seqs=max_num_seqs, **options)
        self.config = config.resolve(model_max_len=max_model_len)
        self.tokenizer = tokenizer or FakeTokenizer()
        plan = MemoryPlan(
            available=1 << 30,
            weights=0,
            activations=0,
            kv_cache=0,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
        )
        self.info = CoreInfo(
            config=self.config,
            memory_plan=plan,
            vocab_size=self.tokenizer.vocab_size,
            hidden_size=HIDDEN_SIZE,
            kv_cache_dtype="float32",
        )
        cache = CacheInfo(
            block_size=BLOCK_SIZE,
            num_blocks=num_blocks,
            dtype="float32",
            enable_prefix_caching=True,
        )
        self.metrics = EngineMetrics(max_model_len=max_model_len, cache=cache)
        self.gate = asyncio.Event()
        self.gate.set()
        self.step_seconds = step_seconds
        self._prefill_chunk = prefill_chunk
        self.rendered: list[Any] = []
        self.shutdowns = 0
        self.looks = 0
        self._default_params = default_params
        self._input = InputProcessor(
            self.config.model,
            self.tokenizer,  # type: ignore[arg-type]
            vocab_size=self.tokenizer.vocab_size,
            hidden_size=HIDDEN_SIZE,
            generation_config={},
        )
        self._output = OutputProcessor(self.tokenizer)  # type: ignore[arg-type]
        self._running: dict[str, ScriptedSequence] = {}
        self._waiting: dict[str, ScriptedSequence] = {}
        self._seen_prompts: set[tuple[int, ...]] = set()
        self._queues: dict[str, asyncio.Queue[RequestOutput | Exception]] = {}
        self._totals = {"prompt_tokens": 0, "generation_tokens": 0, "num_steps": 0}
        self._dead: str | None = None
        self._paused: PauseMode | None = None
        self.is_unresponsive = False
        self._work = asyncio.Event()
        self._core = asyncio.ensure_future(self._run())

    # ---------------------------------------------------------------- AsyncLLM

    async def check(
        self, prompts: Sequence[Any], params: Sequence[Any], **options: Any
    ) -> list[CheckedRequest | CheckedBeamSearch]:
        await asyncio.sleep(0)
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        return check_requests(self._input, prompts, params, **options)

    async def check_grammar(self, request: CheckedRequest) -> None:
        await asyncio.sleep(0)

    async def run(
        self,
        request: CheckedRequest,
        request_id: str,
        *,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
        parser_of: ParserOf | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        processed = self._input.begin(request_id, request, service_class=service_class)
        self._output.add_request(processed, parser_of)
        queue = self._queues[request_id] = asyncio.Queue()
        self.metrics.add_requests(processed.engine_requests)
        text = self.tokenizer.decode(request.prompt_token_ids)
        for r in processed.engine_requests:
            self._waiting[r.request_id] = ScriptedSequence(
                r, self.tokenizer.script(text, r.sample_index), "FAIL:" in text
            )
        self._work.set()
        try:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item.finished:
                    return
        finally:
            del self._queues[request_id]
            for engine_id in self._output.abort_requests([request_id]).to_abort:
                self._drop(engine_id, "engine_dead" if self._dead else "disconnect")

    async def check_num_chars(self, num_chars: int, param: str) -> None:
        self._input.check_num_chars(num_chars, param=param)

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        await asyncio.sleep(0)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    async def render_chat(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        await asyncio.sleep(0)
        self.rendered.append((messages, options))
        return self.tokenizer.render_chat(messages, **options).token_ids

    def default_sampling_params(self) -> SamplingParams:
        return self._default_params or SamplingParams()

    @property
    def num_unfinished(self) -> int:
        return self._output.num_unfinished

    def stats(self) -> SchedulerStats:
        return self.metrics.stats

    async def check_health(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self.is_unresponsive:
            raise EngineUnresponsiveError("the engine core has not been heard of for 6 s")

    @property
    def unfinished_request_ids(self) -> list[str]:
        return self._output.unfinished_ids

    async def abort(self, request_id: str) -> None:
        aborted = self._output.abort_requests([request_id])
        for output in aborted.request_outputs:
            self._queues[output.request_id].put_nowait(output)
        for engine_id in aborted.to_abort:
            self._drop(engine_id, "api")

    async def reset_prefix_cache(self) -> bool:
        if self._running:
            return False
        self._seen_prompts.clear()
        return True

    async def pause_generation(
        self, *, mode: PauseMode = "abort", clear_cache: bool = True
    ) -> None:
        self._paused = mode
        if mode == "abort":
            self.abort_all()
        while mode == "wait" and self._running:
            await asyncio.sleep(0.001)
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        self._paused = None

    async def is_paused(self) -> bool:
        return self._paused is not None

    async def observe(self, after_step: int = -1, block_id: int | None = None) -> EngineView:
        """The counters, and a pool of which nobody holds anything."""
        await self.check_health()
        self.looks += 1
        num_blocks = self.info.memory_plan.num_blocks
        blocks = BlockMap(
            num_blocks=num_blocks, flags=bytes(num_blocks), owners=b"\xff" * (4 * num_blocks)
        )
        return EngineView(
            now=time.monotonic(),
            stats=self.stats(),
            steps=[],
            requests=[],
            num_hidden_requests=0,
            blocks=blocks,
        )

    async def shutdown(self, drain_seconds: float = 0.0) -> None:
        self.shutdowns += 1
        deadline = time.monotonic() + drain_seconds
        while self._queues and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.die("the engine was shut down")
        self._core.cancel()
        await asyncio.gather(self._core, return_exceptions=True)

    # ---------------------------------------------------------------- for tests

    def die(self, cause: str = "the engine core was killed") -> None:
        """As if the core process had been killed."""
        if self._dead is None:
            self._dead = cause
            for queue in self._queues.values():
                queue.put_nowait(EngineDeadError(cause))

    def abort_all(self) -> None:
        """As if somebody had called `abort` for every request."""
        aborted = self._output.abort_requests(list(self._queues))
        for output in aborted.request_outputs:
            self._queues[output.request_id].put_nowait(output)
        for engine_id in aborted.to_abort:
            self._drop(engine_id, "api")

    @property
    def is_idle(self) -> bool:
        """Does nothing and holds nothing?"""
        return not (
            self._running
            or self._waiting
            or self._queues
            or self._output.num_unfinished
            or self.metrics.num_tracked
        )

    # ---------------------------------------------------------------- the core

    async def _run(self) -> None:
        while self._dead is None:
            await self._work.wait()
            await self.gate.wait()
            self._step()
            if not self._running and not self._waiting:
                self._work.clear()
            await asyncio.sleep(self.step_seconds)

    def _step(self) -> None:
        if self._paused == "keep":
            return
        outputs: list[EngineOutput] = []
        most = self.config.scheduler.max_num_seqs if self._paused is None else 0
        while self._waiting and len(self._running) < most:
            engine_id, sequence = next(iter(self._waiting.items()))
            del self._waiting[engine_id]
            self._running[engine_id] = sequence
            prompt = tuple(sequence.request.prompt_token_ids)
            sequence.num_cached = (
                BLOCK_SIZE * ((len(prompt) - 1) // BLOCK_SIZE)
                if prompt in self._seen_prompts
                else 0
            )
            if len(self._seen_prompts) < 64:
                self._seen_prompts.add(prompt)
            self._totals["prompt_tokens"] += len(prompt)
        for position, sequence in enumerate(self._waiting.values()):
            outputs += sequence.progress(position)
        for engine_id, sequence in list(self._running.items()):
            num_prompt = len(sequence.request.prompt_token_ids)
            sequence.num_computed += self._prefill_chunk or num_prompt
            if sequence.num_computed < num_prompt:
                outputs += sequence.progress(None)
                continue
            output = next_output(sequence)
            if sequence.num_cached is not None:
                output.num_cached_tokens, sequence.num_cached = sequence.num_cached, None
                output.queue_time = time.monotonic() - sequence.request.arrival_time
            self._totals["generation_tokens"] += len(output.new_token_ids)
            outputs.append(output)
            if output.finish_reason is not None:
                del self._running[engine_id]
        self._totals["num_steps"] += 1
        batch = EngineOutputs(outputs=outputs, stats=self._stats(len(outputs)))
        self.metrics.record_outputs(batch)
        processed = self._output.process_outputs(outputs)
        for request_output in processed.request_outputs:
            if (queue := self._queues.get(request_output.request_id)) is not None:
                queue.put_nowait(request_output)
        for engine_id in processed.to_abort:
            self._running.pop(engine_id, None)
            self.metrics.finish_request(engine_id, FinishReason.STOP)

    def _drop(self, engine_id: str, reason: str) -> None:
        self._running.pop(engine_id, None)
        self._waiting.pop(engine_id, None)
        self.metrics.finish_request(engine_id, FinishReason.ABORT, abort_reason=reason)
        self.metrics.record_outputs(EngineOutputs(stats=self._stats(0)))

    def _stats(self, step_tokens: int) -> SchedulerStats:
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_blocks=self.info.memory_plan.num_blocks,
            num_used_blocks=sum(
                math.ceil(s.num_tokens / BLOCK_SIZE) for s in self._running.values()
            ),
            step_tokens=step_tokens,
            **self._totals,
        )
