"""Synthetic requests, the same for the same seed, and how they are run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.contracts.messages import RequestOutput
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.engine.llm_engine import LLMEngine
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt of random ids and the number of tokens to generate, whatever they are."""

    prompt_token_ids: list[int]
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + self.num_output_tokens


def uniform_lengths(rng: np.random.Generator, mean: int, count: int) -> list[int]:
    """`count` lengths, uniform in [mean / 2, 3 mean / 2], at least 1."""
    return np.maximum(1, rng.integers(mean // 2, mean + mean // 2 + 1, count)).tolist()


def random_prompt(rng: np.random.Generator, length: int, vocab_size: int) -> list[int]:
    """`length` ids, uniform over the vocabulary."""
    return rng.integers(0, vocab_size, length).tolist()


def check_fits(requests: Sequence[Request], max_model_len: int | None) -> None:
    """Refuse a workload that the engine's length cannot hold. Raises ConfigError."""
    longest = max(r.num_tokens for r in requests)
    if max_model_len is not None and longest > max_model_len:
        raise ConfigError(
            f"the longest request of this benchmark has {longest} tokens, more than "
            f"max_model_len={max_model_len}; ask for shorter ones"
        )


def submit(engine: LLMEngine, request_id: str, request: Request, *, temperature: float) -> None:
    """Queue a request that runs to its full length, without text."""
    params = SamplingParams(
        temperature=temperature,
        seed=0,
        max_tokens=request.num_output_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    engine.add_request(request_id, {"prompt_token_ids": request.prompt_token_ids}, params)


def drain(
    engine: LLMEngine, on_step: Callable[[list[RequestOutput]], None] | None = None
) -> tuple[float, int]:
    """Step until nothing is left; `on_step` sees each step's outputs.

    Returns:
        Seconds, and the tokens that were generated.
    """
    start, num_tokens = time.perf_counter(), 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        num_tokens += sum(len(c.token_ids) for o in outputs for c in o.outputs)
        if on_step is not None:
            on_step(outputs)
    return time.perf_counter() - start, num_tokens


def warm_up(engine: LLMEngine) -> None:
    """Touch memory and start threads: one short request, not measured."""
    submit(engine, "warm-up", Request([0] * 16, 4), temperature=1.0)
    drain(engine)
    engine.reset_prefix_cache()
