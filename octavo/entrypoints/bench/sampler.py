"""The sampler alone: what choosing the tokens of a step costs, by kind of request.

All rows of a step ask for the same. Measured is `Sampler.sample`, from the logits to the token ids;
beside the CPU back end's ops their torch twin, and another engine's sampler on the same logits.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData
from octavo.entrypoints.bench.report import Report, machine
from octavo.errors import ConfigError
from octavo.kernels.ops import Backend, Graph, Ops, StepInputs, StepLimits
from octavo.sample.sampler import Sampler
from octavo.sample.stage import MaskedRows, SampleBatch

BITMASK = "bitmask"
"""The kind that has a bitmask per row, as a grammar fills it, and is greedy."""

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 0.8, "top_k": 40},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "min-p": {"temperature": 0.8, "min_p": 0.05},
    "top-k, top-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    "penalties": {
        "temperature": 0.0,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
    },
    BITMASK: {"temperature": 0.0},
    "logprobs": {"temperature": 0.0, "logprobs": 20},
}
"""Kind → sampling parameters, without the seed."""

LOGITS = {"peaked": 3.0, "flat": 0.01}
"""Logits are normal numbers of this deviation. Peaked ones are as models give them: hundreds of
tokens in a top-p of 0.9. Flat ones are the hard case: tens of thousands."""

_PEER_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "vllm_sampler.py"
_PEER_SECONDS = 600
_ALLOWED_SHARE = 0.3
_MAX_LOGITS = 1 << 28


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    """A step of `num_rows` requests.

    Attributes:
        num_tokens: of each request's context, one half prompt, one half output; for penalties.
        rounds: how often each is measured; the median counts.
        seconds: a kind that has taken so long is not measured again.
        num_threads: of the CPU back end and of the peer; None for one per core.

    Raises:
        ConfigError: more logits than 2^28.
    """

    num_rows: int = 64
    vocab_size: int = 49152
    num_tokens: int = 256
    rounds: int = 15
    seconds: float = 1.0
    num_threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_rows * self.vocab_size > _MAX_LOGITS:
            raise ConfigError(
                f"num_rows={self.num_rows} times vocab_size={self.vocab_size} is more than the "
                f"{_MAX_LOGITS:,} logits of this benchmark; ask for fewer"
            )


class Workload:
    """The inputs of all kinds.

    Attributes:
        logits: name → [num_rows, vocab_size] float32.
        bitmask: [num_rows, ceil(vocab_size / 32)] int32.
        token_ids: [num_rows, num_tokens] int32.
    """

    def __init__(self, options: SamplerOptions) -> None:
        rng = np.random.default_rng(options.seed)
        shape = (options.num_rows, options.vocab_size)
        self.logits = {
            name: rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
            for name, deviation in LOGITS.items()
        }
        num_words = -(-options.vocab_size // 32)
        bits = rng.random((options.num_rows, num_words * 32)) < _ALLOWED_SHARE
        packed = np.packbits(bits, axis=1, bitorder="little").view("<i4")
        self.bitmask = np.ascontiguousarray(packed, dtype=np.int32)
        size = (options.num_rows, options.num_tokens)
        self.token_ids = rng.integers(0, options.vocab_size, size, dtype=np.int32)


class Bench:
    """One back end's sampler."""

    def __init__(self, backend: Backend, options: SamplerOptions, workload: Workload) -> None:
        self._backend = backend
        self._options = options
        self._workload = workload
        self._graph = _capture(backend, options)

    def milliseconds(self, logits: np.ndarray, kind: str) -> float:
        """The median of a step."""
        sampler = self._sampler(KINDS[kind])
        batch = self._batch(has_bitmask=kind == BITMASK)
        step = StepInputs.of_rows(len(logits), {"logits": logits})
        times: list[float] = []
        while len(times) < self._options.rounds and sum(times) < self._options.seconds:
            on_device = self._graph.replay(step)["logits"]
            start = time.perf_counter()
            sampler.sample(on_device, batch)
            times.append(time.perf_counter() - start)
        return 1e3 * float(np.median(times))

    def _sampler(self, params: dict[str, Any]) -> Sampler:
        options, token_ids = self._options, self._workload.token_ids
        sampler = Sampler(self._backend, num_rows=options.num_rows, vocab_size=options.vocab_size)
        for row in range(options.num_rows):
            request = NewRequestData(
                request_id=str(row),
                token_ids=token_ids[row].tolist(),
                num_prompt_tokens=options.num_tokens // 2,
                block_ids=(),
                num_computed_tokens=0,
                sampling_params=SamplingParams(seed=row, **params),
            )
            sampler.add_request(row, request)
        sampler.apply_staged_writes()
        return sampler

    def _batch(self, *, has_bitmask: bool) -> SampleBatch:
        rows = np.arange(self._options.num_rows, dtype=np.int32)
        return SampleBatch(
            rows=rows,
            offsets=np.zeros_like(rows),
            positions=np.full(len(rows), self._options.num_tokens),
            token_ids=self._workload.token_ids,
            grammar=MaskedRows(rows=rows, bitmask=self._workload.bitmask) if has_bitmask else None,
        )


