"""Start: how long a fresh process takes to an engine, and `octavo serve` to its first token."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np

from octavo.config.engine import EngineConfig
from octavo.entrypoints.bench.kernels import in_format
from octavo.entrypoints.bench.report import Report, machine
from octavo.entrypoints.bench.server_process import ServerProcess, engine_arguments
from octavo.entrypoints.http_client import Endpoint
from octavo.errors import OctavoError

_CHILD = "octavo.entrypoints.bench.load_once"
_PROMPT = "Hello, my name is"


@dataclass(frozen=True, kw_only=True)
class StartupOptions:
    """What is started.

    Attributes:
        formats: of the weights (`kernels.FORMATS`).
        repeats: fresh processes of each; the formats take turns.
    """

    formats: tuple[str, ...] = ("auto", "bfloat16", "int8", "int4")
    repeats: int = 5


def run(config: EngineConfig, options: StartupOptions) -> Report:
    """A row per format: medians of what `load_once` prints, and of a server from the start of its
    process until it is ready and until the first token of its first request.

    Raises:
        ConfigError: an unknown format.
        OctavoError: an engine or a server does not start.
    """
    configs = {name: in_format(config, name) for name in options.formats}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in configs}
    for _ in range(options.repeats):
        for name, one in configs.items():
            measured[name].append({**_load(one), **_serve(one)})
    rows = [{"format": name, **_medians(runs)} for name, runs in measured.items()]
    head: dict[str, Any] = {"model": config.model.model, **asdict(options)}
    return Report(benchmark="startup", config=head, results={"startup": rows}, machine=machine())


def _load(config: EngineConfig) -> dict[str, float]:
    child = subprocess.run(
        [sys.executable, "-m", _CHILD],
        input=msgspec.json.encode(config),
        capture_output=True,
        check=False,
    )
    if child.returncode:
        last = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise OctavoError(f"the engine did not start: {''.join(last)}")
    times: dict[str, float] = json.loads(child.stdout)
    return times


def _serve(config: EngineConfig) -> dict[str, float]:
    start = time.perf_counter()
    with ServerProcess(engine_arguments(config)) as server:
        ready = time.perf_counter()
        body = {"prompt": _PROMPT, "max_tokens": 1, "stream": True}
        events = Endpoint(server.url).events("/v1/completions", body)
        next(events)
        first = time.perf_counter()
        list(events)
    return {"serve_ready_s": ready - start, "serve_first_token_s": first - start}


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
