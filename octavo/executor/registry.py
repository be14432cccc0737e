"""Executors by name (`distributed_executor_backend`), imported only when chosen."""

from __future__ import annotations

from octavo.config.engine import EngineConfig
from octavo.executor.base import Executor


def create_executor(config: EngineConfig, model_path: str) -> Executor:
    """The executor that `config` asks for, not started.

    Args:
        model_path: a local file or folder.

    Raises:
        ModelError: the files cannot be read.
    """
    from octavo.models.files import resolve_model

    files = resolve_model(model_path, load_format=config.model.load_format)
    if config.device.distributed_executor_backend == "fake":
        from octavo.executor.fake import FakeExecutor

        return FakeExecutor(config, files)
    from octavo.executor.uniproc import UniProcExecutor

    return UniProcExecutor(config, files)
