"""How far quantized weights move a model: mean KL divergence, and perplexity on a text.

    python benchmarks/accuracy.py --model smollm2-135m --num-tokens 2000 --text-tokens 20000

GGUF formats are compared with the float32 model of exactly the same (dequantized) values: what is
left is what rounded activations, a bfloat16 KV cache and the order of sums do. Online int8 and int4
are compared with the bfloat16 model, rounding of weights included.

The small model at hand is quantized itself: rounding it to the same grid would show no error. For
int8 and int4 its weights get uniform noise of up to half a step of their own quantization, which
makes them a checkpoint that the file may have come from.

The text is the language reference in Python's standard library (`pydoc_data.topics`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from benchmarks.k_quants import SUPER_BLOCK, encode
from octavo.contracts.kv_spec import KVCacheConfig
from octavo.contracts.tensor import DType, HostTensor
from octavo.engine.tokenizer import load_tokenizer
from octavo.kernels.cpu import CpuBackend
from octavo.kernels.ops import StepInputs, StepLimits
from octavo.models.files import ModelFiles, resolve_model
from octavo.models.loader import fitting_weights, load_weights
from octavo.models.registry import build_model
from octavo.quant.base import UNQUANTIZED, Quantization
from octavo.quant.registry import quantization_of
from octavo.worker.kv_planner import group_layers

BLOCKS = (
    *(DType.Q8_0, DType.Q5_0, DType.Q5_1, DType.Q4_0, DType.Q4_1),
    *(DType.Q4_K, DType.Q5_K, DType.Q6_K),
)
_WITHOUT_SUPER_BLOCKS = {DType.Q4_K: DType.Q5_0, DType.Q5_K: DType.Q5_1, DType.Q6_K: DType.Q8_0}
"""What llama.cpp takes for rows that are no multiple of 256."""
WINDOW = 250
"""Tokens of a sequence."""

Weights = dict[str, HostTensor]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model under test in bfloat16, and the one it is held against.

    Attributes:
        weights: what is loaded into both.
        reference_dtype: of the other one, which is not quantized.
        limit: of the mean KL divergence.
    """

    name: str
    weights: Weights
    quantization: Quantization
    reference_dtype: DType
    limit: float


def variant_of(name: str, stored: Weights) -> Variant:
    """ "bfloat16": the checkpoint's values; "file": its blocks as they are stored; "int8", "int4":
    rounded while it is loaded; or, for all matrices, the embedding included, a format of
    GGUF blocks."""
    if name in ("int8", "int4"):
        rng = np.random.default_rng(0)
        return Variant(
            name=name,
            weights={n: _off_the_grid(tensor, rng) for n, tensor in stored.items()},
            quantization=quantization_of(name, "auto"),
            reference_dtype=DType.BF16,
            limit={"int8": 0.02, "int4": 0.1}[name],
        )
    if name not in ("bfloat16", "file"):
        stored = {n: in_blocks(tensor, DType(name)) for n, tensor in stored.items()}
    return Variant(
        name=name,
        weights=stored,
        quantization=UNQUANTIZED if name == "bfloat16" else quantization_of("gguf", "auto"),
        reference_dtype=DType.F32,
        limit=1e-3,
    )


def checkpoint(files: ModelFiles) -> Weights:
    """The weights under the model's names, as they are stored."""
    return dict(fitting_weights(build_model(files.config), files.weights()))


def _off_the_grid(tensor: HostTensor, rng: np.random.Generator) -> HostTensor:
    values = tensor.to_float32()
    if not tensor.dtype.is_block_format:
        return HostTensor.of(values)
    group = 16 if tensor.dtype is DType.Q6_K else 32
    bits = {"q4": 4, "q5": 5, "q6": 6, "q8": 8}[tensor.dtype.value[:2]]
    x = values.reshape(-1, group)
    step = (x.max(-1, keepdims=True) - x.min(-1, keepdims=True)) / ((1 << bits) - 1)
    noise = rng.random(x.shape, dtype=np.float32) - np.float32(0.5)
    return HostTensor.of((x + step * noise).reshape(values.shape))


def in_blocks(tensor: HostTensor, dtype: DType) -> HostTensor:
    """A matrix in a block format, or in the one that llama.cpp takes for its width instead."""
    if len(tensor.shape) != 2 or not dtype.is_block_format or tensor.dtype is dtype:
        return tensor
    if dtype in _WITHOUT_SUPER_BLOCKS and tensor.shape[1] % SUPER_BLOCK:
        dtype = _WITHOUT_SUPER_BLOCKS[dtype]
    if dtype in _WITHOUT_SUPER_BLOCKS:
        data = encode(tensor.to_float32(), dtype)
    else:
        data = gguf.quantize(tensor.to_float32(), gguf.GGMLQuantizationType[dtype.name])
    return HostTensor(data, dtype, tensor.shape)


