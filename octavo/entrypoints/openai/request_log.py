"""What generations leave in log and traces besides the HTTP request's own line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from octavo.log import get_logger

if TYPE_CHECKING:
    from octavo.entrypoints.openai.config import ServerConfig
    from octavo.entrypoints.openai.record import RequestRecord
    from octavo.entrypoints.openai.state import ServedModel, Server

logger = get_logger(__name__)


def log_request(
    config: ServerConfig,
    record: RequestRecord,
    model: ServedModel,
    prompts: Sequence[Sequence[int]],
) -> None:
    """A line per prompt, its text cut to `max_log_len` characters, with `--enable-log-requests`.
    Nothing else writes prompts to the log."""
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


def end_in_background(server: Server, record: RequestRecord) -> None:
    """A generation in the background has ended. If its HTTP request was over before, it has a line
    and a span of its own; if not, those of the request tell of it."""
    record.in_background = False
    if not record.is_over:
        return
    seconds = time.monotonic() - record.started
    if server.tracing is not None:
        server.tracing.export(record)
    logger.info(
        "%s in the background ended after %.3fs %s%s",
        record.route,
        seconds,
        record.request_id,
        "" if record.key is None else f" {record.key.name}",
        extra={"fields": record.generation_fields(seconds)},
    )
