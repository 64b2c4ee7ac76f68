"""``sloserve edge``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.log_flag import LogFlag, LogFormat, begin_logging
from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.root import app


@dataclass(frozen=True, kw_only=True)
class ListenFlags:
    """The address, port and certificate at which HTTP clients reach the edge."""

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
def edge(upstream: UpstreamFlags, listen: ListenFlags, log_format: LogFlag = LogFormat.TEXT) -> None:
    """Forward HTTP requests to an engine host over QUIC.

    They share one connection. The engine host runs `sloserve serve --http3`; with `--ssl-cert-reqs 2
    --ssl-ca-certs FILE` it requires --certfile. Keys and request ids are forwarded. /ready is 200 while there is a
    connection, and an engine host that is silent for 4 s has none. See docs/edge.md.
    """
    from sloserve.wire.optional_http3 import part

    begin_logging(log_format)
    part("edge_server").serve(upstream, listen)
