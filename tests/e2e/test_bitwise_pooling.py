"""Scheduling never changes a vector: to the bit, in every condition, among requests that generate.

And vectors are those of transformers: with the same float32 weights every value within 2e-4 (they
have length 1), in bfloat16 with a cosine of 0.999.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.contracts.messages import RequestOutput
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.sampling_params import SamplingParams
from octavo.entrypoints.llm import LLM
from octavo.models.files import resolve_model
from tests.e2e.lab import TINY_VOCAB, Ask, Lab, make_company, write_tiny
from tests.e2e.test_bitwise import DTYPES, PLAIN, TINY_MODELS
from tests.e2e.theirs import their_model

TYPES = ("LAST", "MEAN", "CLS")
LENGTHS = (1, 16, 41, 275)
OPTIONS: dict[str, dict[str, Any]] = {
    "budget-16": {"max_num_batched_tokens": 16},
    "threads-2-depth-2-threshold-7": {
        "num_threads": 2,
        "pipeline_depth": 2,
        "long_prefill_token_threshold": 7,
    },
    "budget-97-depth-3": {"max_num_batched_tokens": 97, "pipeline_depth": 3},
}


def probes(vocab_size: int = TINY_VOCAB, lengths: tuple[int, ...] = LENGTHS) -> list[Ask]:
    rng = np.random.default_rng(4)
    asks = []
    for length in lengths:
        prompt = rng.integers(10, vocab_size - 1, length).tolist()
        for kind in TYPES:
            params = PoolingParams(pooling_type=kind)
            asks.append(Ask(name=f"{kind}-{length}", prompt=prompt, params=params))
    more = PoolingParams(pooling_type="MEAN", dimensions=24, normalize=False)
    return [*asks, Ask(name="short", prompt=prompt, params=more)]


def vectors_of(outputs: Mapping[str, RequestOutput]) -> dict[str, bytes]:
    """Name → the vector's bytes."""
    vectors = {}
    for name, output in outputs.items():
        if not name.startswith("other"):
            assert output.pooled is not None, output
            assert output.pooled.dtype == np.float32
            vectors[name] = output.pooled.tobytes()
    return vectors


@pytest.fixture(scope="module", params=TINY_MODELS)
def tiny_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp(request.param), **TINY_MODELS[request.param])


@pytest.fixture(scope="module", params=DTYPES)
def reference(request: pytest.FixtureRequest, tiny_folder: Path) -> tuple[str, dict[str, bytes]]:
    vectors: dict[str, bytes] = {}
    with closing(Lab(tiny_folder, dtype=request.param, max_model_len=320, **PLAIN)) as lab:
        for probe in probes():
            vectors |= vectors_of(lab.run([probe]))
    assert len(set(vectors.values())) == len(LENGTHS) * 3 + 1 - 2  # of one token all are the same
    return request.param, vectors


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_tiny(
    tiny_folder: Path, reference: tuple[str, dict[str, bytes]], options: dict[str, Any]
) -> None:
    dtype, expected = reference
    options = {"num_threads": 1, "max_model_len": 320} | options
    with closing(Lab(tiny_folder, dtype=dtype, **options)) as lab:
        if lab.engine.config.device.num_threads == 1:  # steps of more are slow on a busy machine
            for probe in probes():
                cold, hot = lab.run([probe]), lab.run([probe])
                assert vectors_of(cold) == vectors_of(hot) == {probe.name: expected[probe.name]}
                reads = probe.name.startswith("LAST") and len(probe.prompt) > 16
                assert (hot[probe.name].num_cached_tokens > 0) is reads
            lab.forget()
        company = make_company(
            12, TINY_VOCAB, lengths=[1, 16, 40, 100], max_tokens=10, num_steps=20
        )
        assert vectors_of(lab.run([*probes(), *company])) == expected


@pytest.mark.parametrize("kind", TYPES)
def test_preempted(tiny_folder: Path, reference: tuple[str, dict[str, bytes]], kind: str) -> None:
    """Parts of a vector that a request had when it lost its blocks do not count twice."""
    dtype, expected = reference
    options = {"num_gpu_blocks_override": 34, "max_num_batched_tokens": 24, "num_threads": 1}
    growing = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    growers = [Ask(name=f"other-{i}", prompt=[20 + i] * 9, params=growing) for i in range(8)]
    probe = next(p for p in probes() if p.name == f"{kind}-275")
    late = Ask(name=probe.name, prompt=probe.prompt, params=probe.params, step=4)
    with closing(Lab(tiny_folder, dtype=dtype, max_model_len=320, **options)) as lab:
        assert vectors_of(lab.run([*growers, late])) == {probe.name: expected[probe.name]}
        if "sliding_window" not in (tiny_folder / "config.json").read_text():
            assert lab.preempted.counts[probe.name] >= 1


# -------------------------------------------------------------------- transformers


@torch.no_grad()
def their_vector(model: Any, prompt: list[int], kind: str) -> np.ndarray:
    """[hidden_size] float64 of length 1."""
    states = model.model(torch.tensor([prompt])).last_hidden_state[0].double()
    vector = {"LAST": states[-1], "MEAN": states.mean(dim=0), "CLS": states[0]}[kind]
    return (vector / vector.norm()).numpy()


def check_oracle(path: Path, asks: list[Ask]) -> None:
    files = resolve_model(str(path))
    with closing(files):
        model = their_model(files)
    for dtype in DTYPES:
        with LLM(str(path), dtype=dtype, max_model_len=512, num_threads=1) as llm:
            prompts, params = [a.prompt for a in asks], [a.params for a in asks]
            outputs = llm.encode(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
        for ask, output in zip(asks, outputs):
            theirs = their_vector(model, ask.prompt, ask.name.partition("-")[0])
            ours = output.outputs.data
            assert abs(float(np.linalg.norm(ours)) - 1) < 1e-5
            if dtype == "float32":
                np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=0)
            assert ours @ theirs >= (0.99999 if dtype == "float32" else 0.999), ask.name


def test_transformers(tiny_folder: Path) -> None:
    check_oracle(tiny_folder, probes()[:-1])


@pytest.mark.model
def test_transformers_smollm2(smollm2_path: Path) -> None:
    check_oracle(smollm2_path, probes(49152, (1, 17, 80))[:-1])
