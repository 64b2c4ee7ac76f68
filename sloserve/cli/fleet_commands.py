"""``sloserve fleet FILE``, its parts as processes of their own, and what is asked beside it: ``logs``, ``key``."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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
    state: StateFlag = None,
    lease_s: LeaseFlag = 30.0,
    engine_module: EngineFlag = None,
) -> None:
    """Start gateway, planner and an agent for each host, and serve until Ctrl-C. `sloserve fleet FILE` is the same."""
    from sloserve.fleet.gateway import serve
    from sloserve.fleet.run.all_in_one import run_fleet
    from sloserve.fleet.run.live import place_of

    _log()
    fleet = _read(file, host, port, keys)
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
    state: StateFlag = None,
) -> None:
    """Start one gateway; any number may share a store."""
    from sloserve.fleet.gateway import serve
    from sloserve.fleet.run.gateway_process import serve_gateway
    from sloserve.fleet.run.live import place_of

    _log()
    fleet = _read(file, host, port, keys)
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


def _read(file: Path, host: str | None = None, port: int | None = None, keys: Path | None = None) -> Any:
    from dataclasses import replace

    from sloserve.fleet.file import read_fleet

    fleet = read_fleet(file, to_run=True)
    given = {"host": host, "port": port, "keys": None if keys is None else str(keys.resolve())}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(fleet, gateway=fleet.gateway.model_copy(update=changes)) if changes else fleet


def _say(line: str) -> None:
    print(f"sloserve: {line}", flush=True)


def _log() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
