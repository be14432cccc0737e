"""The engines in the table: which environment, which weights, which settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.side_by_side.driver_process import DRIVERS, DriverProcess
from benchmarks.side_by_side.environments import (
    LLAMA_CPP,
    TRANSFORMERS,
    VLLM,
    Environment,
    install,
    preloads,
)

ROOT = Path(__file__).resolve().parents[2]

Weights = Literal["bf16 folder", "bf16 gguf", "file"]
"""Exported by Octavo in bfloat16, as safetensors or as GGUF; or the model's own file."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One column of the table.

    Attributes:
        environment: None is the one that runs this.
        driver: a file of `drivers/`.
        arguments: of the driver, beside model and threads.
        engine_options: Octavo's options for the same weights, by which bytes and flops are counted.
    """

    name: str
    environment: Environment | None
    driver: str
    weights: Weights
    arguments: Mapping[str, Any] = field(default_factory=dict)
    engine_options: Mapping[str, Any] = field(default_factory=dict)

    def start(self, cache: Path, weights: Mapping[str, Path], num_threads: int) -> DriverProcess:
        """Start its driver. Raises InstallError."""
        python = Path(sys.executable)
        variables = {"OMP_NUM_THREADS": str(num_threads), "HF_HUB_OFFLINE": "1"}
        if self.environment is None:
            variables["PYTHONPATH"] = str(ROOT)  # of this tree, installed or not
        else:
            python = install(self.environment, cache)
        if self.environment is VLLM:
            variables |= vllm_variables(python, cache, num_threads)
        return DriverProcess(
            self.name,
            [str(python), str(DRIVERS / self.driver), self._arguments(weights, num_threads)],
            variables,
            cache / "logs" / f"{self.name.replace(' ', '-')}.log",
        )

    def _arguments(self, weights: Mapping[str, Path], num_threads: int) -> str:
        model = str(weights[self.weights])
        return json.dumps({"model": model, "num_threads": num_threads, **self.arguments})


def vllm_variables(python: Path, cache: Path, num_threads: int) -> dict[str, str]:
    """What vLLM's documentation asks for on a CPU."""
    return {
        "LD_PRELOAD": ":".join(map(str, preloads(python, cache))),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}" if num_threads > 1 else "0",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "VLLM_NO_USAGE_STATS": "1",
        # Time passes for its clocks while it is stopped.
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400",
    }


_BF16 = {"dtype": "bfloat16"}

CONTESTANTS = {
    c.name: c
    for c in (
        Contestant(
            name="Octavo bf16",
            environment=None,
            driver="octavo_driver.py",
            weights="bf16 folder",
            arguments=_BF16,
            engine_options=_BF16,
        ),
        Contestant(
            name="Octavo int8",
            environment=None,
            driver="octavo_driver.py",
            weights="bf16 folder",
            arguments={"quantization": "int8"},
            engine_options={"quantization": "int8"},
        ),
        Contestant(name="Octavo file", environment=None, driver="octavo_driver.py", weights="file"),
        Contestant(
            name="vLLM bf16",
            environment=VLLM,
            driver="vllm_driver.py",
            weights="bf16 folder",
            engine_options=_BF16,
        ),
        Contestant(
            name="llama.cpp bf16",
            environment=LLAMA_CPP,
            driver="llama_cpp_driver.py",
            weights="bf16 gguf",
            engine_options=_BF16,
        ),
        Contestant(
            name="llama.cpp file",
            environment=LLAMA_CPP,
            driver="llama_cpp_driver.py",
            weights="file",
        ),
        Contestant(
            name="transformers bf16",
            environment=TRANSFORMERS,
            driver="transformers_driver.py",
            weights="bf16 folder",
            engine_options=_BF16,
        ),
    )
}

PAIRS = (
    ("Octavo bf16", "vLLM bf16"),
    ("Octavo bf16", "llama.cpp bf16"),
    ("Octavo bf16", "transformers bf16"),
    ("Octavo file", "llama.cpp file"),
    ("Octavo int8", "vLLM bf16"),
)
"""Whose speeds are divided."""
