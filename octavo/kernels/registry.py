"""Back ends by name, imported only when chosen."""

from __future__ import annotations

from importlib import import_module

from octavo.contracts.tensor import DType
from octavo.errors import ConfigError
from octavo.kernels.ops import Backend

_BACKENDS = {
    "cpu": ("octavo.kernels.cpu", "CpuBackend"),
    "reference": ("octavo.kernels.torch_reference", "TorchReferenceBackend"),
}


def create_backend(device: str, dtype: DType, num_threads: int | None = None) -> Backend:
    """The back end of a device: "cpu" (also "auto") or "reference".

    Raises:
        ConfigError: unknown device, or what it needs is not installed.
    """
    device = "cpu" if device == "auto" else device
    if device not in _BACKENDS:
        raise ConfigError(f"device={device!r} is not supported; supported: {', '.join(_BACKENDS)}")
    module, name = _BACKENDS[device]
    try:
        backend = getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"device={device!r} cannot be used: {error}") from error
    return backend(dtype=dtype, num_threads=num_threads)
