"""``sloserve fleet FILE``, its parts as processes of their own, and what is asked beside it: ``logs``, ``key``."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sloserve.cli.http3_flags import (
    Http3Flag,
    Http3PortFlag,
    Http3SelfSignedFlag,
    QuicCongestionFlag,
    QuicSchedulerFlag,
)
from sloserve.cli.root import app

FileArgument = Annotated[Path, typer.Argument(help="The fleet's file, see configs/fleet-tiny.yaml.")]
StateFlag = Annotated[
    Path | None,
    typer.Option(help="Folder for store, files and logs; beside FILE, named like it with .state, if not given."),
]
HostFlag = Annotated[str | None, typer.Option("--host", help="Address to listen on; that of FILE, or 127.0.0.1.")]
PortFlag = Annotated[int | None, typer.Option("--port", help="Port to listen on; that of FILE, or 8000.")]
KeysFlag = Annotated[
    Path | None, typer.Option("--keys", help="File of keys; that of FILE, or none, for this machine alone.")
]
CertfileFlag = Annotated[
    Path | None, typer.Option("--ssl-certfile", help="PEM certificate, for TCP and HTTP/3; plain HTTP if not given.")
]
KeyfileFlag = Annotated[Path | None, typer.Option("--ssl-keyfile", help="Its key.")]
AuthoritiesFlag = Annotated[
    Path | None, typer.Option("--ssl-ca-certs", help="PEM file of who may have signed a client's certificate.")
]
CertReqsFlag = Annotated[
    int | None, typer.Option("--ssl-cert-reqs", min=0, max=2, help="2: clients must show a certificate. Default: 0.")
]
RefreshFlag = Annotated[
    bool | None,
    typer.Option("--enable-ssl-refresh", help="Read certificate files that change, for the next HTTP/3 connection."),
]
LeaseFlag = Annotated[
    float, typer.Option("--lease-s", min=0.5, max=3600.0, help="Seconds that claims hold without a sign of life.")
]
EngineFlag = Annotated[
    str | None, typer.Option("--engine-module", hidden=True, help="Module that is run as an engine, for tests.")
]


class _FileFirst(TyperGroup):
    """``sloserve fleet FILE`` is ``sloserve fleet run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