class Scorer:
    """A model that gives the logits of every position of a sequence."""

    def __init__(
        self,
        files: ModelFiles,
        weights: Weights,
        dtype: DType,
        quantization: Quantization,
        num_threads: int,
    ) -> None:
        model = build_model(files.config)
        self.backend = CpuBackend(dtype, num_threads)
        self.num_bytes = load_weights(model, weights.items(), self.backend, quantization)
        groups = group_layers(model.kv_specs(dtype))
        num_blocks = -(-WINDOW // 16)
        kv = self.backend.allocate_kv(KVCacheConfig(num_blocks=num_blocks + 1, groups=groups))
        model.bind(self.backend, kv, max_model_len=WINDOW)
        limits = StepLimits(
            max_tokens=WINDOW,
            max_requests=1,
            max_logit_rows=WINDOW,
            max_blocks_per_request=num_blocks,
            max_position=WINDOW,
        )
        self._graph = self.backend.capture(model.forward, limits)
        self._num_groups = len(groups)

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """float32 [len(token_ids), vocab]; valid until the next call."""
        n = len(token_ids)
        positions = np.arange(n, dtype=np.int32)
        table = np.arange(1, -(-n // 16) + 1, dtype=np.int32)[None]
        step = StepInputs(
            token_ids=np.array(token_ids, dtype=np.int32),
            positions=positions,
            query_start=np.array([0, n], dtype=np.int32),
            seq_lens=np.array([n], dtype=np.int32),
            block_tables=[table] * self._num_groups,
            slot_mapping=[positions + 16] * self._num_groups,
            logit_rows=positions,
        )
        return self._graph.replay(step)["logits"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64))


def windows(token_ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(token_ids), WINDOW):
        yield token_ids[start : start + WINDOW]


def mean_kl(reference: Scorer, model: Scorer, token_ids: list[int]) -> float:
    """Of the model's next-token distributions from the reference's, in nats per token."""
    total = 0.0
    for window in windows(token_ids):
        p = log_softmax(reference.logits(window))
        q = log_softmax(model.logits(window))
        total += float((np.exp(p) * (p - q)).sum())
    return total / len(token_ids)


def perplexity(model: Scorer, token_ids: list[int]) -> float:
    """exp of the mean negative log likelihood; the first token of a window is given."""
    total, count = 0.0, 0
    for window in windows(token_ids):
        logprobs = log_softmax(model.logits(window)[:-1])
        total -= float(logprobs[np.arange(len(window) - 1), window[1:]].sum())
        count += len(window) - 1
    return round(float(np.exp(total / count)), 3)


def text_tokens(files: ModelFiles, count: int) -> list[int]:
    """The first `count` tokens of the text."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return load_tokenizer(files).encode(text[: 12 * count], add_special_tokens=False)[:count]


def measure(
    variant: Variant, files: ModelFiles, token_ids: list[int], num_tokens: int, num_threads: int
) -> dict[str, object]:
    """One line of the table: KL over the first `num_tokens`, perplexity over all."""
    weights, plain = variant.weights, variant.reference_dtype
    model = Scorer(files, weights, DType.BF16, variant.quantization, num_threads)
    reference = Scorer(files, weights, plain, UNQUANTIZED, num_threads)
    result: dict[str, object] = {
        "format": variant.name,
        "megabytes": round(model.num_bytes / 1e6, 1),
        "mean_kl": round(mean_kl(reference, model, token_ids[:num_tokens]), 6),
        "limit": variant.limit,
    }
    if len(token_ids) > num_tokens:
        result["perplexity"] = perplexity(model, token_ids)
    model.backend.close()
    reference.backend.close()
    return result


def main() -> None:
    names = ["bfloat16", "file", "int8", "int4", *(dtype.value for dtype in BLOCKS)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--formats", default=",".join(names))
    parser.add_argument("--num-tokens", type=int, default=2000, help="of the KL divergence")
    parser.add_argument("--text-tokens", type=int, default=20000, help="of the perplexity")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--json", help="write the results here, too")
    args = parser.parse_args()
    files = resolve_model(args.model)
    token_ids = text_tokens(files, max(args.text_tokens, args.num_tokens))
    results = []
    stored = checkpoint(files)
    for name in args.formats.split(","):
        result = measure(
            variant_of(name, stored), files, token_ids, args.num_tokens, args.num_threads
        )
        results.append(result)
        print("  ".join(f"{key} {value}" for key, value in result.items()), flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"model": args.model, "results": results}, out, indent=2)


if __name__ == "__main__":
    main()
