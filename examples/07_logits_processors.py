"""Logits processors: a callable of one request, and a class of the engine.

`octavo serve --logits-processors module:Class` loads the class for a server; requests give it its
parameters in `vllm_xargs`."""

from typing import Any

import numpy as np

from octavo import LLM, BatchUpdate, LogitsProcessor, SamplingParams


class Boost(LogitsProcessor):
    """Makes one token likelier: `extra_args={"boost": token id}`."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.token_ids: dict[int, int] = {}  # by row of the logits

    @classmethod
    def applies_to(cls, params: SamplingParams) -> bool:
        return "boost" in (params.extra_args or {})

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        rows = self.token_ids
        for row in batch_update.removed:
            del rows[row]
        for row, params, _prompt_ids, _output_ids in batch_update.added:
            rows[row] = (params.extra_args or {})["boost"]
        for source, target, how in batch_update.moved:
            rows[target], other = rows.pop(source), rows.get(target)
            if how == "swap":
                rows[source] = other

    def apply(self, logits: np.ndarray) -> None:
        for row, token_id in self.token_ids.items():
            logits[row, token_id] += 20.0


def no_repeats(output_ids: list[int], logits: np.ndarray) -> None:
    """A token comes once."""
    logits[output_ids] = -np.inf


greedy = {"temperature": 0, "max_tokens": 12}

with LLM("smollm2-135m", logits_processors=[Boost]) as llm:
    exclamation = llm.get_tokenizer().encode("!")[0]
    for name, params in {
        "plain": SamplingParams(**greedy),
        "no repeats": SamplingParams(**greedy, logits_processors=[no_repeats]),
        "boosted": SamplingParams(**greedy, extra_args={"boost": exclamation}),
    }.items():
        output = llm.generate("1 1 1 1 1 1", params)[0].outputs[0]
        print(f"{name}: {output.text!r}")