fleet_app = typer.Typer(cls=_FileFirst, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(fleet_app, name="fleet")


@fleet_app.callback()
def _fleet() -> None:
    """Serve several models on several devices: `sloserve fleet FILE` starts everything that FILE says.

    The parts can be started one by one, on one machine or on several that share a PostgreSQL store.
    """


@fleet_app.command("run")
def run(
    file: FileArgument,
    host: HostFlag = None,
    port: PortFlag = None,
    keys: KeysFlag = None,
    http3: Http3Flag = None,
    quic_scheduler: QuicSchedulerFlag = None,
    quic_congestion: QuicCongestionFlag = None,
    http3_port: Http3PortFlag = None,
    http3_self_signed: Http3SelfSignedFlag = None,
    ssl_certfile: CertfileFlag = None,
    ssl_keyfile: KeyfileFlag = None,
    ssl_ca_certs: AuthoritiesFlag = None,
    ssl_cert_reqs: CertReqsFlag = None,
    enable_ssl_refresh: RefreshFlag = None,
    state: StateFlag = None,
    lease_s: LeaseFlag = 30.0,
    engine_module: EngineFlag = None,
) -> None:
    """Start gateway, planner and an agent for each host, and serve until Ctrl-C. `sloserve fleet FILE` is the same."""
    from sloserve.fleet.gateway import serve
    from sloserve.fleet.run.all_in_one import run_fleet
    from sloserve.fleet.run.live import place_of

    _log()
    given = _gateway_flags(
        host,
        port,
        {"keys": keys, "ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile, "ssl_ca_certs": ssl_ca_certs},
        ssl_cert_reqs=ssl_cert_reqs,
        enable_ssl_refresh=enable_ssl_refresh,
        enabled=http3,
        scheduler=quic_scheduler,
        congestion=quic_congestion,
        http3_port=http3_port,
        self_signed=http3_self_signed,
    )
    fleet = _read(file, given)
    options = ["--lease-s", str(lease_s), *(["--engine-module", engine_module] if engine_module else [])]
    planner_s = min(lease_s, 5.0)
    serve.run(run_fleet(fleet, place_of(fleet, state), _say, agent_options=options, lease_s=planner_s))


@fleet_app.command()
def agent(
    file: FileArgument,
    host: Annotated[str | None, typer.Option("--host", help="Which host of FILE this is.", show_default=False)] = None,
    state: StateFlag = None,
    lease_s: LeaseFlag = 30.0,
    engine_module: EngineFlag = None,
) -> None:
    """Start the agent of one host: it owns the host's devices and starts the engines."""
    from sloserve.fleet.run import live
    from sloserve.fleet.run.agent_process import run_agent
    from sloserve.fleet.run.launchers import launcher_for

    _log()
    fleet = _read(file)
    owned = live.host_named(fleet, host)
    place = live.place_of(fleet, state)

    async def serve() -> None:
        from sloserve.fleet.run.signals import Stopping

        launcher = launcher_for(place, owned, engine_module)
        await run_agent(fleet, owned, place, launcher, Stopping().wait, lease_s=lease_s)

    asyncio.run(serve())


@fleet_app.command()
def gateway(
    file: FileArgument,
    host: HostFlag = None,
    port: PortFlag = None,
    keys: KeysFlag = None,
    http3: Http3Flag = None,
    quic_scheduler: QuicSchedulerFlag = None,
    quic_congestion: QuicCongestionFlag = None,
    http3_port: Http3PortFlag = None,
    http3_self_signed: Http3SelfSignedFlag = None,
    ssl_certfile: CertfileFlag = None,
    ssl_keyfile: KeyfileFlag = None,
    ssl_ca_certs: AuthoritiesFlag = None,
    ssl_cert_reqs: CertReqsFlag = None,
    enable_ssl_refresh: RefreshFlag = None,
    state: StateFlag = None,
) -> None:
    """Start one gateway; any number may share a store."""
    from sloserve.fleet.gateway import serve
    from sloserve.fleet.run.gateway_process import serve_gateway
    from sloserve.fleet.run.live import place_of

    _log()
    given = _gateway_flags(
        host,
        port,
        {"keys": keys, "ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile, "ssl_ca_certs": ssl_ca_certs},
        ssl_cert_reqs=ssl_cert_reqs,
        enable_ssl_refresh=enable_ssl_refresh,
        enabled=http3,
        scheduler=quic_scheduler,
        congestion=quic_congestion,
        http3_port=http3_port,
        self_signed=http3_self_signed,
    )
    fleet = _read(file, given)
    serve.run(serve_gateway(fleet, place_of(fleet, state), _say))


@fleet_app.command()
def planner(file: FileArgument, state: StateFlag = None, lease_s: LeaseFlag = 5.0) -> None:
    """Start one planner; of several that share a store one leads, and another follows when it ends."""
    from sloserve.fleet.run.live import place_of
    from sloserve.fleet.run.planner_process import serve_planner

    _log()
    fleet = _read(file)
    asyncio.run(serve_planner(fleet, place_of(fleet, state), lease_s))


@fleet_app.command()
def key() -> None:
    """Print a new key, and its hash, which stands in the file of keys for it (--keys)."""
    from sloserve.fleet.gateway.keys import new_key

    made, digest = new_key()
    print(f"key:  {made}\nhash: {digest}")


@fleet_app.command()
def logs(
    file: FileArgument,
    model: Annotated[str, typer.Argument(help="A model of FILE.")],
    lines: Annotated[int, typer.Option(min=1, max=100_000, help="Last lines of each engine.")] = 50,
    state: StateFlag = None,
) -> None:
    """Print the last lines of the engines of MODEL on this machine."""
    from sloserve.core.errors import ConfigError, UnknownModel
    from sloserve.fleet.agent.engine_logs import last_lines
    from sloserve.fleet.run.live import place_of

    fleet = _read(file)
    if model not in fleet.models:
        raise ConfigError(str(UnknownModel(model, list(fleet.models))))
    for line in last_lines(place_of(fleet, state).logs, model, lines):
        print(line)


_HTTP3 = {
    "enabled": "--http3",
    "scheduler": "--quic-scheduler",
    "congestion": "--quic-congestion",
    "port": "--http3-port",
    "self_signed": "--http3-self-signed",
}
"""Fields of ``gateway.http3``, and their flags."""


def _gateway_flags(
    host: str | None, port: int | None, files: Mapping[str, Path | None], *, http3_port: int | None, **others: Any
) -> dict[str, Any]:
    """Fields of the section ``gateway`` that flags set; those of HTTP/3 as a mapping."""
    http3 = {name: http3_port if name == "port" else others.pop(name) for name in _HTTP3}
    http3 = {name: value for name, value in http3.items() if value is not None}
    paths = {name: None if path is None else str(path.resolve()) for name, path in files.items()}
    given = {"host": host, "port": port, **paths, **others, "http3": http3 or None}
    return {name: value for name, value in given.items() if value is not None}


def _read(file: Path, given: Mapping[str, Any] | None = None) -> Any:
    """The fleet. given: fields of its section ``gateway`` that win over the file's. Raises: ConfigError."""
    from dataclasses import replace

    from sloserve.core.errors import ConfigError
    from sloserve.files.model import check_model
    from sloserve.fleet.file import read_fleet
    from sloserve.quic.settings import Http3Settings

    fleet, changes = read_fleet(file, to_run=True), dict(given or {})
    if "http3" in changes:
        http3, wrong = check_model(Http3Settings, {**fleet.gateway.http3.model_dump(), **changes["http3"]})
        if http3 is None:
            raise ConfigError("\n".join(f"{_HTTP3[str(problem.path[0])]}: {problem.text}" for problem in wrong))
        if not http3.enabled and (idle := next((name for name in changes["http3"] if name != "enabled"), None)):
            raise ConfigError(f"{_HTTP3[idle]} has no effect without HTTP/3; add --http3")
        changes["http3"] = http3
    return replace(fleet, gateway=fleet.gateway.model_copy(update=changes)) if changes else fleet


def _say(line: str) -> None:
    print(f"sloserve: {line}", flush=True)


def _log() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "httpcore", "asyncio", "quic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
