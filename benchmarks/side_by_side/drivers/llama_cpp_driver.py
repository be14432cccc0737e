"""llama.cpp, as bundled with llama-cpp-python, driven by its C API: every step is one batched
`llama_decode` over all sequences, with logits for the rows that need them only."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from protocol import Driver, serve

_MAX_BATCH = 2048
_CTX_STEP = 256
"""llama.cpp rounds a sequence's room up to a multiple of this."""


class LlamaCppDriver(Driver):
    """A context is made for each shape of workload, so that none carries room for another's.

    Args:
        n_ubatch: tokens per pass over the weights.
        flash_attn: whether attention is the fused one.
        kv_unified: whether sequences share one KV buffer.
    """

    def __init__(
        self,
        model: str,
        num_threads: int,
        n_ubatch: int = 512,
        flash_attn: bool = True,
        kv_unified: bool = False,
    ) -> None:
        self._num_threads = num_threads
        self._n_ubatch, self._flash_attn, self._kv_unified = n_ubatch, flash_attn, kv_unified
        llama_cpp.llama_backend_init()
        self._silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silent, None)
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {model}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._batch = llama_cpp.llama_batch_init(_MAX_BATCH, 0, 1)
        self._contexts: dict[tuple[int, int], Any] = {}

    def prepare(self, num_prompts: int, num_tokens: int) -> None:
        shape = num_prompts, -(-num_tokens // _CTX_STEP) * _CTX_STEP
        if shape not in self._contexts:
            self._contexts[shape] = self._new_context(*shape)
        self._context = self._contexts[shape]
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _new_context(self, num_prompts: int, max_len: int) -> Any:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_prompts * max_len
        params.n_batch = _MAX_BATCH
        params.n_ubatch = self._n_ubatch
        params.n_seq_max = num_prompts
        params.n_threads = params.n_threads_batch = self._num_threads
        params.flash_attn_type = int(self._flash_attn)
        params.kv_unified = self._kv_unified
        params.no_perf = True
        context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            raise ValueError("llama.cpp cannot create a context")
        return context

    def versions(self) -> dict[str, str]:
        return {
            "llama-cpp-python": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode(),
            "n_ubatch": str(self._n_ubatch),
            "flash_attn": str(self._flash_attn),
            "kv_unified": str(self._kv_unified),
        }

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in prompts]
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        for start in range(0, len(rows), _MAX_BATCH):
            self._step(rows[start : start + _MAX_BATCH], outputs)
        for i in range(1, num_tokens):
            self._step(
                [(out[-1], len(prompts[s]) + i - 1, s, True) for s, out in enumerate(outputs)],
                outputs,
            )
        return outputs

    def _step(self, rows: list[tuple[int, int, int, bool]], outputs: list[list[int]]) -> None:
        """Decode (token, position, sequence, whether logits are needed) rows; append what comes."""
        batch = self._batch
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        batch.n_tokens = len(rows)
        if (status := llama_cpp.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        wanted_sequences = [sequence for _, _, sequence, wanted in rows if wanted]
        if not wanted_sequences:
            return
        pointer = llama_cpp.llama_get_logits(self._context)
        count = len(wanted_sequences) * self._vocab_size
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float * count))
        logits = np.frombuffer(address.contents, np.float32).reshape(-1, self._vocab_size)
        for sequence, token in zip(wanted_sequences, logits.argmax(axis=1).tolist()):
            outputs[sequence].append(token)


if __name__ == "__main__":
    serve(LlamaCppDriver)
