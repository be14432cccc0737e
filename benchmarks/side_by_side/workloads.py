"""What every engine is asked to do: the same token ids, greedily completed to the same length."""

from __future__ import annotations

import random
from dataclasses import dataclass

from octavo.entrypoints.bench.costs import StepShape


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`num_prompts` prompts of `input_len` tokens at once, `output_len` tokens each."""

    name: str
    num_prompts: int
    input_len: int
    output_len: int

    @property
    def is_prefill(self) -> bool:
        return self.output_len == 1

    @property
    def num_tokens(self) -> int:
        """Whose rate is reported: the generated ones; where that is one, those of the prompts."""
        return self.num_prompts * (self.input_len if self.is_prefill else self.output_len)

    def prompts(self, vocab_size: int, seed: str) -> list[list[int]]:
        """Random ids, away from both ends of the vocabulary, where special tokens are."""
        draw = random.Random(f"{self.name} {seed}")
        first, last = vocab_size // 20, vocab_size - vocab_size // 20
        return [
            [draw.randrange(first, last) for _ in range(self.input_len)]
            for _ in range(self.num_prompts)
        ]

    def steps(self) -> list[StepShape]:
        """The fewest steps that can do it: one for all prompts, then one for each further token."""
        lens = range(self.input_len + 1, self.input_len + self.output_len)
        return [
            StepShape.prefill(self.num_prompts, self.input_len),
            *(StepShape.decode(self.num_prompts, seq_len) for seq_len in lens),
        ]


def decode(num_prompts: int) -> Workload:
    return Workload(
        name=f"decode n={num_prompts}", num_prompts=num_prompts, input_len=16, output_len=128
    )


PREFILL = Workload(name="prefill 1024", num_prompts=1, input_len=1024, output_len=1)

WORKLOADS = {w.name: w for w in (*(decode(n) for n in (1, 8, 32, 64)), PREFILL)}
