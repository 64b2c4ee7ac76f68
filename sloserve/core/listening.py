"""What a server needs before it can listen, tried before anything else is started: a free port, a readable key."""

import socket
import ssl

from sloserve.core.errors import ConfigError


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def cannot_listen(host: str, port: int, error: Exception) -> ConfigError:
    """Return the error for the operator for an OSError or OverflowError of ``bind``."""
    reason = getattr(error, "strerror", None) or str(error).rstrip(".")
    return ConfigError(f"cannot listen on {host} port {port}: {reason}; choose another with --port or --host")


def check_port_free(host: str, port: int) -> None:
    """Raise ConfigError if a server could not listen there; the server binds the port itself, later."""
    with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise cannot_listen(host, port, error) from error


def check_certificate(certfile: str | None, keyfile: str | None) -> None:
    """Raise ConfigError for one without the other, and for files that are no PEM certificate and key."""
    if (certfile is None) != (keyfile is None):
        raise ConfigError("--ssl-certfile and --ssl-keyfile belong together; give both or none")
    if certfile is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile)
        except OSError as error:
            raise ConfigError(
                f"--ssl-certfile {certfile}, --ssl-keyfile {keyfile}: no PEM certificate and key: {error}"
            ) from None
