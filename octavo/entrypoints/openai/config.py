"""The server's configuration, apart from the rest because it is needed before heavy imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.config.sections import option
from octavo.engine.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, parser_names
from octavo.errors import ConfigError, shown

NO_PARSER = "none"
"""The name that turns a parser off."""

MAX_API_SERVERS = 64

LogLevel = Literal["debug", "info", "warning", "error"]

_AT_LEAST = {
    "max_num_queued_reqs": 0,
    "max_num_queued_tokens": 0,
    "max_request_bytes": 1,
    "max_logprobs": -1,
    "api_server_count": 1,
    "shutdown_timeout": 0,
    "body_timeout": 0,
    "stall_timeout": 0,
}


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The HTTP server's own configuration; the flags of `octavo serve` are made from it.

    Raises:
        ConfigError: a value is out of range.
    """

    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0 is all")
    port: int = option(8000, "port to listen at; 0 takes a free one")
    uds: str | None = option(None, "path of a Unix socket to listen at instead")
    api_key: list[str] | None = option(
        None,
        "key that every request but /health needs; may be repeated; the environment variable "
        "OCTAVO_API_KEY (keys separated by commas) keeps it out of the process list",
    )
    api_key_file: str | None = option(
        None,
        "JSON file of keys with names and limits, as docs/server.md has it; read again at SIGHUP",
    )
    served_model_name: list[str] | None = option(
        None, "name of the model in the API; may be repeated; None: as --model gives it"
    )
    api_server_count: int = option(
        1, "processes that speak HTTP, all at one engine core; limits are shared out evenly"
    )
    max_num_queued_reqs: int = option(
        1024, "most sequences that may wait for their first token; more get 503; 0: no limit"
    )
    max_num_queued_tokens: int = option(
        0, "most prompt tokens that may wait; more get 503; 0: no limit"
    )
    max_request_bytes: int = option(8 * 2**20, "largest body; more gets 413")
    max_logprobs: int = option(20, "most alternatives per token that one may ask for; -1: all")
    shutdown_timeout: float = option(30.0, "seconds that requests have to end after SIGTERM")
    body_timeout: float = option(60.0, "seconds that a request's body has to arrive")
    stall_timeout: float = option(
        60.0, "seconds after which a stream is ended whose client takes nothing"
    )
    enable_auto_tool_choice: bool = option(
        False,
        "refuse to start where no tool-call parser is given and none detected (calls are parsed "
        "wherever there is one)",
    )
    tool_call_parser: str | None = option(
        None, "format of the model's tool calls; none: not parsed; None: by the chat template"
    )
    reasoning_parser: str | None = option(
        None, "format of the model's reasoning; none: not parsed; None: by the chat template"
    )
    server_dev_mode: bool = option(
        False,
        "routes that act on the whole server: pause, resume, abort_requests, reset_prefix_cache, "
        "server_info (vLLM's VLLM_SERVER_DEV_MODE)",
    )
    disable_fastapi_docs: bool = option(False, "no /docs and /openapi.json (the name is vLLM's)")
    log_level: LogLevel = option("info", "info has a line per request")

    @property
    def has_keys(self) -> bool:
        """Does a request need a key?"""
        return bool(self.api_key) or self.api_key_file is not None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} must be in 0…65535")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if not value >= least:  # false for NaN too
                raise ConfigError(f"{name}={value} must be at least {least}")
        if self.api_server_count > MAX_API_SERVERS:
            raise ConfigError(
                f"api_server_count={self.api_server_count} must be at most {MAX_API_SERVERS}"
            )
        for name in ("api_key", "served_model_name"):
            if not all(getattr(self, name) or ()):
                raise ConfigError(f"{name} has an empty value; leave it out for none")
        _check_parser("tool_call_parser", self.tool_call_parser, TOOL_FORMATS)
        _check_parser("reasoning_parser", self.reasoning_parser, REASONING_FORMATS)
        if self.enable_auto_tool_choice and self.tool_call_parser == NO_PARSER:
            raise ConfigError("enable_auto_tool_choice needs a tool_call_parser; it is 'none'")
        if self.log_level not in LogLevel.__args__:  # type: ignore[attr-defined]
            raise ConfigError(f"log_level={self.log_level!r} must be debug, info, warning or error")


def _check_parser(option: str, name: str | None, table: Mapping[str, object]) -> None:
    names = [*parser_names(table), NO_PARSER]
    if name is not None and name not in names:
        raise ConfigError(f"{option}={shown(name)} must be one of {', '.join(names)}")
