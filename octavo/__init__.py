"""Octavo: an LLM inference engine.

`import octavo` is light: the public names below load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.contracts.beam_search_params import BeamSearchParams
    from octavo.contracts.messages import (
        CompletionOutput,
        Logprob,
        PoolingRequestOutput,
        RequestOutput,
        ScoringRequestOutput,
    )
    from octavo.contracts.pooling_params import PoolingParams
    from octavo.contracts.sampling_params import (
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
    )
    from octavo.contracts.structured_outputs import StructuredOutputsParams
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.llm_engine import LLMEngine
    from octavo.entrypoints.llm import LLM
    from octavo.sample.logits_processor import BatchUpdate, LogitsProcessor
    from octavo.version import __version__

_LAZY = {
    "LLM": "octavo.entrypoints.llm",
    "LLMEngine": "octavo.engine.llm_engine",
    "AsyncLLM": "octavo.engine.async_llm",
    "SamplingParams": "octavo.contracts.sampling_params",
    "RequestOutputKind": "octavo.contracts.sampling_params",
    "StructuredOutputsParams": "octavo.contracts.structured_outputs",
    "RepetitionDetectionParams": "octavo.contracts.sampling_params",
    "BeamSearchParams": "octavo.contracts.beam_search_params",
    "LogitsProcessor": "octavo.sample.logits_processor",
    "BatchUpdate": "octavo.sample.logits_processor",
    "PoolingParams": "octavo.contracts.pooling_params",
    "PoolingRequestOutput": "octavo.contracts.messages",
    "ScoringRequestOutput": "octavo.contracts.messages",
    "RequestOutput": "octavo.contracts.messages",
    "CompletionOutput": "octavo.contracts.messages",
    "Logprob": "octavo.contracts.messages",
    "__version__": "octavo.version",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BatchUpdate",
    "BeamSearchParams",
    "CompletionOutput",
    "LLMEngine",
    "LogitsProcessor",
    "Logprob",
    "PoolingParams",
    "PoolingRequestOutput",
    "RepetitionDetectionParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
