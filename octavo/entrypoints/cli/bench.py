"""`octavo bench`: see `octavo.entrypoints.bench`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.config.engine import MAX_NUM_SEQS, EngineConfig
from octavo.entrypoints.cli.fetch import fetch_model
from octavo.entrypoints.cli.options import engine_options
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.contracts.features import SchedulerHook
    from octavo.engine.llm_engine import LLMEngine
    from octavo.entrypoints.bench.kernels import KernelOptions
    from octavo.entrypoints.bench.report import Report

app = typer.Typer(help="Measure this machine.", no_args_is_help=True, rich_markup_mode=None)

_FAKE_STEP_TIME = 0.1

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Output = Annotated[
    Path | None,
    typer.Option(help="Write the JSON to this file, too.", dir_okay=False),
]
Seed = Annotated[int, typer.Option(help="Seed of the workload.", min=0)]
Formats = Annotated[
    list[str],
    typer.Option(
        metavar="auto|float32|bfloat16|int8|int4|gguf", help="Of the weights; may be repeated."
    ),
]
BatchSizes = Annotated[
    list[int], typer.Option(help="Requests of a decode step; may be repeated.", min=1, max=4096)
]
ContextLen = Annotated[
    int, typer.Option(help="Tokens of context of each of them.", min=1, max=1_000_000)
]
PrefillLen = Annotated[
    int, typer.Option(help="Tokens of the prompt of a prefill step; 0: none.", min=0, max=1_000_000)
]


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


@app.command("pipeline")
@engine_options
def pipeline(
    engine: EngineConfig,
    depth: Annotated[
        list[int], typer.Option(help="Steps in flight; may be repeated.", min=1, max=8)
    ] = [1, 2, 3],  # noqa: B006
    batch_size: Annotated[list[int], _count("Requests at once; may be repeated.")] = [  # noqa: B006
        1,
        8,
        32,
    ],
    input_len: Annotated[int, _count("Tokens of a prompt.")] = 32,
    output_len: Annotated[int, _count("Tokens to generate.")] = 64,
    rounds: Annotated[int, _count("Interleaved rounds.")] = 3,
    served: Annotated[
        bool, typer.Option("--served", help="Engines in processes of their own, as in serve.")
    ] = False,
    workload_seed: Seed = 0,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """What steps in flight are worth: the same work at several depths (--pipeline-depth is not
    used); and what a step costs beside its forward. Every depth has an engine of its own, with 256
    MiB of KV cache unless an option says otherwise."""
    from octavo.entrypoints.bench.pipeline import PipelineOptions, run, started

    options = PipelineOptions(
        batch_sizes=tuple(batch_size),
        input_len=input_len,
        output_len=output_len,
        rounds=rounds,
        seed=workload_seed,
        is_served=served,
    )
    if (engine.cache.num_gpu_blocks_override, engine.cache.kv_cache_memory_bytes) == (None, None):
        engine = replace(engine, cache=replace(engine.cache, kv_cache_memory_bytes=256 << 20))
    fetch_model(engine.model)
    with started(engine, depth, is_served=served) as (drivers, vocab_size):
        report = run(drivers, options, model=engine.model.model, vocab_size=vocab_size)
    _print(report, as_json, output)


@app.command("sampler")
def sampler(
    num_rows: Annotated[int, _count("Requests in a step.")] = 64,
    vocab_size: Annotated[int, _count("Tokens of the vocabulary.")] = 49152,
    num_tokens: Annotated[int, _count("Tokens of a request's context, for penalties.")] = 256,
    rounds: Annotated[int, _count("Steps per kind; the median counts.")] = 15,
    num_threads: Annotated[
        int | None, _count("Threads. Default: one per core that this process may use.")
    ] = None,
    peer_python: Annotated[
        Path | None,
        typer.Option(help="Python of an environment with vLLM: its sampler, on the same logits."),
    ] = None,
    workload_seed: Seed = 0,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Choosing the tokens of one step, by kind of request. Beside it the ops' torch twin, where
    torch is installed."""
    from octavo.contracts.tensor import DType
    from octavo.entrypoints.bench.sampler import SamplerOptions, run
    from octavo.kernels.registry import create_backend

    options = SamplerOptions(
        num_rows=num_rows,
        vocab_size=vocab_size,
        num_tokens=num_tokens,
        rounds=rounds,
        num_threads=num_threads,
        seed=workload_seed,
    )
    with ExitStack() as opened:
        backends = {
            "octavo": opened.enter_context(closing(create_backend("cpu", DType.F32, num_threads)))
        }
        with suppress(ConfigError):  # no torch
            twin = create_backend("reference", DType.F32, num_threads)
            backends["torch_twin"] = opened.enter_context(closing(twin))
        report = run(backends, options, peer_python)
    _print(report, as_json, output)


