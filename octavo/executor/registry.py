"""Executors by name (`distributed_executor_backend`), imported only when chosen."""

from __future__ import annotations

from octavo.config.engine import EngineConfig
from octavo.executor.base import Executor
from octavo.models.files import ModelFiles


def executor_of(config: EngineConfig, files: ModelFiles) -> Executor:
    """The executor that `config` asks for, not started; `files` must be open until it is."""
    if config.device.distributed_executor_backend == "fake":
        from octavo.executor.fake import FakeExecutor

        return FakeExecutor(config, files)
    from octavo.executor.uniproc import UniProcExecutor

    return UniProcExecutor(config, files)
