"""API keys: who may use the server, under which name, and how much.

Keys come from `--api-key` and OCTAVO_API_KEY, which have no limits, and from `--api-key-file`:

    {"keys": [{"name": "alice", "key": "…", "requests_per_minute": 60},
              {"name": "bob", "sha256": "…", "tokens_per_minute": 10000, "priority": 10}]}

Only digests are kept, and compared: a key's text is nowhere in memory once it was read.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from octavo.entrypoints.openai.ledger import Ledger
from octavo.entrypoints.openai.quotas import KeyAccount, KeyLimits
from octavo.errors import ConfigError, shown
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.config.sections import Policy
    from octavo.entrypoints.openai.config import ServerConfig

logger = get_logger(__name__)

MAX_KEYS = 1024
"""Every request's key is compared with all of them, and /metrics has them as labels."""

NAME_RULE = "1…64 letters, digits and the characters . _ - @"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_COUNTED_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent_requests")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class KeyEntry(KeyLimits, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A key in a key file, with its limits.

    Attributes:
        name: in the log, in /metrics, and the owner of what is stored; unique in the file.
        key: the key itself; or
        sha256: its SHA-256 in hexadecimal digits (`printf %s KEY | sha256sum`).
    """

    name: str
    key: str | None = None
    sha256: str | None = None


class KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of a key file."""

    keys: list[KeyEntry]


class ApiKey:
    """One key.

    Attributes:
        name: who it is: also the owner of what is stored for it. Without a name from a file it is
            made from the digest, so that it is the same after a restart.
        digest: SHA-256 of the key.
        account: what it has used of its limits.
    """

    def __init__(self, name: str, digest: bytes, account: KeyAccount) -> None:
        self.name = name
        self.digest = digest
        self.account = account


class KeyRing:
    """All keys of a server.

    Args:
        keys: keys without names and limits.
        path: a key file, which `reload` reads again.
        policy: the scheduling policy, which decides whether keys may have priorities.

    Attributes:
        ledger: what the keys have used, in all front ends.

    Raises:
        ConfigError: the file cannot be read, or is wrong.
    """

    def __init__(
        self,
        keys: Sequence[str] = (),
        path: str | None = None,
        *,
        policy: Policy = "fcfs",
        ledger: Ledger | None = None,
    ) -> None:
        self._policy = policy
        self.ledger = ledger or Ledger()
        digests = dict.fromkeys(_digest(key.encode()) for key in keys)
        self._unnamed = [self._without_limits(digest) for digest in digests]
        self._path = path
        self._keys = self._read()

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys)

    def find(self, token: bytes) -> ApiKey | None:
        """The key that `token` is. All are compared, each in constant time."""
        digest, found = _digest(token), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def reload(self) -> None:
        """Read the file again. Keys whose name stays keep what they have used.

        Raises:
            ConfigError: as at the start; the keys stay as they were.
        """
        before = {key.name: key.account for key in self._keys}
        keys = self._read()
        for key in keys:
            if (account := before.get(key.name)) is not None:
                account.set_limits(key.account.limits)
                key.account = account
        self._keys = keys

    def _read(self) -> list[ApiKey]:
        keys = [*self._unnamed, *self._named()]
        if len(keys) > MAX_KEYS:
            raise ConfigError(f"{len(keys)} API keys are more than {MAX_KEYS}; remove some")
        for attribute, what in (("name", "name"), ("digest", "key")):
            seen: dict[object, ApiKey] = {}
            for key in keys:
                other = seen.setdefault(getattr(key, attribute), key)
                if other is not key:
                    raise ConfigError(
                        f"API keys {shown(other.name)} and {shown(key.name)} have the same {what}; "
                        "each needs one of its own"
                    )
        for key in keys:
            if key.account.limits.priority is not None and self._policy != "priority":
                raise ConfigError(
                    f"the API key {shown(key.name)} has a priority, which has no effect under the "
                    f"scheduling policy {self._policy!r}; use --scheduling-policy priority"
                )
        return keys

    def _without_limits(self, digest: bytes) -> ApiKey:
        name = f"key-{digest.hex()[:8]}"
        return ApiKey(name, digest, KeyAccount(KeyLimits(), usage=self.ledger.usage(name)))

    def _named(self) -> list[ApiKey]:
        if self._path is None:
            return []
        return [_api_key(e, self._path, self.ledger) for e in _read_file(self._path)]


def configured_keys(config: ServerConfig, policy: Policy, ledger: Ledger | None = None) -> KeyRing:
    """The keys of a server's configuration. Raises ConfigError."""
    return KeyRing(config.api_key or (), config.api_key_file, policy=policy, ledger=ledger)


def _read_file(path: str) -> list[KeyEntry]:
    try:
        data = Path(path).read_bytes()
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(f"api_key_file={shown(path)} cannot be read: {error.strerror}") from None
    try:
        entries = msgspec.json.decode(data, type=KeyFile).keys
    except msgspec.DecodeError as error:  # tells the place, never the value
        raise ConfigError(
            f'api_key_file={shown(path)} must be JSON like {{"keys": [{{"name": "alice", "key": '
            f'"…"}}]}}: {error}'
        ) from None
    if not entries:
        raise ConfigError(f"api_key_file={shown(path)} has no keys; leave it out for none")
    if mode & stat.S_IROTH and any(entry.key is not None for entry in entries):
        logger.warning("anyone on this machine can read the API keys in %s: chmod 600 it", path)
    return entries


def _api_key(entry: KeyEntry, path: str, ledger: Ledger) -> ApiKey:
    where = f"api_key_file={shown(path)}: "
    if not _NAME.fullmatch(entry.name):
        raise ConfigError(f"{where}the name {shown(entry.name)} must be {NAME_RULE}")
    where += f"the key of {shown(entry.name)} "
    if (entry.key is None) == (entry.sha256 is None):
        raise ConfigError(f"{where}must be given as 'key' or as 'sha256'")
    if entry.sha256 is not None and not _SHA256.fullmatch(entry.sha256):
        raise ConfigError(f"{where}has a sha256 that is not 64 hexadecimal digits")
    if entry.key is not None and (not entry.key or entry.key != entry.key.strip()):
        raise ConfigError(f"{where}is empty, or has white space around it")
    digest = bytes.fromhex(entry.sha256) if entry.sha256 else _digest((entry.key or "").encode())
    if digest == _digest(b""):  # what a request without a key has
        raise ConfigError(f"{where}has the SHA-256 of nothing; give that of a key")
    for name in _COUNTED_LIMITS:
        value: int | None = getattr(entry, name)
        if value is not None and value < 1:
            raise ConfigError(f"{where}has {name}={value}; it must be at least 1")
    limits = KeyLimits(**{name: getattr(entry, name) for name in KeyLimits.__struct_fields__})
    return ApiKey(entry.name, digest, KeyAccount(limits, usage=ledger.usage(entry.name)))


def _digest(key: bytes) -> bytes:
    """Digests are compared, so that the length of a key does not show either."""
    return hashlib.sha256(key).digest()
