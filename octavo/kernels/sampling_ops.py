"""Sampling ops: from a step's logits to token ids and log probabilities.

As for the ops of a forward, the torch back end is the specification, and a contract test is
generated for every entry of `SAMPLING_OPS`: a row alone equals the same row in any batch, at any
place, on any number of threads, bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

SAMPLING_OPS: dict[str, Callable[..., Any]] = {}
"""Every sampling op by name. The contract test runs over it."""


def sampling_op(method: F) -> F:
    """Register an abstract method of `SamplingOps` as an op."""
    SAMPLING_OPS[method.__name__] = method
    return method


@dataclass(slots=True, kw_only=True)
class SamplingRows:
    """Parameters per logits row, as columns.

    Attributes:
        temperature: [R] float32, 0 = greedy.
        top_k: [R] int32, 0 = off. top_p, min_p: [R] float32.
        seed: [R] uint64. sample_index, position: [R] int32. Together the key of the row's draw:
            position is the absolute position of the token to be sampled.
    """

    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    seed: np.ndarray
    sample_index: np.ndarray
    position: np.ndarray


@dataclass(slots=True, kw_only=True)
class PenaltyRows:
    """Penalties of n logits rows and the tokens they concern, ragged.

    Attributes:
        repetition, frequency, presence: [n] float32.
        starts: [n + 1] int32; row i has the tokens starts[i] … starts[i + 1]-1.
        token_ids: [m] int32, each at most once in a row.
        counts: [m] int32, occurrences in the row's output; 0 for tokens of the prompt only.
    """

    repetition: np.ndarray
    frequency: np.ndarray
    presence: np.ndarray
    starts: np.ndarray
    token_ids: np.ndarray
    counts: np.ndarray


class SamplingOps(ABC):
    """Ops on logits [R, vocab] float32 as `Graph.replay` returns them. Rows are independent, NaN
    counts as -inf. Ops that edit do so in place; their arithmetic is float32, in the order given
    here, the same to the bit in every back end.

    The draw (`sample`), the same to the bit in every back end: one uniform number u per row from
    the counter-based stream (`kernels.rng`), and inverse transform in order of token id over the
    weights of the tokens that the filters keep: the first id whose running sum exceeds u * total.

    Weights: z = (logit - max) * (1 / T), then e^z, both in float32 (`torch_sampling` has the steps;
    relative error of e^z below 2e-7), rounded to a multiple of 2^-34. The largest is 1, so that
    float64 sums of up to 2^19 weights are exact, in whatever order they are added. A token that is
    2^35 times less likely than the first has no weight.

    Filters, in vLLM's order: min_p keeps z >= float32(log(min_p)); top-k the k most likely of
    these; top-p the fewest most likely of these that together weigh top_p of what these do. The
    most likely token always stays; among equal logits the lower id is the more likely.
    """

    # ---- edits

    @sampling_op
    @abstractmethod
    def mask(self, logits: Any, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """logits[rows[i], token_ids[i]] = -inf. Both [n] int32."""

    @sampling_op
    @abstractmethod
    def allow(self, logits: Any, rows: np.ndarray, bitmask: np.ndarray) -> None:
        """Only tokens whose bit is 1 stay, the others become -inf. rows [n] int32, rising; bitmask
        [n, ceil(vocab / 32)] int32, token i at bit i % 32 of word i // 32 (xgrammar's and
        llguidance's layout)."""

    @sampling_op
    @abstractmethod
    def add_bias(
        self, logits: Any, rows: np.ndarray, token_ids: np.ndarray, bias: np.ndarray
    ) -> None:
        """logits[rows[i], token_ids[i]] += bias[i], one after the other. [n] int32, [n] int32 and
        [n] float32."""

    @sampling_op
    @abstractmethod
    def penalize(self, logits: Any, rows: np.ndarray, penalties: PenaltyRows) -> None:
        """Of the tokens of `penalties`, in rows [n] int32, rising: x / repetition (at most the
        largest float32) where x > 0, else x * repetition; where count > 0, then minus frequency *
        count, then minus presence (vLLM's order)."""

    @sampling_op
    @abstractmethod
    def process(self, logits: Any, rows: np.ndarray, sampling: SamplingRows) -> None:
        """What `sample` draws from, as logits: logits / max(temperature, 1e-30), and -inf for the
        tokens that the filters drop. Greedy rows stay as they are. rows [n] int32, rising; n
        entries in `sampling`."""

    # ---- results

    @sampling_op
    @abstractmethod
    def sample(self, logits: Any, rows: SamplingRows) -> np.ndarray:
        """Token ids [R] int32; temperature 0 takes the argmax, ties to the lowest id."""

    @sampling_op
    @abstractmethod
    def logprobs(
        self,
        logits: Any,
        rows: np.ndarray,
        token_ids: np.ndarray,
        k: int,
        *,
        normalized: bool = True,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log softmax of the chosen rows [n], or the logits themselves if not `normalized`. Column
        0 is token_ids[i], then the k best (ties to the lower id). Returns ids [n, 1+k] int32,
        values [n, 1+k] float32, ranks [n] int32 (1 + the number of tokens with a larger logit)."""
