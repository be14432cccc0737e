"""The server's configuration, apart from the rest because it is needed before heavy imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from octavo.config.sections import option
from octavo.errors import ConfigError, shown
from octavo.log import LogFormat

NO_PARSER = "none"
"""The name that turns a parser off."""

MAX_API_SERVERS = 64
MAX_RESUME_TIMEOUT = 86400.0

LogLevel = Literal["debug", "info", "warning", "error"]

_AT_LEAST = {
    "max_num_queued_reqs": 0,
    "max_num_queued_tokens": 0,
    "max_request_bytes": 1,
    "max_logprobs": -1,
    "api_server_count": 1,
    "max_batch_file_bytes": 1,
    "max_batch_storage_bytes": 1,
    "max_batch_lines_in_flight": 0,
    "shutdown_timeout": 0,
    "body_timeout": 0,
    "stall_timeout": 0,
    "resume_timeout": 0,
    "request_timeout": 0,
}
_WITHOUT_EMPTY = (
    *("api_key", "served_model_name", "allowed_origins", "allowed_methods", "allowed_headers"),
)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s\"',\[]+|[a-z]+://\[[0-9a-f:]+\](:\d+)?")


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
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "JSON file of keys with names and limits, as docs/server.md has it; read again at SIGHUP",
    )
    ssl_certfile: str | None = option(None, "certificate chain (PEM): serve over TLS")
    ssl_keyfile: str | None = option(None, "its private key, if that is not in the same file")
    ssl_ca_certs: str | None = option(None, "certificates that sign those of clients (PEM)")
    ssl_cert_reqs: int = option(
        0, "client certificates: 0 not asked for, 1 checked where given, 2 needed"
    )
    allowed_origins: list[str] | None = option(
        None, "web origin that may use the server from browsers (CORS), or *; may be repeated"
    )
    allowed_methods: list[str] | None = option(
        None, "method that those origins may use; may be repeated; None: all"
    )
    allowed_headers: list[str] | None = option(
        None, "header that those origins may send; may be repeated; None: all"
    )
    allow_credentials: bool = option(False, "those origins may send cookies")
    served_model_name: list[str] | None = option(
        None, "name of the model in the API; may be repeated; None: as --model gives it"
    )
    api_server_count: int = option(
        1, "processes that speak HTTP, all at one engine core; each has its part of the queue"
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
    resume_timeout: float = option(
        60.0,
        "seconds for which a resumable stream goes on, and is kept, without a client; 0: no stream "
        "is resumable",
    )
    request_timeout: float = option(
        0.0, "seconds after which a request ends with what it has (finish_reason timeout); 0: never"
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
    enable_force_include_usage: bool = option(
        False, "streams end with their usage, whether they ask for it or not"
    )
    server_dev_mode: bool = option(
        False,
        "routes that act on the whole server: pause, resume, abort_requests, reset_prefix_cache, "
        "server_info (vLLM's VLLM_SERVER_DEV_MODE)",
    )
    enable_tokenizer_info_endpoint: bool = option(
        False, "GET /tokenizer_info tells the tokenizer's configuration, chat template included"
    )
    enable_batches: bool = option(True, "the Files and Batches APIs")
    batch_dir: str | None = option(
        None,
        "folder of files and batches; None: one under OCTAVO_HOME for the served names, created "
        "when there is something to store",
    )
    max_batch_file_bytes: int = option(200 * 2**20, "largest uploaded file; more gets 413")
    max_batch_storage_bytes: int = option(20 * 2**30, "most bytes of all files together")
    max_batch_lines_in_flight: int = option(
        0, "most lines of batches that run at once; 0: three quarters of --max-num-seqs"
    )
    trust_request_chat_template: bool = option(
        False, "requests may bring a chat template; it runs within the limits of the model's own"
    )
    disable_fastapi_docs: bool = option(False, "no /docs and /openapi.json (the name is vLLM's)")
    log_level: LogLevel = option("info", "info has a line per request")
    log_format: LogFormat = option("text", "json: an object per line")
    enable_log_requests: bool = option(False, "log prompts and parameters, too")
    max_log_len: int | None = option(None, "most characters of a prompt in the log; None: all")
    otlp_traces_endpoint: str | None = option(
        None, "URL of an OpenTelemetry collector (OTLP over HTTP) for traces; needs the extra otel"
    )

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
        if self.resume_timeout > MAX_RESUME_TIMEOUT:
            raise ConfigError(
                f"resume_timeout={self.resume_timeout} must be at most {MAX_RESUME_TIMEOUT}"
            )
        for name in _WITHOUT_EMPTY:
            if not all(getattr(self, name) or ()):
                raise ConfigError(f"{name} has an empty value; leave it out for none")
        _check_tls(self)
        _check_cors(self)
        if self.max_log_len is not None and self.max_log_len < 0:
            raise ConfigError(f"max_log_len={self.max_log_len} must be at least 0")
        if self.log_format not in LogFormat.__args__:  # type: ignore[attr-defined]
            raise ConfigError(f"log_format={self.log_format!r} must be text or json")
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"otlp_traces_endpoint={shown(endpoint)} must be a URL, as "
                "http://localhost:4318/v1/traces"
            )
        if self.tool_call_parser is not None or self.reasoning_parser is not None:
            from octavo.engine.parsers.formats import REASONING_FORMATS, TOOL_FORMATS

            _check_parser("tool_call_parser", self.tool_call_parser, TOOL_FORMATS)
            _check_parser("reasoning_parser", self.reasoning_parser, REASONING_FORMATS)
        if self.enable_auto_tool_choice and self.tool_call_parser == NO_PARSER:
            raise ConfigError("enable_auto_tool_choice needs a tool_call_parser; it is 'none'")
        if self.log_level not in LogLevel.__args__:  # type: ignore[attr-defined]
            raise ConfigError(f"log_level={self.log_level!r} must be debug, info, warning or error")


def _check_tls(config: ServerConfig) -> None:
    if config.ssl_cert_reqs not in (0, 1, 2):
        raise ConfigError(f"ssl_cert_reqs={config.ssl_cert_reqs} must be 0, 1 or 2")
    if config.ssl_certfile is None and (config.ssl_keyfile or config.ssl_ca_certs):
        raise ConfigError("ssl_keyfile and ssl_ca_certs need ssl_certfile, the server's own")
    if config.ssl_cert_reqs and config.ssl_ca_certs is None:
        raise ConfigError(
            f"ssl_cert_reqs={config.ssl_cert_reqs} needs ssl_ca_certs, to check certificates by"
        )


def _check_cors(config: ServerConfig) -> None:
    origins = config.allowed_origins or ()
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"allowed_origins={shown(origin)} must be * or an origin as https://example.org, "
                "without a path; repeat the flag for more"
            )
    if not origins and (
        config.allowed_methods or config.allowed_headers or config.allow_credentials
    ):
        raise ConfigError(
            "allowed_methods, allowed_headers and allow_credentials need allowed_origins"
        )
    if config.allow_credentials and "*" in origins:
        raise ConfigError(
            "allow_credentials with allowed_origins=* would let every web page use the server as "
            "the person who looks at it; name the origins"
        )


def _check_parser(option: str, name: str | None, table: Mapping[str, object]) -> None:
    from octavo.engine.parsers.formats import parser_names

    names = [*parser_names(table), NO_PARSER]
    if name is not None and name not in names:
        raise ConfigError(f"{option}={shown(name)} must be one of {', '.join(names)}")
