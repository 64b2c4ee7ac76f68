"""Arguments and flags of the commands of ``sloserve fleet``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

FileArgument = Annotated[Path, typer.Argument(help="The fleet's file, see configs/fleet-tiny.yaml.")]
StateFlag = Annotated[
    Path | None,
    typer.Option(help="Folder for store, files and logs. Default: FILE with the ending .state."),
]
LeaseFlag = Annotated[
    float,
    typer.Option(
        "--lease-s",
        min=0.5,
        max=3600.0,
        help="Seconds without a sign of life after which the claims of a process expire.",
    ),
]
WatchFlag = Annotated[
    bool,
    typer.Option(
        "--watch-file", help="Look every 5 s whether FILE has changed, and apply it as on SIGHUP, as for a ConfigMap."
    ),
]
EngineFlag = Annotated[
    str | None, typer.Option("--engine-module", hidden=True, help="Module that is run as an engine, for tests.")
]


@dataclass(frozen=True, kw_only=True)
class GatewayFlags:
    """Address, keys and certificates of a gateway; a flag that is not given is ``None``, and the file decides."""

    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: FILE's, or 127.0.0.1.")] = None
    port: Annotated[int | None, typer.Option(help="Port to listen on. Default: FILE's, or 8000.")] = None
    keys: Annotated[
        Path | None, typer.Option(help="File of keys. Default: FILE's; without one, only this machine may connect.")
    ] = None
    ssl_certfile: Annotated[
        Path | None, typer.Option(help="PEM certificate for TCP and HTTP/3; plain HTTP if not given.")
    ] = None
    ssl_keyfile: Annotated[Path | None, typer.Option(help="PEM key of --ssl-certfile.")] = None
    ssl_ca_certs: Annotated[Path | None, typer.Option(help="PEM file of authorities for client certificates.")] = None
    ssl_cert_reqs: Annotated[
        int | None, typer.Option(min=0, max=2, help="2: clients must show a certificate. Default: 0.")
    ] = None
    enable_ssl_refresh: Annotated[
        bool | None,
        typer.Option("--enable-ssl-refresh", help="Read changed certificate files again, for new HTTP/3 connections."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class HostFlags:
    """Flags that say which host of the fleet this machine is, and what it has if it joins."""

    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Name of this host in FILE, or any where it joins. Default: the only one, or this machine's.",
            show_default=False,
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(help="Kind of its devices, of FILE's pool.devices, where it joins.", show_default=False),
    ] = None
    devices: Annotated[
        int | None, typer.Option(min=1, max=1024, help="How many, where FILE does not say it.", show_default=False)
    ] = None
    address: Annotated[
        str | None,
        typer.Option(help="Address at which gateways on other hosts reach it, on a free port.", show_default=False),
    ] = None


PickerArgument = Annotated[Path, typer.Argument(help="The picker's file, see configs/picker.yaml.")]


@dataclass(frozen=True, kw_only=True)
class PickerFlags:
    """Address of an endpoint picker; a flag that is not given is ``None``, and the file decides."""

    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: FILE's, or 127.0.0.1.")] = None
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of gRPC. Default: FILE's, or 9002.")] = None
    health_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of a health service of its own. Default: --port.")
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of HTTP with /metrics. Default: FILE's, or none.")
    ] = None
