"""The command line of `benchmarks/peers.py`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.side_by_side.contestants import CONTESTANTS, PAIRS, Contestant
from benchmarks.side_by_side.results import Results, table
from benchmarks.side_by_side.session import loaded, run_round
from benchmarks.side_by_side.workloads import WORKLOADS, Workload
from octavo.config.engine import EngineConfig
from octavo.entrypoints.bench.costs import Cost, total
from octavo.entrypoints.bench.report import machine
from octavo.entrypoints.bench.step_lab import step_lab
from octavo.entrypoints.cli.fetch import fetch_model
from octavo.env import octavo_home
from octavo.kernels.cpu_ceilings import measure_ceilings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the session that the arguments ask for; print the table. Returns the exit status."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the drivers
    options = _parser().parse_args(arguments)
    contestants = {name: CONTESTANTS[name] for name in options.contestants}
    workloads = {name: WORKLOADS[name] for name in options.workloads}
    weights = export_weights(options.model, options.cache)
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
    with loaded(starts, results) as drivers:
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
    parser.add_argument("--rounds", type=int, default=5, help="at least 5 for a claim")
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument(
        "--cache", type=Path, default=octavo_home() / "benchmarks",
        help="folder of environments and exported weights (several GB)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="write everything measured to this JSON file")
    return parser


def export_weights(model: str, cache: Path) -> dict[str, Path]:
    """The model in every form that a contestant needs: the very same weights, by `octavo export`.
    What is there is kept."""
    from octavo.config.sections import ModelConfig

    file = fetch_model(ModelConfig(model=model))
    folder = cache / "weights" / file.stem
    folder.mkdir(parents=True, exist_ok=True)
    exports = {"bf16 folder": ("hf", folder / "bf16"), "bf16 gguf": ("gguf", folder / "bf16.gguf")}
    for kind, out in exports.values():
        if not out.exists():
            command = ["octavo", "export", str(file), str(out), "--format", kind]
            subprocess.run(
                [sys.executable, "-m", *command, "--dtype", "bfloat16"], check=True, text=True
            )
    return {"file": Path(file), **{name: out for name, (_, out) in exports.items()}}


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
