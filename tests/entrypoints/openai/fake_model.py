"""The "model" of `FakeEngine`: what it says of a sequence, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.contracts.messages import (
    EngineOutput,
    EngineRequest,
    FinishReason,
    LogprobRows,
    PromptProgress,
)
from tests.engine.fakes import EOS, HIDDEN_SIZE


@dataclass
class ScriptedSequence:
    """A request and how far it is. Without a script it counts for ever."""

    request: EngineRequest
    script: Sequence[int] | None
    fails: bool
    output: list[int] = field(default_factory=list)
    num_computed: int = 0  # of the prompt
    num_cached: int | None = None  # until it was told
    told: PromptProgress | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + len(self.output)

    def progress(self, num_ahead: int | None) -> list[EngineOutput]:
        """An output that tells how far it is, if that was asked for and is new."""
        params = self.request.sampling_params
        now = PromptProgress(num_ahead, self.num_computed)
        if params is None or not params.report_progress or now == self.told:
            return []
        self.told = now
        return [EngineOutput(request_id=self.request.request_id, progress=now)]


def next_output(sequence: ScriptedSequence) -> EngineOutput:
    """One more token."""
    request, n = sequence.request, len(sequence.output)
    if request.pooling_params is not None:
        return _pooled(request, sequence.fails)
    params = request.sampling_params
    assert params is not None
    if sequence.fails and (n == 2 or sequence.request.grammar is not None):
        return EngineOutput(
            request_id=request.request_id,
            finish_reason=FinishReason.ERROR,
            error_param="structured_outputs" if sequence.request.grammar else None,
            error="this request met an error",
        )
    if sequence.script is None:
        token = b"one two three "[(n + request.sample_index) % 14]
    elif n < len(sequence.script):
        token = sequence.script[n]
    else:
        token = EOS if n >= params.min_tokens else ord(".")
    sequence.output.append(token)
    reason: FinishReason | None = None
    stop_reason = None
    if n + 1 > params.min_tokens and token in (params.stop_token_ids or ()):
        reason, stop_reason = FinishReason.STOP, token
    elif token == EOS and not params.ignore_eos:
        reason = FinishReason.STOP
    elif n + 1 == params.max_tokens:
        reason = FinishReason.LENGTH
    return EngineOutput(
        request_id=request.request_id,
        new_token_ids=[token],
        logprobs=_logprobs(token, params.logprobs),
        finish_reason=reason,
        stop_reason=stop_reason,
    )


def _pooled(request: EngineRequest, fails: bool) -> EngineOutput:
    """How often each of the byte values 0…7 modulo 8 is in the prompt, as a vector."""
    if fails:
        return EngineOutput(
            request_id=request.request_id,
            finish_reason=FinishReason.ERROR,
            error="this request met an error",
        )
    params = request.pooling_params
    assert params is not None
    counts = np.bincount(np.array(request.prompt_token_ids) % HIDDEN_SIZE, minlength=HIDDEN_SIZE)
    vector = counts[: params.dimensions].astype(np.float32)
    if params.normalize:
        vector /= max(np.linalg.norm(vector), np.float32(1e-12))
    return EngineOutput(
        request_id=request.request_id, finish_reason=FinishReason.STOP, pooling_output=vector
    )


def logprob_of(token: int) -> float:
    """What the fake says of a sampled token: it is its second choice."""
    return -1.0 - token / 512


def _logprobs(token: int, k: int | None) -> LogprobRows | None:
    """The token at rank 2 between its neighbours; the last of four or more has no probability."""
    if k is None:
        return None
    k = 259 if k == -1 else k
    others = [(token + i) % 259 for i in (1, 0, *range(2, 259))][:k]
    values = [-0.5, logprob_of(token), *(-4.0 - i for i in range(max(0, k - 2)))][:k]
    if k >= 4:
        values[-1] = -math.inf
    return LogprobRows(
        token_ids=np.array([[token, *others]], np.int32),
        logprobs=np.array([[logprob_of(token), *values]], np.float32),
        ranks=np.array([2], np.int32),
    )