def run(
    backends: Mapping[str, Backend], options: SamplerOptions, peer_python: Path | None = None
) -> Report:
    """Every kind on every back end, and on vLLM's sampler.

    Args:
        backends: name of the column → back end.
        peer_python: the Python of an environment with vLLM.

    Raises:
        ConfigError: the peer cannot be run.
    """
    workload = Workload(options)
    benches = {name: Bench(backend, options, workload) for name, backend in backends.items()}
    peer = _run_peer(peer_python, options, workload) if peer_python is not None else {}
    table = []
    for shape, logits in workload.logits.items():
        for kind in KINDS:
            row: dict[str, Any] = {"logits": shape, "kind": kind}
            for name, bench in benches.items():
                row[f"{name}_ms"] = bench.milliseconds(logits, kind)
            if peer:
                row["vllm_ms"] = peer["milliseconds"][shape][kind]
            table.append(row)
    config: dict[str, Any] = {**asdict(options), "kinds": KINDS, "logits": LOGITS}
    if peer:
        config["peer"] = peer["peer"]
    return Report(
        benchmark="sampler", config=config, results={"one step": table}, machine=machine()
    )


def _run_peer(python: Path, options: SamplerOptions, workload: Workload) -> dict[str, Any]:
    """What benchmarks/vllm_sampler.py prints."""
    if not _PEER_SCRIPT.is_file():
        raise ConfigError(
            f"--peer-python needs benchmarks/{_PEER_SCRIPT.name}, which is not in the package; "
            "run from a checkout of the repository"
        )
    with tempfile.TemporaryDirectory() as folder:
        for name, logits in workload.logits.items():
            np.save(Path(folder) / f"{name}.npy", logits)
        np.save(Path(folder) / "bitmask.npy", workload.bitmask)
        np.save(Path(folder) / "token_ids.npy", workload.token_ids)
        task = {**asdict(options), "kinds": KINDS, "logits": list(LOGITS), "bitmask": BITMASK}
        (Path(folder) / "task.json").write_text(json.dumps(task))
        try:
            done = subprocess.run(
                [str(python), str(_PEER_SCRIPT), folder],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PEER_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"--peer-python={python} cannot be run: {error}") from error
    answer = done.stdout.splitlines()[-1:]
    if done.returncode != 0 or not answer:
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise ConfigError(f"--peer-python={python} failed: {last[0]}")
    return json.loads(answer[0])


def _capture(backend: Backend, options: SamplerOptions) -> Graph:
    """A graph that gives its input as logits: the back end's own array, new in every step."""

    def forward(ops: Ops) -> None:
        ops.output("logits", ops.select_rows(ops.input("logits", options.vocab_size)))

    limits = StepLimits(
        max_tokens=options.num_rows,
        max_requests=1,
        max_logit_rows=options.num_rows,
        max_blocks_per_request=1,
        max_position=options.num_rows,
    )
    return backend.capture(forward, limits)
