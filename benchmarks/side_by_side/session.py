"""A session: engines loaded once, then rounds in which each does the workload in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.side_by_side.driver_process import DriverError, DriverProcess
from benchmarks.side_by_side.results import Results, Run, roofline_seconds
from benchmarks.side_by_side.workloads import Workload
from octavo.entrypoints.bench.costs import Cost
from octavo.kernels.cpu_ceilings import Ceilings

READY_SECONDS = 600.0
ANSWER_SECONDS = 600.0
_WARM_UP_TOKENS = 4

Start = Callable[[], DriverProcess]


@contextmanager
def loaded(
    starts: Mapping[str, Start], results: Results, vocab_size: int
) -> Iterator[dict[str, DriverProcess]]:
    """Start drivers one after the other, warm each up, and pause it. One that cannot be had is
    noted in `results.failed` and left out."""
    with ExitStack() as stack:
        drivers = {}
        for name, start in starts.items():
            try:
                driver = stack.enter_context(start())
                driver.wait_ready(READY_SECONDS)
                _warm_up(driver, results.workloads.values(), vocab_size)
            except Exception as error:
                results.failed[name] = str(error)
                print(f"without {name}: {error}", file=sys.stderr)
                continue
            driver.pause()
            results.versions[name] = driver.versions
            drivers[name] = driver
        yield drivers


def _warm_up(driver: DriverProcess, workloads: Iterable[Workload], vocab_size: int) -> None:
    """The beginning of every workload: what is compiled or touched at first is, then."""
    for workload in workloads:
        message = {
            "command": "generate",
            "prompts": workload.prompts(vocab_size, "warm-up"),
            "num_tokens": min(_WARM_UP_TOKENS, workload.output_len),
        }
        driver.ask(message, ANSWER_SECONDS)


def run_round(
    number: int,
    workload: Workload,
    drivers: Mapping[str, DriverProcess],
    *,
    vocab_size: int,
    costs: Mapping[str, Sequence[Cost]],
    measure: Callable[[], Ceilings],
    results: Results,
) -> None:
    """Every engine does the workload once, the machine's ceilings measured before and after each.

    Args:
        number: of the round: decides the prompts and who begins.
        costs: contestant → what each step of the workload costs, where it was counted.
        measure: of the ceilings.
        results: where the runs go. An engine that fails is noted there and left out.
    """
    prompts = workload.prompts(vocab_size, str(number))
    names = [name for name in drivers if name not in results.failed]
    shift = number % max(1, len(names))
    before = measure()
    for name in names[shift:] + names[:shift]:
        try:
            answer = _ask(drivers[name], prompts, workload.output_len)
        except DriverError as error:
            results.failed[name] = str(error)
            print(f"without {name}: {error}", file=sys.stderr)
            continue
        after = measure()
        results.runs.append(
            Run(
                workload=workload.name,
                round=number,
                contestant=name,
                seconds=answer["seconds"],
                first_tokens=[ids[0] for ids in answer["token_ids"]],
                before=before,
                after=after,
                roofline_seconds=roofline_seconds(costs[name], before, after)
                if name in costs
                else None,
            )
        )
        before = after


def _ask(driver: DriverProcess, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
    """A workload's answer. Raises DriverError, also where tokens are missing."""
    driver.resume()
    try:
        message = {"command": "generate", "prompts": prompts, "num_tokens": num_tokens}
        answer = driver.ask(message, ANSWER_SECONDS)
    finally:
        driver.pause()
    counts = {len(ids) for ids in answer["token_ids"]}
    if len(answer["token_ids"]) != len(prompts) or counts != {num_tokens}:
        raise DriverError(f"{driver.name} gave {sorted(counts)} tokens instead of {num_tokens}")
    return answer
