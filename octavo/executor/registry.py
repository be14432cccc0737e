"""Executors by name (`distributed_executor_backend`), imported only when chosen."""

from __future__ import annotations

from octavo.config.engine import EngineConfig
from octavo.executor.base import Executor
from octavo.models.files import ModelFiles, resolve_model


def create_executor(config: EngineConfig, model_path: str) -> Executor:
    """As `executor_of`, for a model at a local path: a file or a folder.

    Raises:
        ModelError: the files cannot be read.
    """
    return executor_of(config, resolve_model(model_path, load_format=config.model.load_format))


def executor_of(config: EngineConfig, files: ModelFiles) -> Executor:
    """The executor that `config` asks for, not started."""
    if config.device.distributed_executor_backend == "fake":
        from octavo.executor.fake import FakeExecutor

        return FakeExecutor(config, files)
    from octavo.executor.uniproc import UniProcExecutor

    return UniProcExecutor(config, files)
