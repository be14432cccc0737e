"""Fakes with behaviour: a tokenizer over bytes, an executor that computes ids from its KV pages."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.config.engine import EngineConfig
from octavo.contracts.features import SchedulerHook
from octavo.contracts.kv_spec import (
    BLOCK_SIZE,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    MemoryPlan,
)
from octavo.contracts.messages import LogprobRows
from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import GrammarOutput, RunnerOutput, SchedulerOutput
from octavo.contracts.tensor import DType
from octavo.engine.core import EngineCore
from octavo.engine.core_client import InprocClient
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.tokenizer import RenderedChat
from octavo.errors import EngineDeadError
from octavo.executor.base import Executor, ExecutorInfo

EOS, IM_START, IM_END = 256, 257, 258
HIDDEN_SIZE = 8
SPECIALS = {"<eos>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}


class ByteTokenizer:
    """Ids 0…255 are bytes, then the special tokens, then `pieces` (each some bytes)."""

    has_chat_template = False

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self._bytes = [bytes([i]) for i in range(256)]
        self._bytes += [s.encode() for s in SPECIALS]
        self._bytes += pieces
        self.vocab_size = len(self._bytes)
        self.bos_token_id: int | None = None
        self.eos_token_ids = [EOS]
        self.all_special_ids = frozenset(SPECIALS.values())
        self.special_spellings = dict(SPECIALS)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        for spelling, token_id in SPECIALS.items():
            if spelling in text:
                head, tail = text.split(spelling, 1)
                return [*self.encode(head), token_id, *self.encode(tail)]
        return self.encode_plain(text)

    def encode_plain(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = (i for i in ids if not (skip_special_tokens and i in self.all_special_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> RenderedChat:
        ids: list[int] = []
        for i, message in enumerate(messages):
            ids += [IM_START, *self.encode_plain(f"{message['role']}\n{message['content']}")]
            if not (continue_final_message and i == len(messages) - 1):
                ids.append(IM_END)
        if add_generation_prompt:
            ids += [IM_START, *self.encode_plain("assistant\n")]
        return RenderedChat(self.decode(ids, skip_special_tokens=False), ids)


@dataclass
class _Row:
    tokens: list[int]
    num_prompt_tokens: int
    block_ids: list[int]
    num_computed_tokens: int
    params: SamplingParams
    sample_index: int
    stop_ids: list[int]


class FakeExecutor(Executor):
    """Does what a worker does, with token ids in place of keys and values.

    Every scheduled token is written to its slot. A sampled id is a function of the ids *read back
    through the block table*, so a wrong block, a missed copy or a page reused too soon changes the
    answer (and fails an assertion). Steps run in a thread, in order, as they do on a device.

    Args:
        script: prompt ids → the ids to generate, then EOS. Other prompts get pseudo-random ids.
        fail: step id → error of that step.
        gate: where given, a step waits for it before it runs.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_model_len: int = 256,
        vocab_size: int = 259,
        config: EngineConfig | None = None,
        script: Mapping[tuple[int, ...], Sequence[int]] | None = None,
        fail: Mapping[int, Exception] | None = None,
        gate: threading.Semaphore | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.num_blocks = num_blocks
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.script = dict(script or {})
        self.fail = dict(fail or {})
        self.gate = gate
        self.healthy = True
        self.steps: list[SchedulerOutput] = []
        self.num_shutdowns = 0
        self.max_in_flight = 0
        self._in_flight = 0
        self._rows: dict[str, _Row] = {}
        self._pages: dict[int, dict[int, int]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1)

    def start(self) -> ExecutorInfo:
        spec = FullAttentionSpec(num_kv_heads=1, head_size=1, head_size_v=1, dtype=DType.F32)
        kv = KVCacheConfig(
            num_blocks=self.num_blocks, groups=(KVCacheGroup(layer_names=("layer",), spec=spec),)
        )
        config = self.config.resolve(model_max_len=self.max_model_len)
        plan = MemoryPlan(
            available=1 << 30,
            weights=0,
            activations=0,
            kv_cache=kv.total_bytes,
            num_blocks=kv.num_blocks,
            max_model_len=self.max_model_len,
            max_num_seqs=config.scheduler.max_num_seqs,
        )
        return ExecutorInfo(
            config=config,
            kv_cache_config=kv,
            memory_plan=plan,
            vocab_size=self.vocab_size,
            hidden_size=HIDDEN_SIZE,
        )

    def execute_model(self, step: SchedulerOutput) -> None:
        self.steps.append(step)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)

    def sample_tokens(self, grammar: GrammarOutput | None) -> Future[RunnerOutput]:
        return self._thread.submit(self._run, self.steps[-1])

    def check_health(self) -> None:
        if not self.healthy:
            raise EngineDeadError("the fake worker is gone")

    def shutdown(self) -> None:
        self.num_shutdowns += 1
        self._thread.shutdown(wait=True, cancel_futures=True)

    # ---------------------------------------------------------------- the worker

    def _run(self, step: SchedulerOutput) -> RunnerOutput:
        if self.gate is not None:
            assert self.gate.acquire(timeout=10)
        try:
            self._apply(step)
            if step.step_id in self.fail:
                raise self.fail[step.step_id]
            output = RunnerOutput(step_id=step.step_id)
            for request_id, n in step.num_scheduled_tokens.items():
                row = self._rows[request_id]
                context = self._forward(row, n)
                output.request_ids.append(request_id)
                if request_id not in step.samples:
                    output.sampled_token_ids.append([])
                    continue
                assert context == row.tokens, f"{request_id}: KV pages hold other tokens"
                token_id, rows = self._sample(row)
                row.tokens.append(token_id)
                output.sampled_token_ids.append([token_id])
                if rows is not None:
                    output.logprobs[request_id] = rows
            return output
        finally:
            self._in_flight -= 1

    def _apply(self, step: SchedulerOutput) -> None:
        for request_id in (*step.finished_request_ids, *step.preempted_request_ids):
            self._rows.pop(request_id, None)
        for new in step.new_requests:
            assert new.request_id not in self._rows
            assert new.sampling_params is not None
            self._rows[new.request_id] = _Row(
                list(new.token_ids),
                new.num_prompt_tokens,
                list(new.block_ids[0]),
                new.num_computed_tokens,
                new.sampling_params,
                new.sample_index,
                list(new.stop_ids),
            )
        cached = step.cached_requests
        for request_id, blocks in cached.new_block_ids.items():
            self._rows[request_id].block_ids += blocks[0]
        for request_id, computed in zip(cached.request_ids, cached.num_computed_tokens):
            assert self._rows[request_id].num_computed_tokens == computed
        for copy in step.block_copies:
            self._pages[copy.dst] = dict(self._pages.get(copy.src, {}))

    def _forward(self, row: _Row, n: int) -> list[int]:
        """Store n tokens; returns all that the block table now leads to."""
        end = row.num_computed_tokens + n
        assert end <= len(row.tokens), "scheduled past the known tokens"
        for p in range(row.num_computed_tokens, end):
            page = self._pages.setdefault(row.block_ids[p // BLOCK_SIZE], {})
            page[p % BLOCK_SIZE] = row.tokens[p]
        row.num_computed_tokens = end
        return [self._pages[row.block_ids[p // BLOCK_SIZE]][p % BLOCK_SIZE] for p in range(end)]

    def _sample(self, row: _Row) -> tuple[int, LogprobRows | None]:
        params, position = row.params, len(row.tokens)
        num_output = position - row.num_prompt_tokens
        digest = hashlib.blake2b(repr(row.tokens).encode(), digest_size=8).digest()
        logits = np.random.default_rng(int.from_bytes(digest, "little")).normal(
            size=self.vocab_size, scale=3.0
        )
        raw = logits - np.log(np.exp(logits).sum())
        if num_output < params.min_tokens:
            logits[row.stop_ids] = -np.inf
        script = self.script.get(tuple(row.tokens[: row.num_prompt_tokens]))
        if script is not None:
            token_id = script[num_output] if num_output < len(script) else EOS
        elif params.is_greedy:
            token_id = int(np.argmax(logits))
        else:
            assert params.seed is not None
            key = (params.seed % 2**64, row.sample_index, position)
            gumbel = np.random.default_rng(key).gumbel(size=self.vocab_size)
            token_id = int(np.argmax(logits / params.temperature + gumbel))
        return token_id, self._logprobs(raw, token_id, params.logprobs)

    def _logprobs(self, raw: np.ndarray, token_id: int, k: int | None) -> LogprobRows | None:
        if k is None:
            return None
        top = np.argsort(-raw, kind="stable")[: self.vocab_size if k == -1 else k]
        ids = np.concatenate([[token_id], top]).astype(np.int32)[None]
        rank = 1 + int((raw > raw[token_id]).sum())
        return LogprobRows(
            token_ids=ids,
            logprobs=raw[ids].astype(np.float32),
            ranks=np.array([rank], np.int32),
        )


def fake_engine(
    *,
    tokenizer: ByteTokenizer | None = None,
    generation_config: Mapping[str, Any] | None = None,
    executor: Mapping[str, Any] | None = None,
    hooks: Sequence[SchedulerHook] = (),
    **options: Any,
) -> LLMEngine:
    """An engine around a `FakeExecutor`; `options` as for LLM, `executor` as for it."""
    tokenizer = tokenizer or ByteTokenizer()
    config = EngineConfig.from_flat(**options)
    fake = FakeExecutor(config=config, **{"vocab_size": tokenizer.vocab_size, **(executor or {})})
    return LLMEngine(InprocClient(EngineCore(fake, hooks)), tokenizer, generation_config or {})
