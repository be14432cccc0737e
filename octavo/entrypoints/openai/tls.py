"""TLS: the server's certificate, and whether clients need one."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from octavo.errors import ConfigError, shown

if TYPE_CHECKING:
    from octavo.entrypoints.openai.config import ServerConfig


class ServerTLS:
    """What the configuration says of TLS, read.

    Attributes:
        context: of all connections; TLS 1.2 at least.

    Raises:
        ConfigError: a file cannot be read, or is wrong.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.context = self._read()

    def reload(self) -> None:
        """Read certificate and key again, for connections to come. Raises ConfigError: all stays as
        it was."""
        self._read()  # or a wrong file would leave half of it
        self._load_certificate(self.context)

    def _read(self) -> ssl.SSLContext:
        config = self._config
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_certificate(context)
        if config.ssl_ca_certs is not None:
            try:
                context.load_verify_locations(config.ssl_ca_certs)
            except (OSError, ssl.SSLError) as error:
                raise _wrong("ssl_ca_certs", config.ssl_ca_certs, error) from None
        context.verify_mode = ssl.VerifyMode(config.ssl_cert_reqs)
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        certificate, key = self._config.ssl_certfile, self._config.ssl_keyfile
        assert certificate is not None, "there is no ServerTLS without"
        try:
            context.load_cert_chain(certificate, key, password="")  # never ask at the terminal
        except (OSError, ssl.SSLError) as error:
            named = certificate if key is None else f"{certificate} with ssl_keyfile={key}"
            raise _wrong("ssl_certfile", named, error) from None


def server_tls(config: ServerConfig) -> ServerTLS | None:
    """None where the configuration has no certificate. Raises ConfigError."""
    return None if config.ssl_certfile is None else ServerTLS(config)


def _wrong(option: str, path: str, error: OSError) -> ConfigError:
    reason = error.strerror or error.__class__.__name__
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no PEM file").replace("_", " ").lower()
    return ConfigError(
        f"{option}={shown(path)} cannot be used: {reason}; give PEM files, without a password"
    )
