"""What takes long to find out about a large vocabulary, kept from one start to the next.

A file in `OCTAVO_HOME/tokenizers` is named by a digest of all that its content follows from, and
begins with a digest of that content: neither another vocabulary nor a damaged file is ever used.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np

from octavo import env
from octavo.log import get_logger

logger = get_logger(__name__)

_DIGEST_BYTES = 16
_PAIRS = np.dtype("<i4")


def cached_pairs(key: bytes, num_ids: int, find: Callable[[], np.ndarray]) -> np.ndarray:
    """[n, 2] int32 pairs of ids below `num_ids`, from the cache or from `find`.

    Args:
        key: all that they follow from.
        find: computes them. They are kept, unless the folder cannot be written.
    """
    name = blake2b(key, digest_size=_DIGEST_BYTES, person=b"octavo-pairs").hexdigest()
    path = env.octavo_home() / "tokenizers" / f"{name}.pairs"
    pairs = _read(path, num_ids)
    if pairs is None:
        pairs = find()
        try:
            _write(path, pairs)
        except OSError as error:
            logger.debug("%s was not written: %s", path, error)
    return pairs


def _read(path: Path, num_ids: int) -> np.ndarray | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if _digest(body) != digest or len(body) % (2 * _PAIRS.itemsize):
        logger.warning("%s is damaged; it is made anew", path)
        return None
    pairs = np.frombuffer(body, _PAIRS).reshape(-1, 2)
    if pairs.size and not (pairs.min() >= 0 and pairs.max() < num_ids):
        return None
    return pairs


def _write(path: Path, pairs: np.ndarray) -> None:
    """All of it or nothing, whoever else writes the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = pairs.astype(_PAIRS).tobytes()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_digest(body) + body)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
