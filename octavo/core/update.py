"""From a worker's results to a request's new state and the output for its user."""

from __future__ import annotations

from octavo.contracts.messages import EngineOutput, FinishReason, LogprobRows
from octavo.contracts.step import RunnerOutput
from octavo.core.request import Ending, Request
from octavo.core.step_plan import Scheduled


def settle(
    scheduled: Scheduled, sampled: list[int], rest: RunnerOutput | None
) -> EngineOutput | None:
    """Put the results of one step into one of its requests.

    Args:
        sampled: the request's tokens; empty where none was to be sampled.
        rest: the whole output, if it has more than tokens for anybody.

    Returns:
        What its user hears, if anything; with `finish_reason` set if the request ends.

    Raises:
        ValueError: more tokens than can have been sampled.
    """
    request, _, start, num_tokens, num_drafts, samples = scheduled
    token_ids: list[int] = []
    ending: Ending | None = None
    if samples:
        token_ids, ending = take_sampled(request, sampled, num_drafts)
    elif rest is None and not request.is_pooling:
        return None
    new = EngineOutput(request_id=request.request_id, new_token_ids=token_ids)
    if ending is not None:
        new.finish_reason, new.stop_reason = ending
    if rest is not None:
        rows = rest.prompt_logprobs.get(request.request_id)
        new.logprobs = first_rows(rest.logprobs.get(request.request_id), len(token_ids))
        new.prompt_logprobs = unsent_prompt_rows(request, start, rows)
    if request.is_pooling and start + num_tokens == request.num_tokens:
        pooled = None if rest is None else rest.pooler_outputs.get(request.request_id)
        if pooled is None:
            new.finish_reason, new.error = FinishReason.ERROR, "the worker returned no vector"
        else:
            new.finish_reason, new.pooling_output = FinishReason.STOP, pooled
    if new.finish_reason is not None:
        new.num_preemptions = request.num_preemptions
    elif not token_ids and new.prompt_logprobs is None:
        return None
    return new


def take_sampled(
    request: Request, sampled: list[int], num_drafts: int
) -> tuple[list[int], Ending | None]:
    """Put sampled tokens into the request: accepted drafts and one more.

    Drafts that were not accepted are taken back: their KV is there, but the tokens will be computed
    again over it. Tokens behind one that ends the request are thrown away.

    Args:
        sampled: 1…1 + num_drafts tokens.

    Returns:
        The tokens that are the request's now, and whether it ends with them.

    Raises:
        ValueError: more tokens than can have been sampled.
    """
    if len(sampled) > 1 + num_drafts:
        raise ValueError(f"{request}: {len(sampled)} tokens sampled for {num_drafts} drafts")
    request.num_output_placeholders -= 1 + num_drafts
    if num_drafts:
        request.num_computed_tokens -= num_drafts + 1 - len(sampled)
        request.num_drafts_in_flight = 0
    if request.spec_token_ids:
        request.spec_token_ids = []  # they followed the tokens known until now
    for count, token_id in enumerate(sampled, start=1):
        ending = request.append_output(token_id)
        if ending is not None:
            return sampled[:count], ending
    return sampled, None


def first_rows(rows: LogprobRows | None, count: int) -> LogprobRows | None:
    """The rows of the first `count` tokens."""
    return None if rows is None else _rows(rows, slice(0, count))


def unsent_prompt_rows(
    request: Request, start: int, rows: LogprobRows | None
) -> LogprobRows | None:
    """The rows of a step's prompt logprobs that the user does not have yet: a preempted prompt is
    computed again, and its logprobs with it.

    Args:
        start: position of the first token computed in that step; row i is about the prompt token
            at position i + the larger one of start + 1 and `prompt_logprob_start`.
    """
    if rows is None or not len(rows):
        return None
    first = max(start + 1, request.first_prompt_logprob)
    num_sent = min(len(rows), max(0, request.num_prompt_logprobs_sent - first))
    request.num_prompt_logprobs_sent = max(request.num_prompt_logprobs_sent, first + len(rows))
    return _rows(rows, slice(num_sent, None)) if num_sent < len(rows) else None


def _rows(rows: LogprobRows, part: slice) -> LogprobRows:
    return LogprobRows(rows.token_ids[part], rows.logprobs[part], rows.ranks[part])
