"""Requests for vectors, on the front end's side: made, and their answers read."""

from __future__ import annotations

import time

import numpy as np

from octavo.contracts.messages import (
    EngineRequest,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ServiceClass,
)
from octavo.contracts.pooling_params import PoolingParams, PoolingType
from octavo.errors import RequestAbortedError, RequestFailedError


def engine_request_of(
    request_id: str,
    prompt_token_ids: list[int],
    params: PoolingParams,
    *,
    pooling_type: PoolingType,
    hidden_size: int,
    priority: int,
    service_class: ServiceClass,
    cache_salt: str | None,
) -> EngineRequest:
    """The engine request for the vector of a prompt.

    Args:
        pooling_type: the engine's, for `params` without one.
        hidden_size: of the model.

    Raises:
        RequestError: more dimensions than the model has.
    """
    params = PoolingParams(
        task=params.task,
        pooling_type=params.pooling_type or pooling_type,
        dimensions=params.dimensions,
        normalize=params.normalize,
    )  # checks it anew: fields can be set
    params.check_hidden_size(hidden_size)
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        pooling_params=params,
        arrival_time=time.monotonic(),
        priority=priority,
        service_class=service_class,
        cache_salt=cache_salt,
    )


def pooling_output(output: RequestOutput) -> PoolingRequestOutput:
    """The answer from a request's last output.

    Raises:
        RequestFailedError: it failed, or was aborted (RequestAbortedError).
    """
    if output.pooled is None:
        (end,) = output.outputs
        if end.finish_reason == "abort":
            raise RequestAbortedError("the request was aborted")
        raise RequestFailedError(end.error or "the request failed")
    return PoolingRequestOutput(
        request_id=output.request_id,
        outputs=PoolingOutput(output.pooled),
        prompt_token_ids=output.prompt_token_ids,
        num_cached_tokens=output.num_cached_tokens,
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of two vectors of length 1, [D] float32 each, in -1…1."""
    dot = float(np.sum(a.astype(np.float64) * b.astype(np.float64)))
    return min(1.0, max(-1.0, dot))
