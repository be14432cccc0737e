"""What a user asks for, checked and made into engine requests.

Everything that can be wrong with a request is found here, before the core hears of it.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

import msgspec

from octavo.config.generation import default_sampling
from octavo.config.sections import ModelConfig
from octavo.contracts.messages import EngineRequest, ServiceClass, Thinking, engine_request_ids
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.contracts.structured_outputs import GrammarSource
from octavo.engine.bad_words import encode_bad_words
from octavo.engine.end_tokens import end_token_ids
from octavo.engine.params_rules import (
    check_logits_processors,
    check_num_logprobs,
    first_token_ids,
    per_completion,
)
from octavo.engine.pooling import complete_params
from octavo.engine.request_checks import (
    check_cache_salt,
    check_priority,
    check_request_id,
    check_unicode,
)
from octavo.engine.stop_regex import check_stop_regexes
from octavo.errors import PromptTooLongError, RequestError, shown
from octavo.sample.logits_processor import load_logits_processors
from octavo.structured.sources import grammar_source

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer


class TextPrompt(TypedDict, total=False):
    """A prompt as text: `prompt`, and maybe a `cache_salt`."""

    prompt: str
    cache_salt: str


class TokensPrompt(TypedDict, total=False):
    """A prompt as ids: `prompt_token_ids`, and maybe their text, which the output shows and nothing
    else reads, and a `cache_salt`."""

    prompt_token_ids: Sequence[int]
    prompt: str
    cache_salt: str


PromptType: TypeAlias = "str | Sequence[int] | TextPrompt | TokensPrompt"


class Derived(NamedTuple):
    """Fields of an `EngineRequest` that come from the parameters."""

    grammar: GrammarSource | None = None
    bad_words_token_ids: Sequence[list[int]] = ()
    thinking: Thinking | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request in which nothing is wrong, before it has an id (`InputProcessor.check`).

    Attributes:
        prompt: the text, where it was given as text.
        params: a copy; of a request for text with `max_tokens` set, of one for a vector with all.
        first_token_ids: with which its parameters let an output begin; None: with any.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams | PoolingParams
    derived: Derived
    first_token_ids: list[int] | None
    priority: int
    cache_salt: str | None


@dataclass(frozen=True, kw_only=True)
class ProcessedRequest:
    """A request that is fit to run.

    Attributes:
        prompt: the text, where it was given.
        params: with `seed` and `max_tokens` set; neutral ones for a pooling request.
        engine_requests: one per completion, in order of index.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    engine_requests: list[EngineRequest]


