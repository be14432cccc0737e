"""LLM: offline generation, used as vLLM's class of the same name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any

from octavo.config.engine import EngineConfig
from octavo.contracts.messages import RequestOutput, SchedulerStats
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.input_processor import ProcessedRequest, PromptType
from octavo.engine.llm_engine import LLMEngine
from octavo.entrypoints.interrupts import deferred_interrupt
from octavo.entrypoints.progress import generation_progress
from octavo.errors import EngineDeadError, RequestError

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""One turn of a conversation, as in OpenAI's chat API: {"role": …, "content": …}."""


class LLM:
    """A model in this process: give it prompts, get texts.

        with LLM("smollm2-135m") as llm:
            for output in llm.generate(["Hello, my name is"], SamplingParams(temperature=0)):
                print(output.outputs[0].text)

    Not thread-safe.

    Args:
        model: alias, folder, GGUF file, Hugging Face id or pypi: source.
        options: the fields of the engine's configuration (`octavo.config.sections`): dtype,
            max_model_len, max_num_seqs, max_num_batched_tokens, enable_prefix_caching, …

    Raises:
        ConfigError, MemoryPlanError, ModelError: the engine cannot be built; the message says why.
    """

    def __init__(self, model: str = "smollm2-135m", **options: Any) -> None:
        self.llm_engine = LLMEngine.from_config(EngineConfig.from_flat(model=model, **options))
        self._request_numbers = itertools.count()

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> LLM:
        """Around an engine that exists already; `close` shuts it down."""
        llm = cls.__new__(cls)
        llm.llm_engine = engine
        llm._request_numbers = itertools.count()
        return llm

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
        items = _as_prompts(prompts)
        params = self._params_of(sampling_params, len(items))
        priorities = (
            [0] * len(items) if priority is None else _one_each("priority", priority, len(items))
        )
        requests = []
        for i, (prompt, p, level) in enumerate(zip(items, params, priorities)):
            with _naming("prompts", i, len(items)):
                requests.append(
                    self.llm_engine.input_processor.process(
                        str(next(self._request_numbers)), prompt, p, priority=level
                    )
                )
        return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, through the model's chat template.

        Args:
            messages: a list of {"role": …, "content": …}, or a list of such lists.
            add_generation_prompt: open the assistant's turn.
            continue_final_message: go on with the last message instead; needs
                add_generation_prompt=False.
            tools: tool descriptions for the template, as in OpenAI's chat API.
            chat_template_kwargs: further variables for the template.

        Raises:
            ChatTemplateError: the template refused the messages, or there is none.
            RequestError, EngineDeadError, KeyboardInterrupt: as `generate`.
        """
        conversations = _as_conversations(messages)
        prompts: list[PromptType] = []
        for i, conversation in enumerate(conversations):
            with _naming("messages", i, len(conversations)):
                token_ids = self.get_tokenizer().apply_chat_template(
                    conversation,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tools=tools,
                    **(chat_template_kwargs or {}),
                )
            prompts.append(token_ids)
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

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
        for outputs in self._steps([request]):
            yield from outputs

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
        return self.llm_engine.reset_prefix_cache()

    def close(self) -> None:
        """Stop the engine and free its memory. May be called twice."""
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
        return _one_each("sampling_params", params, count)

    def _run(self, requests: list[ProcessedRequest], use_tqdm: bool) -> list[RequestOutput]:
        done: dict[str, RequestOutput] = {}
        num_tokens = 0
        for request in requests:
            request.params.output_kind = RequestOutputKind.FINAL_ONLY  # params are a copy
        with generation_progress(len(requests), enabled=use_tqdm) as progress:
            for outputs in self._steps(requests):
                for output in outputs:
                    done[output.request_id] = output
                    num_tokens += sum(len(c.token_ids) for c in output.outputs)
                progress.update(len(done), num_tokens)
        return [done[r.request_id] for r in requests]

    def _steps(self, requests: list[ProcessedRequest]) -> Iterator[list[RequestOutput]]:
        """Run requests to their end; what each step brings for them. Whatever ends this early
        aborts them."""
        engine = self.llm_engine
        unfinished = {r.request_id for r in requests}
        try:
            for request in requests:
                engine.submit(request)
            while unfinished:
                with deferred_interrupt() as raise_if_interrupted:
                    outputs = [o for o in engine.step() if o.request_id in unfinished]
                    raise_if_interrupted()
                unfinished.difference_update(o.request_id for o in outputs if o.finished)
                yield outputs
        finally:
            if unfinished:
                with suppress(EngineDeadError):
                    engine.drop_requests(unfinished)


@contextmanager
def _naming(what: str, index: int, count: int) -> Iterator[None]:
    """Errors of one in a list name its place."""
    try:
        yield
    except RequestError as error:
        if count == 1:
            raise
        raise type(error)(f"{what}[{index}]: {error}", param=error.param) from None


def _as_prompts(prompts: Any) -> list[Any]:
    """A list of prompts, whether one or many were given. A list of ints is one prompt."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, (list, tuple)):
        raise RequestError(
            f"prompts must be a string, a dict or a list, not {type(prompts).__name__}",
            param="prompts",
        )
    if prompts and all(isinstance(p, Integral) for p in prompts):
        return [prompts]
    return list(prompts)


def _as_conversations(messages: Any) -> list[Sequence[Message]]:
    """A list of conversations, whether one or many were given."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError(
            "messages must be a list of messages, or a list of such lists, and not empty",
            param="messages",
        )
    if all(isinstance(m, Mapping) for m in messages):
        return [messages]
    if all(isinstance(m, (list, tuple)) for m in messages):
        return list(messages)
    raise RequestError(
        'each of messages must be a dict like {"role": "user", "content": "…"} (one conversation) '
        "or a list of such dicts (many)",
        param="messages",
    )


def _one_each(name: str, values: Any, count: int) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        raise RequestError(
            f"{name} must be one or a list of them, not {type(values).__name__}", param=name
        )
    if len(values) != count:
        raise RequestError(
            f"{name} has {len(values)} entries for {count} prompts; give one each", param=name
        )
    return list(values)
