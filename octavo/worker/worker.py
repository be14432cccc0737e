"""A worker: one device, one model, one model runner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from octavo.config.engine import EngineConfig
from octavo.config.sections import SchedulerConfig
from octavo.contracts.features import RunnerFeature
from octavo.contracts.kv_spec import KVCacheConfig, KVCacheGroup, MemoryPlan
from octavo.contracts.step import GrammarOutput, RunnerOutput, SchedulerOutput
from octavo.contracts.tensor import DType
from octavo.kernels.ops import Backend, Graph, KVCache, StepLimits
from octavo.kernels.registry import create_backend
from octavo.log import get_logger
from octavo.models.base import CausalLM
from octavo.models.files import ModelFiles
from octavo.models.loader import dummy_weights, load_weights
from octavo.models.registry import build_model
from octavo.quant.registry import quantization_of
from octavo.sample.logits_processor import load_logits_processors
from octavo.sample.logprobs import HEAD_LIMITS
from octavo.worker.free_memory import free_memory
from octavo.worker.info import ExecutorInfo
from octavo.worker.kv_planner import group_layers
from octavo.worker.logits import LOGITS_ROWS
from octavo.worker.memory import (
    MemoryNeeds,
    check_weights_fit,
    format_plan,
    human,
    plan_memory,
    plannable_length,
)
from octavo.worker.model_runner import ModelRunner
from octavo.worker.request_state import RequestState

logger = get_logger(__name__)


class Worker:
    """Loads the model onto the device and runs steps.

    Args:
        config: as the user gave it.
        files: the model's; they stay open while `start` runs.
        features: worker halves of features.
    """

    def __init__(
        self, config: EngineConfig, files: ModelFiles, features: Sequence[RunnerFeature] = ()
    ) -> None:
        self._config = config
        self._files = files
        self._features = features
        self._backend: Backend | None = None
        self._runner: ModelRunner | None = None

    def start(self) -> ExecutorInfo:
        """Load the weights, plan the memory, allocate the KV cache, capture the forward, warm up.

        Raises:
            ConfigError, MemoryPlanError, ModelError: it cannot be done; the message says why.
        """
        available = free_memory()
        model = build_model(self._files.config)
        config = self._config.resolve(model_max_len=model.max_position)
        dtype = resolve_dtype(config.model.dtype, self._files.checkpoint_dtype)
        quantization = quantization_of(config.model.quantization, config.model.dtype)
        stored = self._files.checkpoint_dtype
        slots = model.slots()
        check_weights_fit(
            sum(slot.estimated_bytes(stored, dtype, quantization) for slot in slots), available
        )
        backend = self._backend = create_backend(
            config.device.device, dtype, config.device.num_threads
        )
        weights = (
            dummy_weights(model, config.model.seed)
            if config.model.load_format == "dummy"
            else self._files.weights()
        )
        begin = time.perf_counter()
        with backend.loading():
            num_weight_bytes = load_weights(model, weights, backend, quantization)
            groups = group_layers(model.kv_specs(dtype))
            plan = self._plan(config, model, backend, groups, available, num_weight_bytes)
            config = replace(config, model=replace(config.model, max_model_len=plan.max_model_len))
            kv_cache_config = KVCacheConfig(num_blocks=plan.num_blocks, groups=groups)
            limits = step_limits(config.scheduler, plan.max_model_len, groups)
            kv, graph, head = _capture(model, backend, kv_cache_config, limits)
        seconds = time.perf_counter() - begin
        logger.info("loaded %s of weights in %.2f s", human(num_weight_bytes), seconds)
        self._runner = ModelRunner(
            backend=backend,
            graph=graph,
            head=head,
            kv=kv,
            limits=limits,
            block_sizes=[group.spec.block_size for group in groups],
            vocab_size=model.vocab_size,
            logprobs_mode=config.model.logprobs_mode,
            logits_processors=load_logits_processors(config.model.logits_processors),
            features=self._features,
        )
        self._runner.warm_up()
        return ExecutorInfo(
            config=config,
            kv_cache_config=kv_cache_config,
            memory_plan=plan,
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
        )

    def execute_model(self, step: SchedulerOutput) -> None:
        """Run the step's forward."""
        assert self._runner is not None, "start() comes first"
        self._runner.execute_model(step)

    def sample_tokens(self, grammar: GrammarOutput | None) -> RunnerOutput:
        """Sample for the step last executed."""
        assert self._runner is not None, "start() comes first"
        return self._runner.sample_tokens(grammar)

    def close(self) -> None:
        """Release the device. May be called twice."""
        self._runner = None
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _plan(
        self,
        config: EngineConfig,
        model: CausalLM,
        backend: Backend,
        groups: tuple[KVCacheGroup, ...],
        available: int,
        weights: int,
    ) -> MemoryPlan:
        """The memory plan. Activations are measured: captured over the smallest pool there is."""
        assert config.model.max_model_len is not None, "resolve() sets it"
        scheduler = config.scheduler
        is_given = self._config.model.max_model_len is not None
        tokens_in_flight = scheduler.max_step_tokens * scheduler.pipeline_depth
        max_model_len = plannable_length(available, config.model.max_model_len, is_given=is_given)
        smallest = KVCacheConfig(num_blocks=2, groups=groups)
        limits = step_limits(scheduler, max_model_len, groups)
        _, graph, head = _capture(model, backend, smallest, limits)
        state = RequestState.nbytes(
            max_num_seqs=scheduler.max_num_seqs,
            max_model_len=max_model_len,
            block_sizes=[group.spec.block_size for group in groups],
        )
        needs = MemoryNeeds(
            available=available,
            weights=weights,
            activations=graph.nbytes + head.nbytes + state,
            groups=groups,
            max_num_seqs=scheduler.max_num_seqs,
            max_model_len=max_model_len,
            is_max_model_len_given=is_given,
            tokens_in_flight=tokens_in_flight,
        )
        plan = plan_memory(needs, config.cache)
        if max_model_len < config.model.max_model_len and not plan.notes:
            note = f"max_model_len lowered from {config.model.max_model_len} to {max_model_len}"
            plan = replace(plan, notes=(f"{note}: longer requests do not fit into memory",))
        logger.info("%s", format_plan(plan))
        for note in plan.notes:
            logger.warning("%s", note)
        return plan


