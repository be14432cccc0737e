"""Block hashes: what a full block of KV depends on, in 128 bits that nobody outside can predict.

    hash(block) = BLAKE2b-128(key = secret; parent's hash, tokens, extra keys)

A hash binds all that came before it, so equal hashes mean equal prefixes. The key is a secret:
without it nobody can search for two prompts that collide. Extra keys are what changes KV beside
tokens (adapter, tenant's salt, an image and its offset); each is encoded with its kind and type,
so that a salt "a" and an adapter "a" are two things.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import struct
from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.core.request import Request

HASH_BYTES = 16
SECRET_BYTES = 32
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 16, 64
_ROOT = bytes(HASH_BYTES)
_MAX_DEPTH = 16

ExtraKeys = Callable[["Request", int, int], Sequence[tuple[str, Hashable]]]
"""(request, start, end) → (kind, value) of everything beside tokens that changes KV there."""


def encode_key(value: Hashable, depth: int = 0) -> bytes:
    """A value as bytes such that different values, or equal ones of different type, differ.

    Takes None, bool, int, float, str, bytes and tuples of these.

    Raises:
        TypeError: anything else.
    """
    if value is None:
        return b"n"
    if isinstance(value, tuple) and depth < _MAX_DEPTH:
        items = [encode_key(item, depth + 1) for item in value]
        return b"t" + _framed(b"".join(_framed(item) for item in items))
    if type(value) is bool:
        return b"1" if value else b"0"
    if type(value) is int:
        return b"i" + _framed(str(value).encode())
    if type(value) is float:
        return b"f" + _framed(value.hex().encode())
    if type(value) is str:
        return b"s" + _framed(value.encode("utf-8", "surrogatepass"))
    if type(value) is bytes:
        return b"b" + _framed(value)
    raise TypeError(f"a hash key cannot hold a {type(value).__name__}")


def _framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _packed(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32: four bytes each, nothing cut off."""
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


class BlockHasher:
    """Computes the chain of hashes of a request's full blocks.

    Args:
        secret: key of the hash, 16…64 bytes; None draws one, so that no two processes agree.
        block_size: tokens per block.
        extra_keys: what else changes KV in a range of tokens.

    Raises:
        ConfigError: the secret's length.
    """

    def __init__(
        self, secret: bytes | None, block_size: int, extra_keys: ExtraKeys | None = None
    ) -> None:
        secret = secrets.token_bytes(SECRET_BYTES) if secret is None else secret
        if not _MIN_SECRET_BYTES <= len(secret) <= _MAX_SECRET_BYTES:
            raise ConfigError(
                f"the hash secret has {len(secret)} bytes; "
                f"it must have {_MIN_SECRET_BYTES}…{_MAX_SECRET_BYTES}"
            )
        self._secret = secret
        self._block_size = block_size
        self._extra_keys = extra_keys

    def extend(self, request: Request) -> None:
        """Bring `request.block_hashes` up to all full blocks of its known tokens."""
        size, hashes = self._block_size, request.block_hashes
        start, end = len(hashes) * size, len(request.token_ids) // size * size
        if start >= end:
            return
        tokens = _packed(request.token_ids[start:end])
        width = 4 * size
        parent = hashes[-1] if hashes else None
        for i in range(0, len(tokens), width):
            extra = self.extra_keys(request, start, start + size)
            parent = self._digest(parent, tokens[i : i + width], extra)
            hashes.append(parent)
            start += size

    def extra_keys(self, request: Request, start: int, end: int) -> list[tuple[str, Hashable]]:
        """What beside tokens changes the KV of tokens start…end-1 (and of later ones)."""
        extra: list[tuple[str, Hashable]] = []
        if start == 0:  # and so in every later hash, through the chain
            if request.engine_request.lora_name is not None:
                extra.append(("core/lora", request.engine_request.lora_name))
            if request.engine_request.cache_salt is not None:
                extra.append(("core/salt", request.engine_request.cache_salt))
        if self._extra_keys is not None:
            extra += self._extra_keys(request, start, end)
        return extra

    def have_same_prompt(self, a: Request, b: Request, *, but_last: int = 0) -> bool:
        """Whether the prompts of two requests have the same KV, to the last token; the last
        `but_last` tokens of b apart."""
        num_tokens = b.num_prompt_tokens - but_last
        theirs = b.engine_request.prompt_token_ids[:num_tokens]
        if a.engine_request.prompt_token_ids != theirs:
            return False
        keys = [encode_key(tuple(self.extra_keys(r, 0, num_tokens))) for r in (a, b)]
        return keys[0] == keys[1]

    def _digest(
        self, parent: bytes | None, tokens: bytes, extra: Sequence[tuple[str, Hashable]]
    ) -> bytes:
        hasher = blake2b(
            _ROOT if parent is None else parent, digest_size=HASH_BYTES, key=self._secret
        )
        hasher.update(tokens)
        if extra:
            hasher.update(encode_key(tuple(extra)))
        return hasher.digest()


def load_hash_secret(path: Path) -> bytes:
    """The secret kept in a file, so that caches can survive a restart and be shared.

    A missing file is made with a fresh secret and mode 0600, atomically: of several processes
    that start at once, all read the secret of the first.

    Raises:
        ConfigError: the file cannot be made or read, is not a regular file of 32 bytes, or others
            than its owner may read it.
    """
    try:
        if not os.path.lexists(path):
            _create_secret(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise ConfigError(f"{path} must be a regular file; remove it")
            if stat.S_IMODE(info.st_mode) & 0o077:
                raise ConfigError(
                    f"{path} has mode {stat.S_IMODE(info.st_mode):04o}: others may read the "
                    f"secret; remove it (a new one is made), or chmod 600"
                )
            secret = file.read(SECRET_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the hash secret {path} cannot be used: {error.strerror}") from error
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"{path} does not hold {SECRET_BYTES} bytes; remove it (a new one is made)"
        )
    return secret


def _create_secret(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, this never replaces another's secret
    finally:
        os.unlink(temporary)
