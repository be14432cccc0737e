"""Pooling: from the final hidden states of a prompt's tokens to one vector.

What is pooled is the residual stream after the model's last norm, which the captured head gives for
chosen rows alone. The norm works row by row, and a mean adds its rows in float32, one after the
other, in the order of their positions: so a vector is the same to the bit however the prompt is cut
into chunks, and whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.contracts.features import RunnerFeature
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.step import NewRequestData
from octavo.kernels.ops import Backend, Graph, StepInputs
from octavo.sample.logprobs import HEAD_LIMITS
from octavo.sample.stage import RequestRows
from octavo.worker.step_batch import StepBatch

NOT_FINITE = "the model's hidden states are not finite (NaN or infinity)"


@dataclass(slots=True, kw_only=True)
class _Pooled:
    """A request on its way.

    Attributes:
        num_tokens: of its prompt.
        vector: [hidden_size] float32: the sum of the rows so far (MEAN), or the row (CLS, LAST).
    """

    params: PoolingParams
    num_tokens: int
    vector: np.ndarray | None = None

    def wanted_rows(self, first: int, count: int) -> range:
        """Which of `count` tokens, the first at position `first`, count: indices among them."""
        if self.params.pooling_type == "MEAN":
            return range(count)
        position = 0 if self.params.pooling_type == "CLS" else self.num_tokens - 1
        index = position - first
        return range(index, index + 1) if 0 <= index < count else range(0)

    def add(self, row: np.ndarray) -> None:
        """Take the next row that counts, [hidden_size] float32."""
        if self.vector is None:
            self.vector = row.copy()
        else:
            self.vector += row

    def result(self) -> np.ndarray:
        """The vector [dimensions] float32."""
        assert self.vector is not None, "every pooling type counts some row"
        vector = self.vector[: self.params.dimensions]
        if self.params.pooling_type == "MEAN":
            vector = vector / np.float32(self.num_tokens)
        if self.params.normalize:
            length = math.sqrt(math.fsum(np.square(vector, dtype=np.float64).tolist()))
            vector = vector / np.float32(max(length, 1e-12))
        return vector


class Pooler(RunnerFeature):
    """Pooling requests by row of the persistent batch.

    Args:
        head: the model's `head`, captured for `HEAD_LIMITS`.
        num_rows: of the persistent batch.
    """

    name = "pooler"

    def __init__(self, backend: Backend, head: Graph, *, num_rows: int) -> None:
        self._backend = backend
        self._head = head
        self._requests = RequestRows[_Pooled](num_rows)

    def add_request(self, row: int, request: NewRequestData) -> None:
        if request.pooling_params is not None:
            state = _Pooled(params=request.pooling_params, num_tokens=len(request.token_ids))
            self._requests.put(row, state)

    def remove_request(self, row: int) -> None:
        self._requests.drop(row)

    @property
    def is_needed(self) -> bool:
        """Whether any request in the batch is one."""
        return bool(self._requests)

    def find(self, rows: np.ndarray) -> np.ndarray | None:
        """Indices into `rows` [B] of the pooling requests; None where there are none."""
        return self._requests.find(rows)

    def pool(self, hidden_states: Any, batch: StepBatch) -> dict[str, np.ndarray]:
        """Take a step's tokens.

        Args:
            hidden_states: the back end's array [T, hidden_size], the forward's tap; needed where
                `find` finds any.

        Returns:
            Id of each request whose prompt is complete now → its vector.
        """
        found = self.find(batch.rows)
        if found is None:
            return {}
        starts = batch.inputs.query_start.tolist()
        ended: list[int] = []
        token_rows: list[int] = []
        owners: list[_Pooled] = []
        for index, state in zip(found.tolist(), self._requests.of(batch.rows[found])):
            start, count = starts[index], starts[index + 1] - starts[index]
            first = int(batch.inputs.positions[start])
            for i in state.wanted_rows(first, count):
                token_rows.append(start + i)
                owners.append(state)
            if first + count == state.num_tokens:
                ended.append(index)
        for state, row in zip(owners, self._normed(hidden_states, np.array(token_rows, np.int64))):
            state.add(row)
        states = self._requests.of(batch.rows[ended])
        return {batch.request_ids[i]: state.result() for i, state in zip(ended, states)}

    def _normed(self, hidden_states: Any, token_rows: np.ndarray) -> Iterator[np.ndarray]:
        """The rows after the last norm, [hidden_size] float32 each, in order."""
        for start in range(0, len(token_rows), HEAD_LIMITS.max_tokens):
            part = token_rows[start : start + HEAD_LIMITS.max_tokens]
            x = self._backend.to_numpy(hidden_states[part])
            inputs = StepInputs.of_rows(len(x), {"hidden_states": x})
            inputs.outputs = ["last_hidden_state"]
            yield from self._backend.to_numpy(self._head.replay(inputs)["last_hidden_state"])
