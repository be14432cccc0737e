"""A sampler over a back end, and requests for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.contracts.sampling_params import SamplingParams
from octavo.contracts.step import NewRequestData
from octavo.kernels.ops import Backend
from octavo.sample.sampler import SampledRows, Sampler
from octavo.sample.stage import LogitsStage, SampleBatch
from tests.sample.twin import TwinSampling

VOCAB = 48
NUM_ROWS = 8
PROMPT = [1, 2, 1]
MAX_LEN = 64


class NumpyBackend:
    """The twin as a back end: logits are numpy arrays."""

    name = "twin"
    sampling = TwinSampling()

    @staticmethod
    def to_numpy(array: np.ndarray) -> np.ndarray:
        return array


def device_logits(backend: Any, logits: np.ndarray) -> Any:
    """Logits as the back end's `Graph.replay` returns them."""
    if backend.name == "reference":
        import torch

        return torch.from_numpy(logits.copy())
    return logits.copy()


def new(
    params: SamplingParams | None,
    *,
    prompt: Sequence[int] = PROMPT,
    output: Sequence[int] = (),
    **more: Any,
) -> NewRequestData:
    """A request that has sampled `output` already."""
    return NewRequestData(
        request_id="r",
        token_ids=[*prompt, *output],
        num_prompt_tokens=len(prompt),
        block_ids=([1],),
        num_computed_tokens=0,
        sampling_params=params,
        **more,
    )


def put(stages: Any, requests: Mapping[int, NewRequestData]) -> None:
    """Add requests to their rows."""
    for stage in stages:
        for row, request in requests.items():
            stage.add_request(row, request)
        stage.apply_staged_writes()


def batch_of(
    requests: Mapping[int, NewRequestData], drafts: Mapping[int, Sequence[int]] | None = None
) -> SampleBatch:
    """The logits rows of all requests in their order, those for drafts included."""
    drafts = drafts or {}
    token_ids = np.zeros((NUM_ROWS, MAX_LEN), dtype=np.int32)
    rows, offsets, positions = [], [], []
    for row, request in requests.items():
        known = [*request.token_ids, *drafts.get(row, ())]
        token_ids[row, : len(known)] = known
        for position in range(len(request.token_ids), len(known) + 1):
            rows.append(row)
            offsets.append(position - len(request.token_ids))
            positions.append(position)
    return SampleBatch(
        rows=np.array(rows),
        offsets=np.array(offsets),
        positions=np.array(positions),
        token_ids=token_ids,
    )


def make_sampler(backend: Any, requests: Mapping[int, NewRequestData], **options: Any) -> Sampler:
    sampler = Sampler(backend, num_rows=NUM_ROWS, vocab_size=VOCAB, **options)
    put([sampler], requests)
    return sampler


def run(
    backend: Any, requests: Mapping[int, NewRequestData], logits: np.ndarray, **options: Any
) -> SampledRows:
    """Sample once for every request, in their order."""
    sampler = make_sampler(backend, requests, **options)
    return sampler.sample(device_logits(backend, logits), batch_of(requests))


def edit(
    stage: LogitsStage,
    backend: Backend | Any,
    requests: Mapping[int, NewRequestData],
    logits: np.ndarray,
    drafts: Mapping[int, Sequence[int]] | None = None,
) -> np.ndarray:
    """Logits [R, VOCAB] after one stage alone."""
    put([stage], requests)
    batch = batch_of(requests, drafts)
    on_device = device_logits(backend, logits)
    edited = stage.rows_to_edit(batch)
    if edited is not None:
        stage.apply(backend.sampling, on_device, batch, edited)
    return np.array(backend.to_numpy(on_device))


def random_logits(seed: int, num_rows: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(num_rows, VOCAB)).astype(np.float32)
    logits[:, 5] = logits[:, 9]  # a tie
    return logits
