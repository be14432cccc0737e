"""The one place where the version is read: from the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("octavo")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0+source"
