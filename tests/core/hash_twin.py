"""What block hashes should be, computed without the code that is tested."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence


def chained_hashes(secret: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """The hash of every full block of 16 tokens, where nothing but tokens changes KV."""
    hashes = [bytes(16)]
    for start in range(0, len(token_ids) - 15, 16):
        tokens = struct.pack("<16i", *token_ids[start : start + 16])
        hashes.append(hashlib.blake2b(hashes[-1] + tokens, digest_size=16, key=secret).digest())
    return hashes[1:]
