"""SIGHUP: the files that the configuration names are read again, while the server goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.front_ends import FrontEnds
    from octavo.entrypoints.openai.keys import KeyRing
    from octavo.entrypoints.openai.tls import ServerTLS

logger = get_logger(__name__)


def reload_at_hangup(
    config: ServerConfig, keys: KeyRing, tls: ServerTLS | None, others: FrontEnds | None = None
) -> None:
    """From now on read the key file and the certificate again at SIGHUP. What is wrong with one of
    them is logged, and it stays as it was. Without such files the signal means the end, as ever.

    Args:
        others: front ends that are to do the same.
    """
    reloads: dict[str, Callable[[], None]] = {}
    if config.api_key_file is not None:
        reloads["API keys"] = keys.reload
    if tls is not None:
        reloads["certificate"] = tls.reload

    def on_hangup() -> None:
        if others is not None:
            others.reload()
        for what, reload in reloads.items():
            try:
                reload()
            except ConfigError as error:
                logger.error("SIGHUP: the old %s stays: %s", what, error)
            else:
                logger.warning("SIGHUP: %s read again", what)

    if reloads:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
