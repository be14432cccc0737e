"""`truncate_prompt_tokens` and `truncation_side`: which tokens of a prompt are kept."""

from __future__ import annotations

from octavo.entrypoints.openai.errors import bad_request
from octavo.entrypoints.openai.pooling_protocol import VectorRequest
from octavo.entrypoints.openai.protocol import GenerationRequest


def kept_tokens(request: GenerationRequest | VectorRequest, *, room: int) -> slice:
    """The part of every prompt that is kept; all of it unless the request says otherwise.

    Args:
        room: most tokens of a prompt that fit, which `truncate_prompt_tokens=-1` keeps.

    Raises:
        APIError: a value is out of range.
    """
    most, side = request.truncate_prompt_tokens, request.truncation_side
    if most is None:
        if side is not None:
            raise bad_request("truncation_side needs truncate_prompt_tokens", "truncation_side")
        return slice(None)
    if most == -1:
        most = max(1, room)
    elif most < 1:
        raise bad_request(
            f"truncate_prompt_tokens={most} must be at least 1, or -1 for what fits the model",
            "truncate_prompt_tokens",
        )
    return slice(most) if side == "right" else slice(-most, None)
