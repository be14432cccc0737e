"""The stages that mask tokens and add biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.contracts.step import NewRequestData
from octavo.kernels.sampling_ops import SamplingOps
from octavo.sample.params_state import StagedColumns, sampling_params_of
from octavo.sample.stage import LogitsStage, RequestRows, SampleBatch

_WORD = 32


class GrammarMask(LogitsStage):
    """Only what a request's grammar allows may be sampled. The masks come with the step."""

    @property
    def is_needed(self) -> bool:
        return True  # by the step

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        return None if batch.grammar is None else batch.grammar.rows

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        assert batch.grammar is not None
        ops.allow(logits, edited, batch.grammar.bitmask)


class AllowedTokens(LogitsStage):
    """Only `allowed_token_ids` may be sampled. A bit per token and request."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._num_words = -(-vocab_size // _WORD)
        self._bitmasks = RequestRows[np.ndarray](num_rows)  # [num_words] int32

    def add_request(self, row: int, request: NewRequestData) -> None:
        allowed = sampling_params_of(request).allowed_token_ids
        if allowed is None:
            return
        bits = np.zeros(self._num_words * _WORD, dtype=bool)
        bits[allowed] = True
        words = np.packbits(bits, bitorder="little").view("<i4")
        self._bitmasks.put(row, words.astype(np.int32))

    def remove_request(self, row: int) -> None:
        self._bitmasks.drop(row)

    @property
    def is_needed(self) -> bool:
        return bool(self._bitmasks)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        return self._bitmasks.find(batch.rows)

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        bitmask = np.stack(self._bitmasks.of(batch.rows[edited]))
        ops.allow(logits, edited.astype(np.int32), bitmask)


class _Words:
    """The bad words of one request.

    Attributes:
        single: [n] int32, words of one token.
        longer: last token but one → (tokens but the last, last token) of the words with it.
        num_prompt_tokens: words are looked for behind these.
    """

    def __init__(self, words: Sequence[Sequence[int]], num_prompt_tokens: int) -> None:
        self.single = np.array([word[0] for word in words if len(word) == 1], dtype=np.int32)
        self.longer: dict[int, list[tuple[list[int], int]]] = {}
        for *beginning, last in words:
            if beginning:
                self.longer.setdefault(beginning[-1], []).append((beginning, last))
        self.num_prompt_tokens = num_prompt_tokens

    def masked(self, token_ids: np.ndarray, position: int) -> np.ndarray:
        """Tokens that must not be at `position`, after token_ids[:position]: [n] int32."""
        num_output_tokens = position - self.num_prompt_tokens
        if num_output_tokens < 1:
            return self.single
        ends = [
            last
            for beginning, last in self.longer.get(int(token_ids[position - 1]), ())
            if len(beginning) <= num_output_tokens
            and token_ids[position - len(beginning) : position].tolist() == beginning
        ]
        return np.append(self.single, np.array(ends, dtype=np.int32)) if ends else self.single


class BadWords(LogitsStage):
    """Masks words of one token, and the last token of longer ones that the output has begun."""

    def __init__(self, num_rows: int) -> None:
        self._words = RequestRows[_Words](num_rows)

    def add_request(self, row: int, request: NewRequestData) -> None:
        if request.bad_words_token_ids:
            words = _Words(request.bad_words_token_ids, request.num_prompt_tokens)
            self._words.put(row, words)

    def remove_request(self, row: int) -> None:
        self._words.drop(row)

    @property
    def is_needed(self) -> bool:
        return bool(self._words)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        return self._words.find(batch.rows)

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        rows, positions = batch.rows[edited], batch.positions[edited].tolist()
        masked = [
            words.masked(batch.token_ids[row], position)
            for words, row, position in zip(self._words.of(rows), rows.tolist(), positions)
        ]
        ops.mask(logits, repeated(edited, masked), np.concatenate(masked))


class MinTokens(LogitsStage):
    """Masks a request's stop ids while fewer than `min_tokens` tokens are out."""

    def __init__(self, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._until = StagedColumns(num_rows, np.int32)  # first position where the end may come
        self._stop_ids = RequestRows[np.ndarray](num_rows)

    def add_request(self, row: int, request: NewRequestData) -> None:
        params = sampling_params_of(request)
        stop_ids = [i for i in request.stop_ids if 0 <= i < self._vocab_size]
        if params.min_tokens > 0 and stop_ids:
            until = request.num_prompt_tokens + params.min_tokens
            self._until.stage(row, min(until, np.iinfo(np.int32).max))
            self._stop_ids.put(row, np.array(sorted(set(stop_ids)), dtype=np.int32))

    def remove_request(self, row: int) -> None:
        self._stop_ids.drop(row)

    def apply_staged_writes(self) -> None:
        self._until.apply()

    @property
    def is_needed(self) -> bool:
        return bool(self._stop_ids)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        found = self._stop_ids.find(batch.rows)
        if found is None:
            return None
        below = batch.positions[found] < self._until.columns[0][batch.rows[found]]
        return found[below] if below.any() else None

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        stop_ids = self._stop_ids.of(batch.rows[edited])
        ops.mask(logits, repeated(edited, stop_ids), np.concatenate(stop_ids))


class LogitBias(LogitsStage):
    """Adds `logit_bias`."""

    def __init__(self, num_rows: int) -> None:
        self._biases = RequestRows[tuple[np.ndarray, np.ndarray]](num_rows)

    def add_request(self, row: int, request: NewRequestData) -> None:
        bias = sampling_params_of(request).logit_bias
        if bias:
            token_ids = np.fromiter(bias.keys(), np.int32, len(bias))
            self._biases.put(row, (token_ids, np.fromiter(bias.values(), np.float32, len(bias))))

    def remove_request(self, row: int) -> None:
        self._biases.drop(row)

    @property
    def is_needed(self) -> bool:
        return bool(self._biases)

    def rows_to_edit(self, batch: SampleBatch) -> np.ndarray | None:
        return self._biases.find(batch.rows)

    def apply(self, ops: SamplingOps, logits: Any, batch: SampleBatch, edited: np.ndarray) -> None:
        token_ids, biases = zip(*self._biases.of(batch.rows[edited]))
        ops.add_bias(
            logits, repeated(edited, token_ids), np.concatenate(token_ids), np.concatenate(biases)
        )


def repeated(edited: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
    """edited[i] as often as parts[i] is long: [n] int32."""
    return np.repeat(edited, [len(part) for part in parts]).astype(np.int32)
