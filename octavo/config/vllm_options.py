"""Options of vLLM that are none here: what asks for nothing is taken, all else refused with the way
to go.

Scripts and unit files written for vLLM name many options with the values that they have anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError, shown


@dataclass(frozen=True)
class VllmOption:
    """An option of vLLM.

    Attributes:
        neutral: values that ask for what is so anyway; the first tells the option's type.
        instead: why there is no such option, and what to do.
    """

    neutral: tuple[Any, ...]
    instead: str

    @property
    def kind(self) -> type:
        """bool, int, float, or str for what a command line cannot tell apart."""
        kind = type(self.neutral[0]) if self.neutral else str
        return kind if kind in (bool, int, float) else str

    def takes(self, value: object) -> bool:
        """Whether `value` asks for nothing."""
        return any(type(value) is type(n) and value == n for n in self.neutral)


_ONE_PROCESS = "a model runs in one process, on all of its cores"
_NO_GRAPHS = "nothing is compiled at the start, so there is nothing to leave out"
_NO_IMAGES = "models take text alone"
_NO_LORA = "adapters are not supported yet; merge them into the model"

VLLM_ENGINE_OPTIONS: dict[str, VllmOption] = {
    "tensor_parallel_size": VllmOption((1,), _ONE_PROCESS),
    "pipeline_parallel_size": VllmOption((1,), _ONE_PROCESS),
    "data_parallel_size": VllmOption((1,), "start a server per replica"),
    "disable_custom_all_reduce": VllmOption((False, True), _ONE_PROCESS),
    "trust_remote_code": VllmOption((False, True), "no code of a checkpoint is ever run"),
    "enforce_eager": VllmOption((False, True), _NO_GRAPHS),
    "compilation_config": VllmOption((), _NO_GRAPHS),
    "enable_chunked_prefill": VllmOption(
        (True,), "prompts are always computed in chunks; max_num_batched_tokens bounds them"
    ),
    "async_scheduling": VllmOption((False,), "pipeline_depth=2 keeps two steps in flight"),
    "block_size": VllmOption((16,), "a KV block has 16 tokens"),
    "kv_cache_dtype": VllmOption(("auto",), "keys and values are kept in the model's dtype"),
    "swap_space": VllmOption((0, 0.0), "preempted requests are computed again, not swapped out"),
    "cpu_offload_gb": VllmOption((0, 0.0), "weights are in this machine's memory anyway"),
    "disable_sliding_window": VllmOption(
        (False,), "windows are part of the model; max_model_len bounds its length"
    ),
    "enable_sleep_mode": VllmOption((False,), "an engine does not sleep; stop it"),
    "tokenizer_mode": VllmOption(("auto", "hf"), "there is one kind of tokenizer"),
    "skip_tokenizer_init": VllmOption(
        (False,), "prompts may be token ids, and detokenize=False leaves text out"
    ),
    "config_format": VllmOption(("auto", "hf"), "configurations are Hugging Face's or GGUF's"),
    "hf_overrides": VllmOption(({},), "edit the model's config.json"),
    "download_dir": VllmOption((), "models are kept under the environment variable OCTAVO_HOME"),
    "runner": VllmOption(("auto", "generate", "pooling"), "every model makes text and vectors"),
    "task": VllmOption(("auto", "generate", "embed"), "every model makes text and vectors"),
    "pooler_config": VllmOption((), "pooling_type says how states become a vector"),
    "structured_outputs_config": VllmOption(({},), "grammars are compiled by llguidance"),
    "guided_decoding_backend": VllmOption(
        ("auto", "guidance"), "grammars are compiled by llguidance"
    ),
    "speculative_config": VllmOption((), "speculative decoding is not supported yet"),
    "enable_lora": VllmOption((False,), _NO_LORA),
    "enable_expert_parallel": VllmOption((False,), _ONE_PROCESS),
    "worker_cls": VllmOption(("auto",), _ONE_PROCESS),
    "scheduler_cls": VllmOption((), "scheduling_policy is fcfs or priority"),
    "attention_backend": VllmOption((), "there is one for each device"),
    "disable_cascade_attn": VllmOption((False, True), "there is no cascade attention"),
    "calculate_kv_scales": VllmOption((False,), "keys and values are kept in the model's dtype"),
    "prefix_caching_hash_algo": VllmOption((), "blocks have a hash with a secret key"),
    "kv_transfer_config": VllmOption((), "keys and values stay in their engine"),
    "kv_events_config": VllmOption((), "blocks are not announced; the dashboard shows them"),
    "enable_prompt_embeds": VllmOption((False,), "prompts are texts or token ids"),
    "allowed_local_media_path": VllmOption(("",), _NO_IMAGES),
    "code_revision": VllmOption((), "no code of a checkpoint is ever run"),
    "limit_mm_per_prompt": VllmOption(({},), _NO_IMAGES),
    "mm_processor_kwargs": VllmOption(({},), _NO_IMAGES),
    "disable_log_stats": VllmOption(
        (True,), "there are no lines of statistics; LLM.stats() and /metrics have them"
    ),
}
"""By keyword of `LLM(…)`; `octavo serve` has them as flags, too."""

VLLM_SERVER_OPTIONS: dict[str, VllmOption] = {
    "enable_prompt_tokens_details": VllmOption((True,), "usage always has prompt_tokens_details"),
    "enable_server_load_tracking": VllmOption((True,), "/load always counts"),
    "disable_log_requests": VllmOption((True,), "prompts are not logged; see enable_log_requests"),
    "response_role": VllmOption(("assistant",), "answers have the role assistant"),
    "chat_template_content_format": VllmOption(
        ("auto",), "the template tells which form of content it wants"
    ),
    "uvicorn_log_level": VllmOption((), "log_level is for all lines"),
    "disable_uvicorn_access_log": VllmOption(
        (False,), "log_level=warning leaves out the line per request"
    ),
    "log_config_file": VllmOption((), "log_level and log_format say how"),
    "enable_log_outputs": VllmOption((False,), "what a model wrote is never logged"),
    "enable_request_id_headers": VllmOption((True,), "x-request-id is always there"),
    "exclude_tools_when_tool_choice_none": VllmOption(
        (True,), "tool_choice none always keeps tools from the template"
    ),
    "tool_parser_plugin": VllmOption(("",), "tool_call_parser names one of those that there are"),
    "tool_server": VllmOption((), "no tools run on the server"),
    "lora_modules": VllmOption((), _NO_LORA),
    "default_chat_template_kwargs": VllmOption(
        ({},), "a request's field chat_template_kwargs has them; or give a chat_template"
    ),
    "enable_scale_out": VllmOption((True,), "render, derender and generate are always there"),
    "headless": VllmOption((False,), _ONE_PROCESS),
    "middleware": VllmOption((), "no code is loaded into the server; put a proxy before it"),
    "ssl_ciphers": VllmOption((), "TLS 1.2 and 1.3 have those of OpenSSL"),
    "enable_ssl_refresh": VllmOption((False,), "certificates are read again at SIGHUP"),
    "h11_max_incomplete_event_size": VllmOption((), "a head has at most 64 KiB"),
    "h11_max_header_count": VllmOption((), "a head has at most 64 KiB"),
    "root_path": VllmOption(("",), "let the proxy take the prefix off"),
    "return_tokens_as_token_ids": VllmOption(
        (False,), "a request's field return_tokens_as_token_ids says so"
    ),
}
"""Flags of `vllm serve` alone."""


def without_vllm_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` but for vLLM's engine options, each of which asks for nothing.

    Raises:
        ConfigError: one asks for something.
    """
    check_vllm_options({n: v for n, v in options.items() if n in VLLM_ENGINE_OPTIONS})
    return {n: v for n, v in options.items() if n not in VLLM_ENGINE_OPTIONS}


def check_vllm_options(values: Mapping[str, Any]) -> None:
    """Refuse what options of vLLM ask for.

    Args:
        values: by names that are in one of the tables; None is the same as absent.

    Raises:
        ConfigError: one asks for something.
    """
    options = VLLM_ENGINE_OPTIONS | VLLM_SERVER_OPTIONS
    for name, value in values.items():
        if value is not None and not options[name].takes(value):
            raise ConfigError(
                f"{name}={shown(value)} is not supported: {options[name].instead}; leave it out"
            )
