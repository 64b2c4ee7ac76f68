"""Flags of HTTP/3, the same for an engine and for the gateway of a fleet."""

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class Http3Flags:
    """``None`` where a flag is not given."""

    http3: Annotated[
        bool | None,
        typer.Option(
            "--http3",
            help="Serve HTTP/3 on UDP beside the TCP port, with the certificates of the --ssl-* flags. "
            "See docs/http3.md.",
        ),
    ] = None
    quic_scheduler: Annotated[
        str | None,
        typer.Option(
            help="Order in which streams of an HTTP/3 connection are sent: edf, ml, abs, rr or fcfs. Default: edf."
        ),
    ] = None
    quic_congestion: Annotated[
        str | None,
        typer.Option(
            help="Congestion control of HTTP/3: cubic, reno, or constant (for private links only). Default: cubic."
        ),
    ] = None
    http3_port: Annotated[int | None, typer.Option(help="UDP port of HTTP/3. Default: the number of the TCP port.")] = (
        None
    )
    http3_self_signed: Annotated[
        bool | None,
        typer.Option(
            "--http3-self-signed", help="Make a certificate at start, for HTTP/3 clients on this machine only."
        ),
    ] = None
