"""An executor without a model: what the engine around it costs is what remains to be measured.

Its tokens and vectors are a fixed function of a request's length, so that runs repeat; its steps
take as long as they are told to (`fake_step_time`).
"""

from __future__ import annotations

import time

import numpy as np

from octavo.config.engine import EngineConfig
from octavo.contracts.kv_spec import FullAttentionSpec, KVCacheConfig, KVCacheGroup, MemoryPlan
from octavo.contracts.pooling_params import PoolingParams
from octavo.contracts.step import GrammarOutput, RunnerOutput, SchedulerOutput
from octavo.contracts.tensor import DType
from octavo.executor.base import Done, Executor, ExecutorInfo
from octavo.models.files import ModelFiles
from octavo.models.registry import build_model

_DEFAULT_NUM_BLOCKS = 65536
_STRIDE = 7919  # a prime, so that tokens vary


class FakeExecutor(Executor):
    """Samples tokens from nothing.

    Args:
        files: the model whose vocabulary and length it pretends to have; no weight is read.
    """

    def __init__(self, config: EngineConfig, files: ModelFiles) -> None:
        self._config = config
        self._model = build_model(files.config)
        self._lengths: dict[str, int] = {}
        self._pooling: dict[str, PoolingParams] = {}
        self._step: SchedulerOutput | None = None

    def start(self) -> ExecutorInfo:
        config = self._config.resolve(model_max_len=self._model.max_position)
        assert config.model.max_model_len is not None
        spec = FullAttentionSpec(num_kv_heads=1, head_size=1, head_size_v=1, dtype=DType.F32)
        kv = KVCacheConfig(
            num_blocks=config.cache.num_gpu_blocks_override or _DEFAULT_NUM_BLOCKS,
            groups=(KVCacheGroup(layer_names=("none",), spec=spec),),
        )
        plan = MemoryPlan(
            available=0,
            weights=0,
            activations=0,
            kv_cache=0,
            num_blocks=kv.num_blocks,
            max_model_len=config.model.max_model_len,
            max_num_seqs=config.scheduler.max_num_seqs,
            notes=("no model is loaded: tokens are made up",),
        )
        return ExecutorInfo(
            config=config,
            kv_cache_config=kv,
            memory_plan=plan,
            vocab_size=self._model.vocab_size,
            hidden_size=self._model.hidden_size,
        )

    def execute_model(self, step: SchedulerOutput) -> None:
        self._step = step

    def sample_tokens(self, grammar: GrammarOutput | None) -> Done:
        step, lengths = self._step, self._lengths
        assert step is not None
        time.sleep(self._config.device.fake_step_time)
        for request_id in (*step.finished_request_ids, *step.preempted_request_ids):
            lengths.pop(request_id, None)
            self._pooling.pop(request_id, None)
        for new in step.new_requests:
            lengths[new.request_id] = len(new.token_ids)
            if new.pooling_params is not None:
                self._pooling[new.request_id] = new.pooling_params
        sampling = set(step.samples)
        sampled: list[list[int]] = []
        for request_id in step.num_scheduled_tokens:
            if request_id in sampling:
                lengths[request_id] += 1
                sampled.append([lengths[request_id] * _STRIDE % self._model.vocab_size])
            else:
                sampled.append([])
        return Done(
            RunnerOutput(
                step_id=step.step_id,
                request_ids=list(step.num_scheduled_tokens),
                sampled_token_ids=sampled,
                pooler_outputs={
                    request_id: self._vector(request_id)
                    for request_id in step.num_scheduled_tokens
                    if request_id in self._pooling
                },
            )
        )

    def _vector(self, request_id: str) -> np.ndarray:
        """A unit vector [dimensions] float32."""
        size = self._pooling[request_id].dimensions or self._model.hidden_size
        vector = np.zeros(size, dtype=np.float32)
        vector[self._lengths[request_id] % size] = 1.0
        return vector

    def check_health(self) -> None:
        """There is nothing that could be gone."""

    def shutdown(self) -> None:
        """There is nothing to stop."""
