"""Tiny models of any family, and runs of an engine whose answers are compared to the bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save_file

from octavo.config.engine import EngineConfig
from octavo.config.model import ConfigReader
from octavo.contracts.features import SchedulerHook
from octavo.contracts.messages import CompletionOutput, RequestOutput
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import RequestOutputKind, SamplingParams
from octavo.contracts.step import SchedulerOutput
from octavo.engine.llm_engine import LLMEngine
from octavo.models.registry import build_model
from tests.tiny_model import write_tiny_llama

_LAST_ONLY = RequestOutputKind.FINAL_ONLY
TINY_VOCAB = 257
"""Ids of the tiny models: one per byte, and the end."""


def write_tiny(folder: Path, **changes: Any) -> Path:
    """A model folder with a byte tokenizer, 257 ids and random weights. Returns `folder`.

    Args:
        changes: of config.json, over `write_tiny_llama`'s.
    """
    write_tiny_llama(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"tie_word_embeddings": False} | changes
    path.write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(0, 2 / np.sqrt(shape[-1]), shape).astype(np.float32)
        for slot in build_model(ConfigReader(config, "config.json")).slots()
        for name, shape in slot.expected().items()
    }
    save_file(weights, folder / "model.safetensors")
    return folder


# -------------------------------------------------------------------- requests and answers


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request, and the step before which it arrives."""

    name: str
    prompt: Any
    params: SamplingParams | PoolingParams
    step: int = 0


@dataclass(frozen=True)
class Answer:
    """All that a completion says of numbers; equal means equal to the bit.

    Attributes:
        tokens: the ids that were sampled.
        alternatives: per token the ids with a log probability, in order.
        logprobs: all of their log probabilities, float32, as bytes.
    """

    tokens: tuple[int, ...]
    alternatives: tuple[tuple[int, ...], ...]
    logprobs: bytes
    text: str
    finish_reason: str | None
    stop_reason: int | str | None

    @classmethod
    def of(cls, completion: CompletionOutput) -> Answer:
        rows = completion.logprobs or []
        values = [entry.logprob for row in rows for entry in row.values()]
        assert np.array_equal(np.array(values, dtype=np.float32).astype(np.float64), values)
        return cls(
            tuple(completion.token_ids),
            tuple(tuple(row) for row in rows),
            np.array(values, dtype=np.float32).tobytes(),
            completion.text,
            completion.finish_reason,
            completion.stop_reason,
        )

    def difference(self, other: Answer) -> str:
        """Where two answers part, for a person; "" if they are equal."""
        if self == other:
            return ""
        for what in ("tokens", "alternatives"):
            for i, (a, b) in enumerate(zip(getattr(self, what), getattr(other, what))):
                if a != b:
                    return f"{what}[{i}] is {a}, not {b}"
        mine, theirs = (np.frombuffer(a.logprobs, dtype=np.float32) for a in (self, other))
        if mine.shape == theirs.shape and (mine != theirs).any():
            gap = np.abs(mine - theirs)
            return f"{np.count_nonzero(gap)} of {len(gap)} logprobs differ, by up to {gap.max()}"
        return f"{self} is not {other}"


def answers_of(output: RequestOutput) -> list[Answer]:
    """One per completion."""
    assert output.finished
    assert [c.error for c in output.outputs] == [None] * len(output.outputs)
    return [Answer.of(c) for c in output.outputs]


class Preempted(SchedulerHook):
    """Counts preemptions per request."""

    name = "preempted"

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def build_step_meta(self, step: SchedulerOutput) -> None:
        for request_id in step.preempted_request_ids:
            self.counts[request_id] = self.counts.get(request_id, 0) + 1


class Lab:
    """An engine, and runs on it.

    Attributes:
        preempted: how often each engine request was preempted.
    """

    def __init__(self, model: Path, **options: Any) -> None:
        self.preempted = Preempted()
        config = EngineConfig.from_flat(model=str(model), **options)
        self.engine = LLMEngine.from_config(config, hooks=[self.preempted])

    def run(self, asks: Iterable[Ask]) -> dict[str, RequestOutput]:
        """Last outputs of all, each arriving at its step. The engine is empty afterwards."""
        coming = sorted(asks, key=lambda ask: ask.step)
        outputs: dict[str, RequestOutput] = {}
        step = 0
        while coming or self.engine.has_unfinished_requests():
            while coming and coming[0].step <= step:
                ask = coming.pop(0)
                params = ask.params
                if isinstance(params, SamplingParams):
                    params = msgspec.structs.replace(params, output_kind=_LAST_ONLY)
                self.engine.add_request(ask.name, ask.prompt, params)
            outputs |= {o.request_id: o for o in self.engine.step()}
            step += 1
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
        return outputs

    def forget(self) -> None:
        """Empty the prefix cache."""
        assert self.engine.reset_prefix_cache()

    def close(self) -> None:
        self.engine.shutdown()


def make_company(
    count: int, vocab_size: int, *, lengths: Sequence[int], max_tokens: int, num_steps: int
) -> list[Ask]:
    """Other requests: greedy, seeded and unseeded, of mixed lengths, within `num_steps` steps."""
    rng = np.random.default_rng(count)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 1.0, "top_k": 7, "logprobs": 2},
        {"temperature": 1.3, "top_p": 0.8, "min_tokens": 3, "stop_token_ids": [5, 6, 7, 8, 9]},
        {"temperature": 0.7, "min_p": 0.1, "n": 2, "seed": 11},
    ]
    return [
        Ask(
            name=f"other-{i}",
            prompt=rng.integers(10, vocab_size, rng.choice(lengths)).tolist(),
            params=SamplingParams(
                max_tokens=int(rng.integers(3, max_tokens + 1)), **kinds[i % len(kinds)]
            ),
            step=int(rng.integers(num_steps)),
        )
        for i in range(count)
    ]


def assert_one_clear_line(error: BaseException) -> None:
    """What a user reads: the value, the rule, the remedy, and nothing from inside."""
    text = str(error)
    assert 10 < len(text) < 2000
    assert "\n" not in text
    assert "Traceback" not in text
    assert "object at 0x" not in text
