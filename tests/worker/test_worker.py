"""The worker's start: what it loads, plans and refuses. (Its steps: tests/executor.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from octavo.config.sections import SchedulerConfig
from octavo.contracts.kv_spec import FullAttentionSpec, SlidingWindowSpec
from octavo.contracts.step import SchedulerOutput
from octavo.contracts.tensor import DType, HostTensor
from octavo.errors import ConfigError, MemoryPlanError, ModelError, WeightsError
from octavo.models.loader import dummy_weights
from octavo.models.registry import build_model
from octavo.worker import worker as worker_module
from octavo.worker.info import ExecutorInfo
from octavo.worker.kv_planner import group_layers
from octavo.worker.worker import Worker, resolve_dtype, step_limits
from tests.worker.tiny import LLAMA, MISTRAL, tiny_config, tiny_files

KIB = 2**10
BLOCK_BYTES = 2 * 16 * 2 * (8 + 8) * 4  # layers, tokens, KV heads, K and V, float32


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """free(n): make it so that n bytes are free."""

    def set_free(num_bytes: int) -> None:
        monkeypatch.setattr(worker_module, "free_memory", lambda: num_bytes)

    return set_free


def start(files: Any = None, **options: Any) -> ExecutorInfo:
    worker = Worker(tiny_config(**options), files or tiny_files())
    try:
        return worker.start()
    finally:
        worker.close()
        worker.close()


def test_info() -> None:
    info = start()
    assert info.vocab_size == 64
    assert info.config.model.max_model_len == 128
    assert info.kv_cache_config.num_blocks == info.memory_plan.num_blocks == 4 * 8 + 1
    assert info.memory_plan.kv_cache == 33 * BLOCK_BYTES
    assert info.memory_plan.weights > 0
    (group,) = info.kv_cache_config.groups
    assert len(group.layer_names) == 2
    assert group.spec == FullAttentionSpec(
        num_kv_heads=2, head_size=8, head_size_v=8, dtype=DType.F32
    )


def test_a_given_length_is_kept_and_bfloat16_halves_the_cache() -> None:
    info = start(max_model_len=40, dtype="bfloat16")
    assert info.config.model.max_model_len == 40
    assert info.kv_cache_config.num_blocks == 4 * 3 + 1
    assert info.memory_plan.kv_cache == 13 * BLOCK_BYTES // 2


def test_a_window_needs_fewer_blocks() -> None:
    """Window 20 and 2 * 8 tokens in flight: 35 tokens, 4 blocks."""
    info = start(tiny_files(MISTRAL), max_num_batched_tokens=8, pipeline_depth=2)
    (group,) = info.kv_cache_config.groups
    assert isinstance(group.spec, SlidingWindowSpec)
    assert info.kv_cache_config.num_blocks == 4 * 4 + 1


@pytest.mark.parametrize(
    ("name", "checkpoint", "dtype"),
    [
        ("auto", DType.F32, DType.F32),
        ("auto", DType.BF16, DType.BF16),
        ("auto", DType.F16, DType.BF16),
        ("auto", DType.Q4_1, DType.BF16),
        ("float32", DType.BF16, DType.F32),
        ("bfloat16", DType.F32, DType.BF16),
    ],
)
def test_resolve_dtype(name: str, checkpoint: DType, dtype: DType) -> None:
    assert resolve_dtype(name, checkpoint) is dtype


def test_step_limits() -> None:
    groups = group_layers(build_model(tiny_files().config).kv_specs(DType.F32))
    limits = step_limits(SchedulerConfig(max_num_seqs=9, max_num_batched_tokens=7), 33, groups)
    assert (limits.max_tokens, limits.max_requests, limits.max_logit_rows) == (7, 9, 7)
    assert (limits.max_blocks_per_request, limits.max_position) == (3, 33)
    limits = step_limits(SchedulerConfig(max_num_seqs=9), 33, groups)
    assert (limits.max_tokens, limits.max_requests, limits.max_logit_rows) == (137, 9, 9)


def test_max_model_len_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_model_len=129 is more than the model's 128"):
        start(max_model_len=129)


def test_little_memory_lowers_the_length(free: Any, caplog: pytest.LogCaptureFixture) -> None:
    roomy = start().memory_plan
    rest = roomy.weights + roomy.activations
    free(2 * (rest + 6 * BLOCK_BYTES))
    info = start()
    assert info.config.model.max_model_len == info.memory_plan.max_model_len == 5 * 16
    assert info.kv_cache_config.num_blocks == 6
    assert "lowered from 128 to 80" in caplog.text
    with pytest.raises(MemoryPlanError, match="lower max_model_len to at most 80"):
        start(max_model_len=128)


def test_weights_that_cannot_fit_are_not_even_read(free: Any) -> None:
    class Files:
        config = tiny_files().config
        checkpoint_dtype = DType.F32

        @staticmethod
        def weights() -> Iterator[tuple[str, HostTensor]]:
            raise AssertionError("read")

    free(10 * KIB)
    with pytest.raises(MemoryPlanError, match=r"weights take \d+\.\d KiB, but only 10\.0 KiB"):
        start(Files(), load_format="auto")


class Checkpoint:
    """Dummy weights, some of them changed."""

    dtype = DType.F32

    def __init__(self, **changed: np.ndarray | None) -> None:
        self._changed = changed

    def weights(self) -> Iterator[tuple[str, HostTensor]]:
        for name, tensor in dummy_weights(build_model(tiny_files().config), 0):
            changed = self._changed.get(name.rsplit(".", 2)[-2], tensor)
            if changed is not None:
                yield name, changed if isinstance(changed, HostTensor) else HostTensor.of(changed)


def test_weights_come_from_the_checkpoint(free: Any) -> None:
    free(2**30)
    files = tiny_files(checkpoint=Checkpoint())
    assert start(files, load_format="auto").memory_plan == start().memory_plan
    with pytest.raises(WeightsError, match="missing"):
        start(tiny_files(checkpoint=Checkpoint(embed_tokens=None)), load_format="auto")


def test_a_damaged_model_is_found_at_start() -> None:
    nan = np.full((64, 32), np.nan, dtype=np.float32)
    with pytest.raises(ModelError, match="cannot run a single token"):
        start(tiny_files(checkpoint=Checkpoint(embed_tokens=nan)), load_format="auto")


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ModelError, match="NobodyForCausalLM"):
        start(tiny_files({**LLAMA, "architectures": ["NobodyForCausalLM"]}))


def test_steps_need_a_start() -> None:
    worker = Worker(tiny_config(), tiny_files())
    with pytest.raises(AssertionError, match="start"):
        worker.execute_model(SchedulerOutput(step_id=0))


@pytest.mark.parametrize("config", [LLAMA, MISTRAL], ids=["full", "window"])
def test_an_absurd_length_is_lowered_before_anything_is_sized_by_it(config: dict[str, Any]) -> None:
    files = tiny_files({**config, "max_position_embeddings": 2**31 - 1})
    worker = Worker(tiny_config(kv_cache_memory_bytes=2**20), files)
    try:
        plan = worker.start().memory_plan
        assert 0 < plan.max_model_len < 2**31 - 1
        assert any("lowered" in note for note in plan.notes)
    finally:
        worker.close()
    worker = Worker(tiny_config(max_model_len=2**31 - 1), files)
    with pytest.raises(MemoryPlanError, match="max_model_len=2147483647"):
        worker.start()
    worker.close()
