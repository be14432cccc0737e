"""The few environment variables. Everything else is configuration (`octavo.config`).

    OCTAVO_HOME        cache folder of models and state (default: XDG cache home / octavo)
    OCTAVO_CPU_ISA     caps the kernel tier: scalar, avx2, avx512, avx512_vnni, avx512_bf16; neon
    OCTAVO_API_KEY     keys of `octavo serve`, separated by commas
    OCTAVO_LOG_LEVEL   level of the log on stderr (default WARNING)
    OCTAVO_LOG_FORMAT  text (default) or json
    OCTAVO_CHECK       1: check the scheduler's invariants after every step (the tests do)

Honoured as huggingface-hub does: HF_HOME, HF_HUB_OFFLINE, HF_TOKEN.
"""

from __future__ import annotations

import os
from pathlib import Path


def octavo_home() -> Path:
    """Folder of downloaded models and state. Not created here."""
    if home := os.environ.get("OCTAVO_HOME"):
        return Path(home).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "octavo"


def cpu_isa_cap() -> str | None:
    """The tier that OCTAVO_CPU_ISA allows at most, or None."""
    return os.environ.get("OCTAVO_CPU_ISA") or None


def api_keys() -> list[str]:
    """The keys in OCTAVO_API_KEY; an empty one where it is set to nothing."""
    keys = os.environ.get("OCTAVO_API_KEY")
    return [] if keys is None else [key.strip() for key in keys.split(",")]


def check_integrity() -> bool:
    """Whether OCTAVO_CHECK asks for the scheduler's invariants to be checked after every step."""
    return os.environ.get("OCTAVO_CHECK", "0") not in ("", "0")
