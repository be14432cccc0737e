"""The files of the web pages: read once, served from memory.

A digest of all is in every file's path (`/static/DIGEST/js/…`), so that a browser may keep them for
ever; the pages themselves are asked for anew, with an ETag.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
PAGES: Mapping[str, str] = {"/": "playground.html", "/dashboard": "dashboard.html"}
"""Path → file."""

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STATIC = b"{{static}}"
"""What stands in a page for the folder of the other files."""


@dataclass(frozen=True)
class Asset:
    """A file as it is served.

    Attributes:
        is_immutable: whether the content under this path never changes.
    """

    body: bytes
    media_type: str
    is_immutable: bool

    @cached_property
    def etag(self) -> str:
        return f'"{_digest(self.body)}"'

    @cached_property
    def gzipped(self) -> bytes:
        return gzip.compress(self.body, 6, mtime=0)

    @property
    def headers(self) -> dict[str, str]:
        """All but those of the encoding."""
        keep = "public, max-age=31536000, immutable" if self.is_immutable else "no-cache"
        return {
            "content-type": self.media_type,
            "cache-control": keep,
            "etag": self.etag,
            "vary": "accept-encoding",
            "content-security-policy": CONTENT_SECURITY_POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
        }


def load_assets() -> dict[str, Asset]:
    """Path → file, of all pages and what they load."""
    files = {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in _MEDIA_TYPES
    }
    folder = "static/" + _digest(b"\0".join([*map(str.encode, files), *files.values()]))
    assets = {}
    for name, body in files.items():
        if name not in PAGES.values():
            media_type = _MEDIA_TYPES[Path(name).suffix]
            assets[f"/{folder}/{name}"] = Asset(body, media_type, is_immutable=True)
    for path, name in PAGES.items():
        page = files[name].replace(_STATIC, folder.encode())  # relative: a proxy may add a prefix
        assets[path] = Asset(page, _MEDIA_TYPES[".html"], is_immutable=False)
    return assets


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
