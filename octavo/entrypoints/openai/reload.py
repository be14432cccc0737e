"""SIGHUP: the files that the configuration names are read again, while the server goes on."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.front_ends import FrontEnds
    from octavo.entrypoints.openai.keys import KeyRing

logger = get_logger(__name__)


def reload_at_hangup(config: ServerConfig, keys: KeyRing, others: FrontEnds | None = None) -> None:
    """From now on read the key file again at SIGHUP. What is wrong with it is logged, and all stays
    as it was. Without such a file the signal keeps its meaning, the end.

    Args:
        others: front ends that are to do the same.
    """
    if config.api_key_file is None:
        return

    def on_hangup() -> None:
        if others is not None:
            others.reload()
        try:
            keys.reload()
        except ConfigError as error:
            logger.error("SIGHUP: nothing was read again: %s", error)
        else:
            logger.warning("SIGHUP: %d API keys", len(keys))

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
