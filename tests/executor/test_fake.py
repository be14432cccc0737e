"""The executor without a model, under the real core."""

from __future__ import annotations

from pathlib import Path

from octavo.config.engine import EngineConfig
from octavo.contracts.messages import EngineRequest, FinishReason
from octavo.contracts.sampling_params import SamplingParams
from octavo.engine.core import EngineCore
from octavo.executor.registry import executor_of
from octavo.models.files import resolve_model
from tests.tiny_model import write_tiny_llama


def generate(folder: Path, depth: int) -> dict[str, list[int]]:
    config = EngineConfig.from_flat(
        model=str(folder),
        distributed_executor_backend="fake",
        pipeline_depth=depth,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=12,
    )
    core = EngineCore(executor_of(config, resolve_model(str(folder))))
    for i in range(6):
        params = SamplingParams(max_tokens=20 + i, ignore_eos=True, seed=0)
        core.add_request(
            EngineRequest(
                request_id=str(i), prompt_token_ids=[1] * (10 + i), sampling_params=params
            )
        )
    tokens: dict[str, list[int]] = {}
    while core.has_work():
        for output in core.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            assert output.finish_reason in (None, FinishReason.LENGTH)
    assert core.stats().num_preemptions > 0
    core.shutdown()
    return tokens


def test_runs_repeat_at_any_depth(tmp_path: Path) -> None:
    tokens = generate(write_tiny_llama(tmp_path), 1)
    assert {r: len(t) for r, t in tokens.items()} == {str(i): 20 + i for i in range(6)}
    assert all(0 <= t < 257 for ts in tokens.values() for t in ts)
    assert generate(tmp_path, 3) == tokens