class InputProcessor:
    """Checks requests against the model.

    Seeds. A request without a seed is given the next one of a stream that `ModelConfig.seed`
    starts (SplitMix64; Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*,
    2014): the same requests in the same order after the same start give the same tokens.

    Args:
        config: resolved (`max_model_len` is set).
        vocab_size: rows of the model's embedding; ids are 0 … vocab_size-1.
        hidden_size: of the model.
        generation_config: the model's generation_config.json, {} where there is none. Its
            end-of-sequence ids always count.

    Attributes:
        config, vocab_size: as given.
        eos_token_ids: with which an output ends.

    Raises:
        ModelError: the generation config is malformed.
        ConfigError: a logits processor cannot be loaded.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        hidden_size: int,
        generation_config: Mapping[str, Any],
    ) -> None:
        assert config.max_model_len is not None
        self.config = config
        self._logits_processors = load_logits_processors(config.logits_processors)
        self._max_model_len = config.max_model_len
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._hidden_size = hidden_size
        self._default_sampling = default_sampling(config, generation_config)
        self.eos_token_ids = end_token_ids(tokenizer, generation_config, vocab_size)
        self._seed = config.seed
        self._seed_numbers = itertools.count(1)  # atomic: several threads may process

    def default_sampling_params(self, **changes: Any) -> SamplingParams:
        """What a request without parameters gets: the model's generation config, and what overrides
        it, over our defaults, and `changes` over all.

        Raises:
            RequestError: a change is wrong, or the model asks for something that Octavo does not
                support.
        """
        try:
            return SamplingParams(**{**self._default_sampling, **changes})
        except RequestError as error:
            if error.param in changes:
                raise
            raise RequestError(
                f"the model's generation config: {error}. Give SamplingParams, or start with "
                "generation_config='octavo'",
                param=error.param,
            ) from None

    def process(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | PoolingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> ProcessedRequest:
        """`check` and `begin` one request. Raises RequestError: what is wrong with it."""
        check_request_id(request_id)
        (request,) = self.check([prompt], [params], priority=priority, cache_salt=cache_salt)
        return self.begin(request_id, request)

    def check(
        self,
        prompts: Sequence[PromptType],
        params: Sequence[SamplingParams | PoolingParams],
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[CheckedRequest]:
        """Check, tokenize and complete requests for text, or for vectors (PoolingParams); begin
        nothing.

        Args:
            prompts: each is text, ids, {"prompt": text} or {"prompt_token_ids": ids}; the last two
                may have a "cache_salt", the last one its text.
            params: one for each prompt; they differ in `max_tokens` alone.
            priority: lower runs first, where the scheduling policy is "priority".
            cache_salt: cached prefixes are shared only among requests of one salt.

        Raises:
            RequestError: what is wrong with one of them.
        """
        for of_prompt in params:
            if not isinstance(of_prompt, (SamplingParams, PoolingParams)):
                raise RequestError(
                    "sampling_params must be SamplingParams (or pooling_params PoolingParams), not "
                    f"{type(of_prompt).__name__}",
                    param="sampling_params",
                )
        check_priority(priority)
        check_cache_salt(cache_salt)
        derived, begins_with = Derived(), None
        if isinstance(params[0], SamplingParams):
            first = msgspec.structs.replace(params[0])  # checks it anew: fields can be set
            derived = self._derive(first)
            bad_words = derived.bad_words_token_ids
            begins_with = first_token_ids(first, bad_words, self.eos_token_ids)
        requests = []
        for prompt, of_prompt in zip(prompts, params):
            text, token_ids, salt = self._read_prompt(prompt, _num_more(of_prompt))
            if salt is not None and cache_salt is not None:
                raise RequestError("cache_salt is given twice; give it once", param="cache_salt")
            check_cache_salt(salt)
            requests.append(
                CheckedRequest(
                    prompt=text,
                    prompt_token_ids=token_ids,
                    params=self._complete(of_prompt, len(token_ids)),
                    derived=derived,
                    first_token_ids=begins_with,
                    priority=priority,
                    cache_salt=cache_salt if salt is None else salt,
                )
            )
        return requests

    def begin(
        self,
        request_id: str,
        request: CheckedRequest,
        *,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
    ) -> ProcessedRequest:
        """Give a request an id, and a seed if it has none.

        Args:
            service_class: whom it serves; classes come before the policy.

        Raises:
            RequestError: the id is none.
        """
        check_request_id(request_id)
        to_be_run = partial(
            EngineRequest,
            prompt_token_ids=request.prompt_token_ids,
            arrival_time=time.monotonic(),
            priority=request.priority,
            service_class=service_class,
            cache_salt=request.cache_salt,
        )
        if isinstance(request.params, PoolingParams):
            params = SamplingParams(detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
            requests = [to_be_run(request_id=request_id, pooling_params=request.params)]
        else:
            params = copy(request.params)
            params.seed = self._draw_seed() if params.seed is None else params.seed
            params.structured_outputs = None  # the grammar travels in its stead
            ids = engine_request_ids(request_id, params.num_sequences)
            first, others = per_completion(params)
            requests = [
                to_be_run(
                    request_id=engine_id,
                    sampling_params=first if i == 0 else others,
                    eos_token_ids=self.eos_token_ids,
                    **request.derived._asdict(),
                    sample_index=i,
                    fork_of=ids[0] if i else None,
                )
                for i, engine_id in enumerate(ids)
            ]
        return ProcessedRequest(
            request_id=request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            params=params,
            engine_requests=requests,
        )

    # ---------------------------------------------------------------- the prompt

    def _read_prompt(self, prompt: Any, num_more: int) -> tuple[str | None, list[int], Any]:
        """Text (where given), ids and salt of a prompt in any of its forms, which leaves room for
        `num_more` tokens."""
        salt = text = None
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
            if unknown or prompt.keys().isdisjoint({"prompt", "prompt_token_ids"}):
                raise RequestError(
                    f"prompt has the keys {shown(sorted(map(str, prompt)))}; give 'prompt' or "
                    "'prompt_token_ids', and 'cache_salt' if need be",
                    param="prompt",
                )
            salt, text = prompt.get("cache_salt"), prompt.get("prompt")
            ids = prompt.get("prompt_token_ids")
            if "prompt" in prompt and not isinstance(text, str):
                raise _wrong_type("prompt['prompt']", text, "a string")
            if "prompt_token_ids" in prompt and not isinstance(ids, (list, tuple)):
                raise _wrong_type("prompt_token_ids", ids, "a list of ints")
            prompt = text if ids is None else ids
        if isinstance(prompt, str):
            return prompt, self._tokenize(prompt, num_more), salt
        if isinstance(prompt, (list, tuple)):
            return text, self._check_ids(prompt, num_more), salt
        raise _wrong_type("prompt", prompt, "a string, a list of token ids or a dict")

    def check_num_chars(self, num_chars: int, *, param: str = "prompt") -> None:
        """Refuse a text that cannot fit before it is tokenized: 10 MB take many seconds.

        Raises:
            PromptTooLongError: no text of so many characters has few enough tokens.
        """
        limit = self._max_model_len
        if num_chars > limit and num_chars > limit * self._longest_token:
            raise PromptTooLongError(
                f"the prompt has {num_chars} characters, more than max_model_len={limit} tokens "
                f"of at most {self._longest_token} characters can hold; shorten it",
                param=param,
            )

    def _tokenize(self, text: str, num_more: int) -> list[int]:
        self.check_num_chars(len(text))
        check_unicode("prompt", text)
        token_ids = self._tokenizer.encode(text)
        self._check_length(len(token_ids), num_more)
        return token_ids

    def _check_ids(self, ids: Sequence[Any], num_more: int) -> list[int]:
        self._check_length(len(ids), num_more)
        if set(map(type, ids)) == {int}:
            token_ids = list(ids)
        else:
            for i in ids:
                if isinstance(i, bool) or not isinstance(i, Integral):
                    raise RequestError(
                        f"the prompt's token ids must be ints; one is {shown(i)}", param="prompt"
                    )
            token_ids = [int(i) for i in ids]
        for i in (min(token_ids), max(token_ids)):
            if not 0 <= i < self.vocab_size:
                raise RequestError(
                    f"the prompt holds token id {shown(i)}; the model's ids are "
                    f"0…{self.vocab_size - 1}",
                    param="prompt",
                )
        return token_ids

    def _check_length(self, num_tokens: int, num_more: int) -> None:
        if num_tokens == 0:
            raise RequestError(
                "the prompt is empty: the model needs at least one token to go on from",
                param="prompt",
            )
        if num_tokens + num_more > self._max_model_len:
            also = "with at least 1 token to generate " if num_more else ""
            raise PromptTooLongError(
                f"the prompt has {num_tokens} tokens; {also}that is more than "
                f"max_model_len={self._max_model_len}; shorten the prompt",
                param="prompt",
            )

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest token: no text of n characters has fewer than n / this tokens."""
        tokenizer = self._tokenizer
        return max(1, *(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)))

    # ---------------------------------------------------------------- the parameters

    def _derive(self, params: SamplingParams) -> Derived:
        """What the core gets besides parameters and prompt. Raises RequestError."""
        params.check_vocabulary(self.vocab_size)
        wanted = params.structured_outputs
        grammar = None if wanted is None else grammar_source(wanted, self._mark_in_lark)
        check_stop_regexes(params.stop_regexes)
        check_logits_processors(params, self._logits_processors)
        bad_words = encode_bad_words(params.bad_words or (), self._tokenizer, self.vocab_size)
        thinking = self._thinking if params.thinking_token_budget is not None else None
        return Derived(grammar, bad_words, thinking)

    def _mark_in_lark(self, mark: str) -> str:
        """A mark of reasoning as llguidance's Lark has it: a special token is no text."""
        ids = self._tokenizer.encode(mark, add_special_tokens=False)
        is_special = len(ids) == 1 and ids[0] in self._tokenizer.all_special_ids
        return f"<[{ids[0]}]>" if is_special else json.dumps(mark)

    def _complete(
        self, params: SamplingParams | PoolingParams, num_prompt_tokens: int
    ) -> SamplingParams | PoolingParams:
        """A copy in which everything is set but the seed."""
        if isinstance(params, PoolingParams):
            return complete_params(
                params, pooling_type=self.config.pooling_type, hidden_size=self._hidden_size
            )
        max_tokens = self._max_tokens(params, num_prompt_tokens)
        return msgspec.structs.replace(params, max_tokens=max_tokens)

    def _max_tokens(self, params: SamplingParams, num_prompt_tokens: int) -> int:
        """How many may be generated.

        Raises:
            PromptTooLongError: fewer than asked for.
            RequestError: they would bring too many log probabilities.
        """
        limit = self._max_model_len
        room = limit - num_prompt_tokens
        max_tokens = room if params.max_tokens is None else params.max_tokens
        if max_tokens > room:
            raise PromptTooLongError(
                f"the prompt has {num_prompt_tokens} tokens and max_tokens={max_tokens}, together "
                f"more than max_model_len={limit}; shorten the prompt or ask for at most {room}",
                param="max_tokens",
            )
        if params.min_tokens > max_tokens:
            raise PromptTooLongError(
                f"the prompt has {num_prompt_tokens} tokens, so that max_model_len={limit} leaves "
                f"room for {room}, fewer than min_tokens={params.min_tokens}",
                param="min_tokens",
            )
        check_num_logprobs(params, max_tokens, num_prompt_tokens, self.vocab_size)
        return max_tokens

    @cached_property
    def _thinking(self) -> Thinking:
        """The model's marks. Raises RequestError where it cannot have any."""
        marks = []
        for text in (self.config.reasoning_start_str, self.config.reasoning_end_str):
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            if not ids or max(ids) >= self.vocab_size:
                raise RequestError(
                    f"thinking_token_budget needs the model's marks, and {text!r} is none; start "
                    "the engine with its reasoning_start_str and reasoning_end_str",
                    param="thinking_token_budget",
                )
            marks.append(ids)
        return Thinking(*marks)

    def _draw_seed(self) -> int:
        """The next seed, below 2⁶³ (SplitMix64, shifted)."""
        z = (self._seed + next(self._seed_numbers) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return (z ^ (z >> 31)) >> 1


def _num_more(params: SamplingParams | PoolingParams) -> int:
    """Tokens for which a prompt must leave room."""
    return 1 if isinstance(params, SamplingParams) else 0


def _wrong_type(name: str, value: object, rule: str) -> RequestError:
    return RequestError(f"{name} must be {rule}, not {type(value).__name__}", param="prompt")
