"""A minimal driver over Backend and CausalLM: one request, its own block table, no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from octavo.contracts.kv_spec import KVCacheConfig, KVCacheGroup, KVCacheSpec, SlidingWindowSpec
from octavo.contracts.tensor import HostTensor
from octavo.kernels.ops import Backend, StepInputs, StepLimits
from octavo.models.base import CausalLM
from octavo.models.loader import load_weights


class Runner:
    """Runs steps of one request and keeps its place. Blocks are taken in a scrambled order; those
    that slid out of a window are nulled, as the scheduler does.

    Args:
        model: without weights.
        max_model_len: most tokens of the request.
        max_tokens: most tokens of a step.
    """

    def __init__(
        self,
        model: CausalLM,
        weights: Sequence[tuple[str, HostTensor]],
        backend: Backend,
        *,
        max_model_len: int,
        max_tokens: int = 64,
    ) -> None:
        load_weights(model, weights, backend)
        self.backend = backend
        specs = model.kv_specs(backend.dtype)
        groups: dict[KVCacheSpec, list[str]] = {}
        for name, spec in specs.items():
            groups.setdefault(spec, []).append(name)
        self._specs = list(groups)
        num_blocks = -(-max_model_len // 16)
        config = KVCacheConfig(
            num_blocks=1 + num_blocks * len(groups),
            groups=tuple(
                KVCacheGroup(layer_names=tuple(names), spec=spec) for spec, names in groups.items()
            ),
        )
        model.bind(backend, backend.allocate_kv(config), max_model_len=max_model_len)
        self._graph = backend.capture(
            model.forward,
            StepLimits(
                max_tokens=max_tokens,
                max_requests=1,
                max_logit_rows=max_tokens,
                max_blocks_per_request=num_blocks,
                max_position=max_model_len,
            ),
        )
        ids = np.random.default_rng(7).permutation(np.arange(1, config.num_blocks))
        self._tables = ids.astype(np.int32).reshape(len(groups), 1, num_blocks)
        self._num_computed = 0

    def step(
        self, token_ids: Sequence[int], extra: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Compute the request's next tokens. Returns the taps, "logits" of every token."""
        start, end = self._num_computed, self._num_computed + len(token_ids)
        positions = np.arange(start, end, dtype=np.int32)
        tables = self._tables.copy()
        for table, spec in zip(tables, self._specs):
            if isinstance(spec, SlidingWindowSpec):
                table[0, : max(0, start - spec.sliding_window + 1) // 16] = 0
        taps = self._graph.replay(
            StepInputs(
                token_ids=np.array(token_ids, dtype=np.int32),
                positions=positions,
                query_start=np.array([0, len(token_ids)], dtype=np.int32),
                seq_lens=np.array([end], dtype=np.int32),
                block_tables=list(tables),
                slot_mapping=[t[0, positions // 16] * 16 + positions % 16 for t in tables],
                logit_rows=np.arange(len(token_ids), dtype=np.int32),
                extra=extra or {},
            )
        )
        self._num_computed = end
        return {name: np.array(self.backend.to_numpy(tap)) for name, tap in taps.items()}

    def restart(self) -> None:
        """Forget the request; the next step begins another in the same blocks."""
        self._num_computed = 0

    def greedy(
        self, prompt: Sequence[int], num_tokens: int, chunks: Sequence[int] = ()
    ) -> tuple[list[int], np.ndarray]:
        """Prefill in pieces of the sizes `chunks` (the last one takes the rest), then decode.

        Returns the new ids and the log probabilities after each token but the last,
        [len(prompt) + num_tokens - 1, vocab].
        """
        bounds = np.minimum(np.cumsum([0, *chunks, len(prompt)]), len(prompt))
        logits = [self.step(prompt[a:b])["logits"] for a, b in pairwise(bounds) if a < b]
        ids = [int(logits[-1][-1].argmax())]
        while len(ids) < num_tokens:
            logits.append(self.step(ids[-1:])["logits"])
            ids.append(int(logits[-1][-1].argmax()))
        x = np.concatenate(logits).astype(np.float64)
        x -= x.max(axis=-1, keepdims=True)
        return ids, x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
