"""``sloserve edge``."""

import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.root import app
from sloserve.core.errors import ConfigError

PING_S, SILENT_S = 1.0, 4.0
"""How often the edge pings the engine host, and after how long a silence the host counts as dead."""


@dataclass(frozen=True, kw_only=True)
class ListenFlags:
    """Where HTTP clients reach the edge."""

    host: Annotated[str, typer.Option(help="Address to listen on for HTTP clients.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="TCP port to listen on.")] = 8080
    ssl_certfile: Annotated[Path | None, typer.Option(help="PEM certificate for clients; plain HTTP if not given.")] = (
        None
    )
    ssl_keyfile: Annotated[Path | None, typer.Option(help="PEM key of --ssl-certfile.")] = None


@dataclass(frozen=True, kw_only=True)
class UpstreamFlags:
    """The connection to the engine host."""

    upstream: Annotated[str, typer.Option(help="The engine host, e.g. https://engine:8000, reached over HTTP/3.")]
    ca: Annotated[Path | None, typer.Option(help="PEM file of authorities for the engine host's certificate.")] = None
    certfile: Annotated[Path | None, typer.Option(help="PEM certificate that the edge shows the engine host.")] = None
    keyfile: Annotated[Path | None, typer.Option(help="PEM key of --certfile.")] = None
    quic_scheduler: Annotated[str, typer.Option(help="Order in which streams are sent: edf, ml, abs, rr or fcfs.")] = (
        "edf"
    )
    quic_congestion: Annotated[
        str, typer.Option(help="cubic, reno, or constant (only for private links of known bandwidth).")
    ] = "cubic"
    window_bytes: Annotated[
        int, typer.Option(min=2400, help="Size of a constant window: 1.5 x bandwidth x round trip time.")
    ] = 75_000
    max_requests: Annotated[
        int,
        typer.Option(min=1, help="Most requests on the connection at once; at most http3.streams of the engine host."),
    ] = 128
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Most requests that wait for a stream; further ones get 503.")
    ] = 1024


@app.command()
@with_option_groups
def edge(upstream: UpstreamFlags, listen: ListenFlags) -> None:
    """Forward the requests of HTTP clients to an engine host over one QUIC connection.

    The engine host runs `sloserve serve --http3`; with `--ssl-cert-reqs 2 --ssl-ca-certs FILE` it requires --certfile.
    Keys and request ids are forwarded. /ready is 200 while there is a connection, and an
    engine host that is silent for 4 s has none. See docs/edge.md.
    """
    try:
        import uvicorn

        from sloserve.quic import self_check
        from sloserve.quic.client_settings import ClientSettings
        from sloserve.quic.edge import Edge, EdgeSettings
        from sloserve.quic.schedulers import scheduler
    except ImportError as error:
        raise ConfigError(
            f"sloserve edge needs {error.name}, which is not installed: pip install 'sloserve[http3]'"
        ) from error

    scheduler(upstream.quic_scheduler)
    self_check.check(upstream.quic_scheduler)
    if upstream.quic_congestion not in ("cubic", "reno", "constant"):
        raise ConfigError(f"--quic-congestion: {upstream.quic_congestion!r} is not one of cubic, reno, constant")
    for one, other, names in (
        (upstream.certfile, upstream.keyfile, "--certfile and --keyfile"),
        (listen.ssl_certfile, listen.ssl_keyfile, "--ssl-certfile and --ssl-keyfile"),
    ):
        if (one is None) != (other is None):
            raise ConfigError(f"{names} belong together; give both or none")
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
    url = f"http{'s' if listen.ssl_certfile else ''}://{listen.host}:{listen.port}"
    print(f"sloserve edge on {url}, forwarding to {upstream.upstream}", flush=True)
    uvicorn.run(
        Edge(settings),
        host=listen.host,
        port=listen.port,
        log_level="warning",
        ssl_certfile=_text(listen.ssl_certfile),
        ssl_keyfile=_text(listen.ssl_keyfile),
        timeout_graceful_shutdown=5,
    )


def address_of(url: str) -> tuple[str, int]:
    """Host and port of the engine host. Raises: ConfigError."""
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
