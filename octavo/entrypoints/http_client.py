"""A client of OpenAI-compatible servers for our own commands: the standard library, blocking."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import ConfigError, OctavoError, shown

_TIMEOUT_SECONDS = 600.0
"""Between two reads: a busy server may let a request wait."""
_MAX_BODY_BYTES = 64 << 20
_MAX_LINE_BYTES = 16 << 20


class HTTPError(OctavoError):
    """The server cannot be reached, or did not answer as asked. `status` is 0 without an answer;
    `code` is the API's word for what is wrong, where it has one."""

    def __init__(self, message: str, status: int = 0, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Endpoint:
    """Where a server is, and how to ask it.

    Args:
        url: http://HOST:PORT, or https; a path before /v1 may follow.
        api_key: sent as a bearer token.

    Raises:
        ConfigError: a URL or key that cannot be.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        plain = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
            raise ConfigError(f"url={shown(url)} must be like http://127.0.0.1:8000")
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("an API key consists of printable ASCII characters")
        self.url = url
        self.host: str = parts.hostname
        self.port = port or {"http": 80, "https": 443}[parts.scheme]
        self.ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.headers = {"Host": parts.netloc, "Content-Type": "application/json"}
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def get(self, path: str) -> Any:
        """The JSON at a path. Raises HTTPError."""
        with self._answer("GET", path, None) as response:
            return _read_json(response)

    def post(self, path: str, body: Any) -> Any:
        """The JSON that comes for some JSON. Raises HTTPError."""
        with self._answer("POST", path, body) as response:
            return _read_json(response)

    def events(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """The events of a stream, until it says that it is done. Leaving the iterator closes the
        connection, which ends the request.

        Raises:
            HTTPError: no stream came, it broke off, or it held an error.
        """
        with self._answer("POST", path, body) as response:
            while line := response.readline(_MAX_LINE_BYTES):
                if not line.startswith(b"data: "):
                    continue
                if (data := line[6:].strip()) == b"[DONE]":
                    return
                event = _object(data, "an event")
                if "error" in event:
                    raise api_error(event, 200)
                yield event
        raise HTTPError(f"{self.url}: the stream broke off")

    def only_model(self) -> str:
        """The name of the server's model; the first of several. Raises HTTPError."""
        try:
            return str(self.get("/v1/models")["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise HTTPError(f"{self.url} does not say which models it has") from None

    @contextmanager
    def _answer(self, method: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        """A response of status 200, while it is read."""
        if self.ssl is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=_TIMEOUT_SECONDS, context=self.ssl
            )
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, self.prefix + path, data, self.headers)
            response = connection.getresponse()
            if response.status != 200:
                raise api_error(response.read(_MAX_BODY_BYTES), response.status)
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise HTTPError(f"{self.url}: {_reason(error)}") from error
        finally:
            connection.close()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _read_json(response: http.client.HTTPResponse) -> Any:
    return _object(response.read(_MAX_BODY_BYTES), "the answer")


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise HTTPError(f"{what} is no JSON object: {shown(data)}")
    return value


def api_error(body: bytes | dict[str, Any], status: int) -> HTTPError:
    """What an API error says, or the beginning of whatever came instead."""
    try:
        error = (json.loads(body) if isinstance(body, bytes) else body)["error"]
        return HTTPError(str(error["message"]), status, error.get("code"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return HTTPError(f"the server answered with status {status}: {shown(body)}", status)
