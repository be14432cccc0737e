"""`octavo collect-env`."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from octavo.errors import ConfigError

PACKAGES = (
    *("numpy", "msgspec", "tokenizers", "safetensors", "gguf", "huggingface-hub", "jinja2"),
    *("typer", "rich", "pyzmq", "starlette", "uvicorn", "httptools", "uvloop", "llguidance"),
    *(
        "prometheus-client",
        "python-multipart",
        "torch",
        "triton",
        "transformers",
        "openai",
        "nanobind",
    ),
)
"""Whose versions are shown: what Octavo needs, and what its extras bring."""

_SHOWN = (
    *("OCTAVO_HOME", "OCTAVO_CPU_ISA", "OCTAVO_LOG_LEVEL", "OCTAVO_LOG_FORMAT", "OCTAVO_CHECK"),
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE"),
)
_HIDDEN = ("HF_TOKEN", "HF_ENDPOINT")
"""Variables whose values may be secret, like those of every OCTAVO_ variable that is not shown."""


def collect_env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a bug report needs: versions, machine, kernels, settings. No secrets."""
    found = environment()
    typer.echo(json.dumps(found, indent=2) if as_json else _to_text(found))


def environment() -> dict[str, dict[str, Any]]:
    """Section → name → value."""
    return {
        "octavo": _octavo(),
        "system": _system(),
        "cpu": _cpu(),
        "memory": _memory(),
        "packages": _packages(),
        "variables": _variables(os.environ),
    }


def _octavo() -> dict[str, Any]:
    from octavo.env import octavo_home
    from octavo.models.cache import list_models
    from octavo.version import __version__

    return {
        "version": __version__,
        "home": str(octavo_home()),
        "models": [m.name for m in list_models() if m.is_here],
    }


def _system() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
    }


def _cpu() -> dict[str, Any]:
    from octavo.entrypoints.bench.report import machine
    from octavo.env import cpu_isa_cap
    from octavo.kernels.cpu_threads import available_cpus, cgroup_quota, default_num_threads

    info = machine()
    cores = available_cpus()
    values = {
        "model": info["cpu"],
        "logical_cpus": os.cpu_count(),
        "logical_cpus_allowed": info["num_cpus"],
        "cores_allowed": len(cores),
        "cgroup_quota": cgroup_quota(),
        "compute_threads": default_num_threads(cores),
    }
    try:
        from octavo.kernels.cpu import kernel_tiers

        values["kernel_tiers"] = kernel_tiers()
        values["kernel_tiers_in_use"] = kernel_tiers(cpu_isa_cap())
    except (ImportError, ConfigError) as error:
        values["kernels"] = f"not usable: {error}"
    return values


def _memory() -> dict[str, Any]:
    from octavo.worker.free_memory import free_memory

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"total_bytes": total, "free_bytes": free_memory()}


def _packages() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    shown = {name: variables[name] for name in _SHOWN if name in variables}
    ours = {name for name in variables if name.startswith("OCTAVO_")} | set(_HIDDEN)
    hidden = {name: "(set, not shown)" for name in sorted(ours - set(_SHOWN)) if name in variables}
    return shown | hidden


def _to_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n\n".join("\n".join(_section(name, values)) for name, values in found.items())


def _section(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    from octavo.worker.memory import human

    yield name
    width = max(map(len, values), default=0)
    for key, value in values.items():
        if key.endswith("_bytes"):
            value = human(value)
        elif isinstance(value, list):
            value = " ".join(value)
        yield f"  {key.removesuffix('_bytes'):<{width}}  {'-' if value in (None, '') else value}"
    if not values:
        yield "  none"
