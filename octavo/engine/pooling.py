"""Requests for vectors, on the front end's side: completed, and their answers read."""

from __future__ import annotations

import numpy as np

from octavo.contracts.messages import PoolingOutput, PoolingRequestOutput, RequestOutput
from octavo.contracts.pooling_params import PoolingParams, PoolingType
from octavo.errors import RequestAbortedError, RequestFailedError


def complete_params(
    params: PoolingParams, *, pooling_type: PoolingType, hidden_size: int
) -> PoolingParams:
    """A copy in which everything is set.

    Args:
        pooling_type: the engine's, for `params` without one.
        hidden_size: of the model.

    Raises:
        RequestError: more dimensions than the model has, or a field that was set is wrong.
    """
    params = PoolingParams(
        task=params.task,
        pooling_type=params.pooling_type or pooling_type,
        dimensions=params.dimensions,
        normalize=params.normalize,
    )
    params.check_hidden_size(hidden_size)
    return params


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
