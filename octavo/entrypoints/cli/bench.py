"""`octavo bench`: see `octavo.entrypoints.bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.fetch import fetch_model
from octavo.entrypoints.cli.options import engine_options

if TYPE_CHECKING:
    from octavo.contracts.features import SchedulerHook
    from octavo.engine.llm_engine import LLMEngine
    from octavo.entrypoints.bench.report import Report

app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Output = Annotated[
    Path | None,
    typer.Option(help="Write the JSON to this file, too.", dir_okay=False),
]
Seed = Annotated[int, typer.Option(help="Seed of the workload.", min=0)]


def _count(text: str) -> typer.models.OptionInfo:
    return typer.Option(help=text, min=1, max=1_000_000)


@app.command("throughput")
@engine_options
def throughput(
    engine: EngineConfig,
    num_prompts: Annotated[int, _count("Requests.")] = 32,
    input_len: Annotated[int, _count("Mean tokens of a prompt.")] = 128,
    output_len: Annotated[int, _count("Mean tokens to generate.")] = 64,
    workload_seed: Seed = 0,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Many requests at once: tokens per second, steps, KV use."""
    from octavo.entrypoints.bench.throughput import ThroughputOptions, run

    options = ThroughputOptions(
        num_prompts=num_prompts, input_len=input_len, output_len=output_len, seed=workload_seed
    )
    _bench(engine, lambda e: run(e, options), as_json, output)


@app.command("latency")
@engine_options
def latency(
    engine: EngineConfig,
    input_len: Annotated[list[int], _count("Tokens of the prompt; may be repeated.")] = [  # noqa: B006
        32,
        256,
        1024,
    ],
    output_len: Annotated[int, _count("Tokens to generate.")] = 32,
    repeats: Annotated[int, _count("Runs per length.")] = 3,
    workload_seed: Seed = 0,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """One request alone: time to first token, time between tokens."""
    from octavo.entrypoints.bench.latency import LatencyOptions, run

    options = LatencyOptions(
        input_lens=tuple(input_len), output_len=output_len, repeats=repeats, seed=workload_seed
    )
    _bench(engine, lambda e: run(e, options), as_json, output)


@app.command("paging")
@engine_options
def paging(
    engine: EngineConfig,
    num_requests: Annotated[int, _count("Requests of the trace.")] = 64,
    input_len: Annotated[int, _count("Mean tokens of a prompt.")] = 32,
    output_len: Annotated[int, _count("Mean tokens to generate.")] = 48,
    workload_seed: Seed = 0,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """What paging is worth: waste, continuous against static batching, a shared prefix.

    The pool has 96 blocks, so that the trace fills it, unless an option says otherwise.
    """
    from octavo.entrypoints.bench.paging import Occupancy, PagingOptions, run

    options = PagingOptions(
        num_requests=num_requests, input_len=input_len, output_len=output_len, seed=workload_seed
    )
    if (engine.cache.num_gpu_blocks_override, engine.cache.kv_cache_memory_bytes) == (None, None):
        engine = replace(engine, cache=replace(engine.cache, num_gpu_blocks_override=97))
    occupancy = Occupancy()
    _bench(engine, lambda e: run(e, options, occupancy), as_json, output, hooks=[occupancy])


def _bench(
    config: EngineConfig,
    run: Callable[[LLMEngine], Report],
    as_json: bool,
    output: Path | None,
    hooks: Sequence[SchedulerHook] = (),
) -> None:
    from octavo.engine.llm_engine import LLMEngine
    from octavo.worker.memory import format_plan

    fetch_model(config.model)
    with LLMEngine.from_config(config, hooks) as engine:
        if not as_json:
            typer.echo(format_plan(engine.info.memory_plan))
        report = run(engine)
    if output is not None:
        output.write_text(report.to_json() + "\n")
    typer.echo(report.to_json() if as_json else report.to_text())
