"""`--enable-log-requests`: what users ask for, in the log. Nothing else writes prompts there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.record import RequestRecord
    from octavo.entrypoints.openai.state import ServedModel

logger = get_logger(__name__)


def log_request(
    config: ServerConfig,
    record: RequestRecord,
    model: ServedModel,
    prompts: Sequence[Sequence[int]],
) -> None:
    """A line per prompt, its text cut to `max_log_len` characters, if the configuration asks for
    it."""
    if not config.enable_log_requests:
        return
    for prompt in prompts:
        text = model.engine.tokenizer.decode(
            list(prompt[: config.max_log_len]), skip_special_tokens=False
        )[: config.max_log_len]
        logger.info(
            "request %s: prompt %r, params %s",
            record.request_id,
            text,
            record.params,
            extra={"fields": {"prompt": text, "params": str(record.params)}},
        )