@app.command("kernels")
@engine_options
def kernels(
    engine: EngineConfig,
    format: Formats = ["auto"],  # noqa: B006
    batch_size: BatchSizes = [1, 8, 32, 64],  # noqa: B006
    context_len: ContextLen = 100,
    prefill_len: PrefillLen = 1024,
    repeats: Annotated[int, _count("Runs of each step.")] = 10,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Each op against its roofline: bytes and flops counted from shapes, over this machine's read
    bandwidth and matrix peak, measured in the same run."""
    from octavo.entrypoints.bench.kernels import run_kernels

    options = _kernel_options(format, batch_size, context_len, prefill_len, repeats)
    fetch_model(engine.model)
    _print(run_kernels(engine, options), as_json, output)


@app.command("step")
@engine_options
def step(
    engine: EngineConfig,
    format: Formats = ["auto"],  # noqa: B006
    batch_size: BatchSizes = [1, 8, 32, 64],  # noqa: B006
    context_len: ContextLen = 100,
    prefill_len: PrefillLen = 1024,
    repeats: Annotated[int, _count("Runs of each step.")] = 10,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Whole forwards against their roofline, as `kernels` does for ops."""
    from octavo.entrypoints.bench.kernels import run_steps

    options = _kernel_options(format, batch_size, context_len, prefill_len, repeats)
    fetch_model(engine.model)
    _print(run_steps(engine, options), as_json, output)


@app.command("startup")
@engine_options
def startup(
    engine: EngineConfig,
    format: Formats = ["auto", "bfloat16", "int8", "int4"],  # noqa: B006
    repeats: Annotated[int, _count("Fresh processes of each format.")] = 5,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """Seconds from a fresh process to an engine and its first token, in process and as a server."""
    from octavo.entrypoints.bench.startup import StartupOptions, run

    fetch_model(engine.model)
    report = run(engine, StartupOptions(formats=tuple(format), repeats=repeats))
    _print(report, as_json, output)


def _kernel_options(
    formats: list[str], batch_sizes: list[int], context_len: int, prefill_len: int, repeats: int
) -> KernelOptions:
    from octavo.entrypoints.bench.kernels import KernelOptions

    return KernelOptions(
        formats=tuple(formats),
        batch_sizes=tuple(batch_sizes),
        context_len=context_len,
        prefill_len=prefill_len,
        repeats=repeats,
    )


@app.command("serve")
@engine_options
def serve(
    engine: EngineConfig,
    base_url: Annotated[
        str | None,
        typer.Option(help="A running server; without it one is started with the options below."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Key of that server.")] = None,
    fake_executor: Annotated[
        bool,
        typer.Option(
            "--fake-executor",
            help="Start the server without a model: what is around it is measured.",
        ),
    ] = False,
    num_prompts: Annotated[int, _count("Requests.")] = 256,
    input_len: Annotated[int, _count("Tokens of a random prompt.")] = 128,
    output_len: Annotated[int, _count("Tokens to generate.")] = 128,
    prompt_file: Annotated[
        Path | None,
        typer.Option(help="Prompts, one per line, instead of random ones; JSON if *.jsonl."),
    ] = None,
    request_rate: Annotated[
        float, typer.Option(help="Requests per second (Poisson); inf sends all at once.")
    ] = math.inf,
    max_concurrency: Annotated[
        int | None, _count("Most requests in progress. Default: no limit.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Of the sampling.", min=0, max=2)] = 0.0,
    workload_seed: Seed = 0,
    as_json: Json = False,
    output: Output = None,
) -> None:
    """A server and its clients: latencies, throughput, CPU time per token."""
    from octavo.entrypoints.bench.serve import ServeOptions, run
    from octavo.entrypoints.bench.server_process import ServerProcess, engine_arguments
    from octavo.entrypoints.http_client import Endpoint

    options = ServeOptions(
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        prompt_file=prompt_file,
        request_rate=request_rate,
        max_concurrency=max_concurrency,
        temperature=temperature,
        seed=workload_seed,
    )
    if base_url is not None:
        if fake_executor or (given := engine_arguments(engine)):
            names = "--fake-executor" if fake_executor else given[0].partition("=")[0]
            raise ConfigError(f"{names} is for a server that is started here: drop --base-url")
        _print(run(Endpoint(base_url, api_key), options), as_json, output)
        return
    if fake_executor:
        engine = _without_model(engine, min(num_prompts, max_concurrency or num_prompts))
    fetch_model(engine.model)
    with ServerProcess(engine_arguments(engine)) as server:
        report = run(Endpoint(server.url), options, cpu_seconds=server.cpu_seconds)
    _print(report, as_json, output)


def _without_model(engine: EngineConfig, num_streams: int) -> EngineConfig:
    """The same around the fake executor, where all streams run at once, and slowly enough that a
    stream has an event for every token: a front end that cannot keep up joins them."""
    seconds = engine.device.fake_step_time or _FAKE_STEP_TIME
    return replace(
        engine,
        model=replace(engine.model, load_format="dummy"),
        scheduler=replace(engine.scheduler, max_num_seqs=min(num_streams, MAX_NUM_SEQS)),
        device=replace(engine.device, distributed_executor_backend="fake", fake_step_time=seconds),
    )


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
    _print(report, as_json, output)


def _print(report: Report, as_json: bool, output: Path | None) -> None:
    if output is not None:
        output.write_text(report.to_json() + "\n")
    typer.echo(report.to_json() if as_json else report.to_text())
