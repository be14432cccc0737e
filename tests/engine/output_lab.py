"""An output processor over a byte tokenizer, and what goes in."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.config.sections import ModelConfig
from octavo.contracts.messages import EngineOutput, LogprobRows, RequestOutput
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.input_processor import InputProcessor
from octavo.engine.output_processor import OutputProcessor
from tests.engine.fakes import ByteTokenizer


def start(
    request_id: str = "r",
    *,
    prompt: str | list[int] = "Hi",
    pieces: tuple[bytes, ...] = (),
    **params: Any,
) -> OutputProcessor:
    """With one request."""
    processor = OutputProcessor(ByteTokenizer(pieces))
    add(processor, request_id, prompt=prompt, **params)
    return processor


def add(
    processor: OutputProcessor,
    request_id: str,
    *,
    prompt: str | list[int] = "Hi",
    **params: Any,
) -> None:
    inputs = InputProcessor(
        ModelConfig(max_model_len=64),
        ByteTokenizer(),
        vocab_size=400,
        hidden_size=8,
        generation_config={},
    )
    processor.add_request(inputs.process(request_id, prompt, SamplingParams(**params)))


def token_output(text: str, request_id: str = "r", **fields: Any) -> EngineOutput:
    return EngineOutput(request_id=request_id, new_token_ids=list(text.encode()), **fields)


def feed(processor: OutputProcessor, *outputs: EngineOutput) -> list[RequestOutput]:
    return processor.process_outputs(outputs).request_outputs


def rows_of(text: str, first: int = 1) -> LogprobRows:
    """About each character: itself at -1, -2 …, rank 3, and the alternative "z"."""
    ids = [[ord(char), ord("z")] for char in text]
    values = [[-float(first + i), -0.5] for i in range(len(text))]
    return LogprobRows(
        np.array(ids, np.int32), np.array(values, np.float32), np.full(len(text), 3, np.int32)
    )
