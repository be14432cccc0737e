"""vLLM's sampler on the logits of `octavo bench sampler --peer-python PATH`, which runs this file
with that Python. Prints one line of JSON: {"peer": …, "milliseconds": {logits: {kind: number}}}."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import vllm
from vllm.v1.sample.logits_processor import LogitsProcessors, MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from xgrammar import apply_token_bitmask_inplace


def metadata_of(params: dict[str, Any], token_ids: np.ndarray) -> SamplingMetadata:
    """A batch whose rows all have these parameters."""
    num_rows, num_tokens = token_ids.shape
    num_prompt = num_tokens // 2

    def column(name: str, default: float) -> torch.Tensor:
        return torch.full((num_rows,), params.get(name, default), dtype=torch.float32)

    processors = []
    if "min_p" in params:
        config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=num_rows))
        min_p = MinPLogitsProcessor(config, torch.device("cpu"), False)
        min_p.min_p, min_p.min_p_count = column("min_p", 0.0).unsqueeze(1), num_rows
        processors.append(min_p)
    is_greedy = params["temperature"] == 0
    top_k = torch.full((num_rows,), params.get("top_k", 0), dtype=torch.int32)
    return SamplingMetadata(
        temperature=None if is_greedy else column("temperature", 1.0),
        all_greedy=is_greedy,
        all_random=not is_greedy,
        top_p=column("top_p", 1.0) if "top_p" in params else None,
        top_k=top_k if "top_k" in params else None,
        generators={},
        max_num_logprobs=params.get("logprobs"),
        no_penalties="repetition_penalty" not in params,
        prompt_token_ids=torch.from_numpy(token_ids[:, :num_prompt].astype(np.int64)),
        frequency_penalties=column("frequency_penalty", 0.0),
        presence_penalties=column("presence_penalty", 0.0),
        repetition_penalties=column("repetition_penalty", 1.0),
        output_token_ids=token_ids[:, num_prompt:].tolist(),
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(processors),
    )


def milliseconds(
    task: dict[str, Any],
    logits: torch.Tensor,
    metadata: SamplingMetadata,
    bitmask: torch.Tensor | None,
) -> float:
    """The median of a step."""
    sampler = Sampler()
    times: list[float] = []
    while len(times) < task["rounds"] and sum(times) < task["seconds"]:
        copy = logits.clone()
        start = time.perf_counter()
        if bitmask is not None:
            apply_token_bitmask_inplace(copy, bitmask)
        sampler(copy, metadata)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    torch.set_num_threads(task["num_threads"] or len(os.sched_getaffinity(0)))
    bitmask = torch.from_numpy(np.load(folder / "bitmask.npy"))
    token_ids = np.load(folder / "token_ids.npy")
    found: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for name in task["logits"]:
            logits = torch.from_numpy(np.load(folder / f"{name}.npy"))
            found[name] = {
                kind: milliseconds(
                    task,
                    logits,
                    metadata_of(params, token_ids),
                    bitmask if kind == task["bitmask"] else None,
                )
                for kind, params in task["kinds"].items()
            }
    peer = f"vLLM {vllm.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    print(json.dumps({"peer": peer, "milliseconds": found}))


if __name__ == "__main__":
    main()
