"""What a pooling request (embedding, scoring) asks for. Refused until there are poolers."""

from __future__ import annotations

import msgspec


class PoolingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Pooling parameters of one request: the step contract carries them from day one."""

    task: str = "embed"
    dimensions: int | None = None
    normalize: bool = True