def resolve_dtype(name: str, checkpoint: DType) -> DType:
    """The dtype of weights, activations and KV cache: "auto" keeps float32 checkpoints in float32
    and takes bfloat16 for all others."""
    if name == "auto":
        return DType.F32 if checkpoint is DType.F32 else DType.BF16
    return DType(name)


def step_limits(
    scheduler: SchedulerConfig, max_model_len: int, groups: Sequence[KVCacheGroup]
) -> StepLimits:
    """The largest step that the scheduler can ask for, but for logits rows: the head computes them
    in parts where there are more."""
    smallest_block = min(group.spec.block_size for group in groups)
    max_requests = min(scheduler.max_num_seqs, scheduler.max_step_tokens)
    return StepLimits(
        max_tokens=scheduler.max_step_tokens,
        max_requests=scheduler.max_num_seqs,
        max_logit_rows=min(max_requests, LOGITS_ROWS),
        max_blocks_per_request=-(-max_model_len // smallest_block),
        max_position=max_model_len,
    )


def _capture(
    model: CausalLM, backend: Backend, kv_cache_config: KVCacheConfig, limits: StepLimits
) -> tuple[KVCache, Graph, Graph]:
    """The KV cache, the forward and the head."""
    kv = backend.allocate_kv(kv_cache_config)
    model.bind(backend, kv, max_model_len=limits.max_position)
    forward = backend.capture(model.forward, limits)
    return kv, forward, backend.capture(model.head, HEAD_LIMITS)
