"""The command line of `benchmarks/peers.py`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.side_by_side import online
from benchmarks.side_by_side.contestants import CONTESTANTS, PAIRS, ROOT, Contestant
from benchmarks.side_by_side.results import Results, table
from benchmarks.side_by_side.session import loaded, run_round
from benchmarks.side_by_side.workloads import WORKLOADS, Workload
from octavo.config.engine import EngineConfig
from octavo.config.sections import ModelConfig
from octavo.entrypoints.bench.costs import Cost, total
from octavo.entrypoints.bench.report import machine
from octavo.entrypoints.bench.step_lab import step_lab
from octavo.entrypoints.cli.fetch import fetch_model
from octavo.env import octavo_home
from octavo.kernels.cpu_ceilings import measure_ceilings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the session that the arguments ask for; print the table. Returns the exit status."""
    options = _parser().parse_args(arguments)
    options.cache = options.cache.absolute()
    return _online(options) if options.online else _offline(options)


def _offline(options: argparse.Namespace) -> int:
    contestants = {name: CONTESTANTS[name] for name in options.contestants}
    workloads = {name: WORKLOADS[name] for name in options.workloads}
    wanted = {c.weights for c in contestants.values()} | {"bf16 folder"}
    weights = export_weights(options.model, options.cache, wanted)
    results = Results(
        machine=machine(),
        settings={
            "model": options.model,
            "num_threads": options.num_threads,
            "rounds": options.rounds,
        },
        workloads=workloads,
    )
    costs = count_costs(contestants, workloads, weights)
    vocab_size = json.loads((weights["bf16 folder"] / "config.json").read_text())["vocab_size"]
    starts = {
        name: partial(c.start, options.cache, weights, options.num_threads)
        for name, c in contestants.items()
    }
    with loaded(starts, results, vocab_size) as drivers:
        for number in range(options.rounds):
            for workload in workloads.values():
                run_round(
                    number,
                    workload,
                    drivers,
                    vocab_size=vocab_size,
                    costs={name: each[workload.name] for name, each in costs.items()},
                    measure=partial(measure_ceilings, options.num_threads),
                    results=results,
                )
                print(f"round {number + 1} of {options.rounds}: {workload.name}", file=sys.stderr)
    print(table(results, PAIRS))
    if options.output is not None:
        options.output.write_text(results.to_json(PAIRS) + "\n")
    return 0 if results.runs else 1


def _online(options: argparse.Namespace) -> int:
    weights = export_weights(options.model, options.cache, {"bf16 folder", "bf16 gguf"})
    prompts = options.cache / "prompts.txt"
    runs: list[online.OnlineRun] = []
    with ExitStack() as stack:
        servers = {}
        for name, start in online.SERVERS.items():
            port = online.free_port()
            server = stack.enter_context(start(options.cache, weights, options.num_threads, port))
            server.wait_ready(online.READY_SECONDS)
            server.pause()
            servers[name] = server
        for number in range(-1, options.rounds):  # the first is not counted: compiled, warmed up
            for concurrency in online.CONCURRENCIES:
                lines = online.prompts(2 * concurrency, f"{number} {concurrency}")
                prompts.write_text("".join(f"{line}\n" for line in lines))
                found = online.run_round(number, concurrency, servers, prompts)
                runs += found if number >= 0 else []
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    print(online.table(runs))
    if options.output is not None:
        settings = {"model": options.model, "num_threads": options.num_threads}
        text = online.to_json(runs, machine=machine(), settings=settings)
        options.output.write_text(text + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="peers.py",
        description="Octavo and other engines on the same weights and prompts, side by side. "
        "Each gets its own virtual environment, made at the first run.",
    )
    parser.add_argument("--model", default="smollm2-135m", help="alias, folder or GGUF file")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME",
        help=f"of {', '.join(CONTESTANTS)}",
    )  # fmt: skip
    parser.add_argument(
        "--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME",
        help=f"of {', '.join(WORKLOADS)}",
    )  # fmt: skip
    parser.add_argument(
        "--online", action="store_true",
        help="servers instead: 64 tokens in, 64 out, over HTTP from one client",
    )  # fmt: skip
    parser.add_argument("--rounds", type=_positive, default=5, help="at least 5 for a claim")
    parser.add_argument("--num-threads", type=_positive, default=2)
    parser.add_argument(
        "--cache", type=Path, default=octavo_home() / "benchmarks",
        help="folder of environments and exported weights (several GB)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="write everything measured to this JSON file")
    return parser


def _positive(text: str) -> int:
    """For argparse. Raises ValueError."""
    if (value := int(text)) < 1:
        raise ValueError
    return value


def export_weights(model: str, cache: Path, wanted: Collection[str]) -> dict[str, Path]:
    """The model in the forms that are wanted: the very same weights, by `octavo export`. What is
    there is kept."""
    file = fetch_model(ModelConfig(model=model)).absolute()
    folder = cache / "weights" / file.stem
    folder.mkdir(parents=True, exist_ok=True)
    forms = {"bf16 folder": ("hf", folder / "bf16"), "bf16 gguf": ("gguf", folder / "bf16.gguf")}
    for name, (kind, out) in forms.items():
        if name in wanted and not out.exists():
            arguments = [str(file), str(out), "--format", kind, "--dtype", "bfloat16"]
            command = [sys.executable, "-m", "octavo", "export", *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return {"file": file, **{name: out for name, (_, out) in forms.items()}}


def count_costs(
    contestants: Mapping[str, Contestant],
    workloads: Mapping[str, Workload],
    weights: Mapping[str, Path],
) -> dict[str, dict[str, list[Cost]]]:
    """Contestant → workload → cost of each step, by the bytes that Octavo keeps of the same weights
    in the same format."""
    shapes = [shape for w in workloads.values() for shape in w.steps()]
    known: dict[str, dict[str, list[Cost]]] = {}
    for c in contestants.values():
        key = f"{c.weights} {dict(c.engine_options)}"
        if key not in known:
            options = {"model": str(weights[c.weights]), **c.engine_options}
            with step_lab(EngineConfig.from_flat(**options), shapes) as lab:
                known[key] = {
                    name: [total(lab.counted, step) for step in w.steps()]
                    for name, w in workloads.items()
                }
    return {c.name: known[f"{c.weights} {dict(c.engine_options)}"] for c in contestants.values()}
