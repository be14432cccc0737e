"""How a beam search goes. The names are vLLM's; what they mean is what transformers does."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.contracts.checks import check_float, check_int, plain_float, plain_int
from octavo.contracts.sampling_limits import MAX_N
from octavo.errors import RequestError, shown

MAX_LENGTH_PENALTY = 10.0


class BeamSearchParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Parameters of one beam search.

    Attributes:
        beam_width: how many beams go on at every step, and how many sequences are returned, 1…128.
        max_tokens: most new tokens; None is as many as fit the model length.
        ignore_eos: go on after the model's end-of-sequence ids.
        length_penalty: a sequence's score is its log probability / (number of new tokens) to this
            power, -10…10: above 0 favours long ones.
        early_stopping: True: end as soon as there are beam_width ended sequences. False: when the
            best beam, if it ended now, would not get among these. "never": when it could not even
            if it went on to max_tokens (which is so only for length_penalty > 0).
        include_stop_str_in_output: keep the end-of-sequence id's text.

    Raises:
        RequestError: a value is out of range.
    """

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        self.beam_width = plain_int(self.beam_width)
        self.max_tokens = plain_int(self.max_tokens)
        self.length_penalty = plain_float(self.length_penalty)
        check_int("beam_width", self.beam_width, 1, MAX_N)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        check_float("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"{name}={shown(getattr(self, name))} must be true or false", param=name
                )
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise RequestError(
                f'early_stopping={shown(self.early_stopping)} must be true, false or "never"',
                param="early_stopping",
            )
