"""LLMEngine: the engine as a front end drives it, one step at a time, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Any

from octavo.config.engine import EngineConfig
from octavo.contracts.features import SchedulerHook
from octavo.contracts.messages import RequestOutput, SchedulerStats
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.engine.core_client import CoreClient, InprocClient
from octavo.engine.end_tokens import vocabulary_of
from octavo.engine.input_processor import InputProcessor, ProcessedRequest, PromptType
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.tokenizer import Tokenizer, tokenizer_of
from octavo.errors import RequestError, shown
from octavo.executor.registry import executor_of
from octavo.models.files import resolve_model

OFFLINE_BATCHED_TOKENS = 2048
"""Token budget of a step, unless one is given: nobody waits for the first tokens here, and requests
that begin together end together, in fewer steps."""


class LLMEngine:
    """Requests in, outputs out, `step` by `step`. Not thread-safe: one thread drives it.

    Every request that `add_request` took ends with exactly one output whose `finished` is true,
    an aborted one included.

    Args:
        client: reaches the engine core.
        tokenizer: the model's.
        generation_config: the model's, {} where there is none.

    Attributes:
        info: the loaded model, its memory plan and KV cache.
        config: the configuration, resolved.
    """

    def __init__(
        self, client: CoreClient, tokenizer: Tokenizer, generation_config: Mapping[str, Any]
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.info = client.info
        self.config = client.info.config
        self.input_processor = InputProcessor(
            self.config.model,
            tokenizer,
            vocab_size=self.info.vocab_size,
            hidden_size=self.info.hidden_size,
            generation_config=generation_config,
        )
        self._output_processor = OutputProcessor(tokenizer)
        self._pending: list[RequestOutput] = []  # last outputs of aborted requests

    @classmethod
    def from_config(cls, config: EngineConfig, hooks: Sequence[SchedulerHook] = ()) -> LLMEngine:
        """Find and load the model, plan memory, start the core in this process.

        Args:
            hooks: core halves of features, for the scheduler.

        Raises:
            ConfigError, MemoryPlanError, ModelError: it cannot be done; the message says why.
        """
        config = config.checked()
        scheduler, model = config.scheduler, config.model
        if scheduler.max_num_batched_tokens is None:
            scheduler = replace(scheduler, max_num_batched_tokens=OFFLINE_BATCHED_TOKENS)
            config = replace(config, scheduler=scheduler)
        files = resolve_model(model.model, revision=model.revision, load_format=model.load_format)
        with closing(files), ThreadPoolExecutor(1) as beside:
            tokenizer = beside.submit(tokenizer_of, model, files)  # while the weights are packed
            generation_config = files.generation_config
            core = EngineCore(
                executor_of(config, files),
                hooks,
                vocabulary=lambda n: vocabulary_of(tokenizer.result(), generation_config, n),
            )
        try:
            return cls(InprocClient(core), tokenizer.result(), generation_config)
        except BaseException:
            core.shutdown()
            raise

    # ---------------------------------------------------------------- requests

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Queue a request; arguments as for `InputProcessor.process`.

        Raises:
            RequestError: it is wrong, or its id is in use. The engine is as before.
        """
        self.submit(
            self.input_processor.process(
                request_id, prompt, params, priority=priority, cache_salt=cache_salt
            )
        )

    def submit(self, request: ProcessedRequest) -> None:
        """Queue a request that the input processor made. Raises RequestError, as `add_request`."""
        self._output_processor.add_request(request)
        try:
            for engine_request in request.engine_requests:
                self.client.add_request(engine_request)
        except BaseException:
            self.drop_requests([request.request_id])
            raise

    def step(self) -> list[RequestOutput]:
        """Run one step of the engine.

        Returns:
            What the requests in it are due (`SamplingParams.output_kind`); may be empty.

        Raises:
            EngineDeadError: the engine cannot go on; every later call raises it too.
        """
        outputs, self._pending = self._pending, []
        processed = self._output_processor.process_outputs(self.client.step())
        if processed.to_abort:
            self.client.abort_requests(list(processed.to_abort))
        return outputs + processed.request_outputs

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests now. Their last outputs, with what was generated and finish_reason "abort",
        come from the next `step`. Ids that have ended are passed over.

        Raises:
            RequestError: these are no ids. Nothing has ended then.
        """
        ids = [request_ids] if isinstance(request_ids, str) else request_ids
        ids = list(ids) if isinstance(ids, Iterable) else [ids]
        for request_id in ids:
            if not isinstance(request_id, str):
                raise RequestError(
                    f"request_ids has {shown(request_id)}; give a request's id, or several",
                    param="request_ids",
                )
        self._pending += self.drop_requests(ids)

    def drop_requests(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """As `abort_request`, but their last outputs come from this call."""
        aborted = self._output_processor.abort_requests(request_ids)
        self.client.abort_requests(list(aborted.to_abort))
        return aborted.request_outputs

    def has_unfinished_requests(self) -> bool:
        """Whether `step` still has an output to give."""
        return bool(self._pending) or self._output_processor.num_unfinished > 0

    @property
    def unfinished_request_ids(self) -> list[str]:
        """Ids of the requests that run or wait, in order of arrival."""
        return self._output_processor.unfinished_ids

    # ---------------------------------------------------------------- the engine

    def stats(self) -> SchedulerStats:
        """Requests, KV cache and totals, as of now."""
        return self.client.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False (and nothing done) while requests hold blocks."""
        return self.client.reset_prefix_cache()

    def shutdown(self) -> None:
        """Stop the engine and free its memory. May be called twice."""
        self.client.shutdown()

    def __enter__(self) -> LLMEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()
