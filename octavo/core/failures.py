"""What a failed step means for others.

Nothing can be trusted that such a step, and those after it, computed of the requests that failed.
They need not exist any more for others to have begun on it. So every hash given since then is
dropped, and every request that was admitted since then onto blocks of others starts again; nothing
of these was told to anybody yet, because steps are settled in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from octavo.contracts.step import RunnerOutput, SchedulerOutput
from octavo.core.block_pool import BlockPool
from octavo.core.request import Request
from octavo.core.step_plan import StepRecord


def errors_of(
    step: SchedulerOutput, output: RunnerOutput, sampled: Mapping[str, Sequence[int]]
) -> Mapping[str, str]:
    """Request id → why it failed in a step: what the worker says, or that it sampled nothing."""
    if all(map(sampled.get, step.samples)):
        return output.errors
    errors = {r: "no token was sampled" for r in step.samples if not sampled.get(r)}
    return errors | output.errors


def mark_failed(
    record: StepRecord, errors: Mapping[str, str], params: Mapping[str, str]
) -> tuple[list[Request], bool]:
    """The requests of a step that failed, and whether what they computed was trusted until now.

    Those that preemption took since then are among them: coming back only to fail, they would
    restart others, and be restarted, again and again.

    Args:
        errors: request id → why.
        params: request id → its field that is at fault. What such a request computed is sound.
    """
    failed = [s[0] for s in record.scheduled if s[0].request_id in errors]
    broken = [request for request in failed if request.request_id not in params]
    is_news = not all(request.has_failed for request in broken)
    for request in broken:
        request.has_failed = True
    return failed, is_news


def sharers_since(record: StepRecord, running: Iterable[Request]) -> list[Request]:
    """The running requests that began, in a step or after it, on blocks of others."""
    return [r for r in running if r.is_sharing and r.last_admitted_step >= record.step_id]


def drop_hashes(records: Iterable[StepRecord], pool: BlockPool) -> None:
    """Drop the hashes that blocks were given in these steps, and since the last of them."""
    for hashed in (*(record.hashed for record in records), pool.take_hashed()):
        for block in hashed:
            pool.drop_hash(block)
