"""The process of an edge: ``sloserve edge``."""

import urllib.parse
from pathlib import Path
from typing import Any

import uvicorn

from sloserve.core.errors import ConfigError
from sloserve.core.json_log import logs_are_json, say
from sloserve.core.listening import check_certificate, check_port_free
from sloserve.http3 import self_check
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.edge import Edge, EdgeSettings
from sloserve.http3.stream_schedulers import scheduler

PING_S, SILENT_S = 1.0, 4.0
"""Seconds between two pings of the engine host, and seconds of silence after which it counts as dead."""


def serve(upstream: Any, listen: Any) -> None:
    """Serve until the process is asked to stop.

    Args:
        upstream: The flags of the connection to the engine host, see :mod:`sloserve.wire.edge_command`.
        listen: The flags of the port for clients, see :mod:`sloserve.wire.edge_command`.

    Raises: ConfigError.
    """
    scheduler(upstream.quic_scheduler)
    self_check.check(upstream.quic_scheduler)
    if upstream.quic_congestion not in ("cubic", "reno", "constant"):
        raise ConfigError(f"--quic-congestion: {upstream.quic_congestion!r} is not one of cubic, reno, constant")
    if (upstream.certfile is None) != (upstream.keyfile is None):
        raise ConfigError("--certfile and --keyfile belong together; give both or none")
    check_certificate(_text(listen.ssl_certfile), _text(listen.ssl_keyfile))
    address = address_of(upstream.upstream)
    client = ClientSettings(
        scheduler=upstream.quic_scheduler,
        congestion=upstream.quic_congestion,
        window_bytes=upstream.window_bytes,
        ca_file=_text(upstream.ca),
        certfile=_text(upstream.certfile),
        keyfile=_text(upstream.keyfile),
        keep_alive_s=PING_S,
        silent_s=SILENT_S,
        requests=upstream.max_requests,
    )
    client.configuration(address[0])  # says now which file cannot be read
    settings = EdgeSettings(*address, client, upstream.max_requests, upstream.max_waiting)
    check_port_free(listen.host, listen.port)
    url = f"http{'s' if listen.ssl_certfile else ''}://{listen.host}:{listen.port}"
    say(f"edge on {url}, forwarding to {upstream.upstream}")
    uvicorn.run(
        Edge(settings),
        host=listen.host,
        port=listen.port,
        log_level="warning",
        log_config=None if logs_are_json() else uvicorn.config.LOGGING_CONFIG,
        ssl_certfile=_text(listen.ssl_certfile),
        ssl_keyfile=_text(listen.ssl_keyfile),
        timeout_graceful_shutdown=5,
    )


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of the engine host.

    Raises: ConfigError for an URL that is not ``https://HOST:PORT``.
    """
    try:
        found = urllib.parse.urlsplit(url)
        port = found.port or 443
    except ValueError:
        found, port = urllib.parse.urlsplit(""), 0
    if found.scheme != "https" or not found.hostname or found.path not in ("", "/") or found.query:
        raise ConfigError(f"--upstream: {url!r} is not of the form https://HOST:PORT")
    return found.hostname, port


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
