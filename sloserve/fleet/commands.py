"""``sloserve fleet FILE``, its parts as processes of their own, and further commands.

They are ``reload``, ``logs``, ``key``, ``usage``, ``certificates`` and ``upgrade``.
"""

import asyncio
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sloserve.cli.log_flag import LogFlag, LogFormat, begin_logging
from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import OneLine, app
from sloserve.core.json_log import say
from sloserve.core.nearest import nearest
from sloserve.fleet.command_flags import (
    EngineFlag,
    FileArgument,
    GatewayFlags,
    HostFlags,
    LeaseFlag,
    PickerArgument,
    PickerFlags,
    StateFlag,
    WatchFlag,
)
from sloserve.sim.report.watch_commands import DEFAULT_URL, UrlFlag, show
from sloserve.wire import optional_http3
from sloserve.wire.http3_flags import Http3Flags
from sloserve.wire.key_command import key as make_key


class _FileFirst(OneLine):
    """Makes ``sloserve fleet FILE`` mean ``sloserve fleet run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help" and not self._mistyped(args[0]):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def _mistyped(self, word: str) -> bool:
        """Return whether ``word`` is like the name of a command, and not like the name of a file."""
        is_path = "." in word or "/" in word or Path(word).exists()
        return not is_path and nearest(word, self.commands) is not None


fleet_app = typer.Typer(cls=_FileFirst, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(fleet_app, name="fleet")


@fleet_app.callback()
def _fleet() -> None:
    """Serve several models on several devices.

    `sloserve fleet FILE` starts everything that FILE describes. The parts can also be started one by one, on one
    machine or on several that share a PostgreSQL store. See docs/fleet-serving.md.
    """


@fleet_app.command("run")
@with_option_groups
def run(
    file: FileArgument,
    gateway: GatewayFlags,
    http3: Http3Flags,
    state: StateFlag = None,
    lease_s: LeaseFlag = 30.0,
    watch_file: WatchFlag = False,
    log_format: LogFlag = LogFormat.TEXT,
    engine_module: EngineFlag = None,
) -> None:
    """Start gateway, planner and agents, and serve until Ctrl-C.

    There is an agent for each host. `sloserve fleet FILE` is the same. On SIGHUP it reads FILE again; see `sloserve
    fleet reload`.
    """
    _log(log_format)
    read = partial(_read, file, _gateway_fields(asdict(gateway) | asdict(http3)))
    fleet = read()

    from sloserve.fleet.gateway import serve  # a mistake in the file is reported before these are loaded
    from sloserve.fleet.run.all_in_one import run_fleet
    from sloserve.fleet.run.live import place_of
    from sloserve.fleet.run.reloading import FleetSource

    options, source = _agent_options(lease_s, engine_module), FleetSource(file, read, watch_file)
    planner_s = min(lease_s, 5.0)
    place = place_of(fleet, state)
    serve.run(run_fleet(fleet, place, say, agent_options=options, lease_s=planner_s, source=source))


@fleet_app.command()
@with_option_groups
def agent(
    file: FileArgument,
    this: HostFlags,
    state: StateFlag = None,
    lease_s: LeaseFlag = 30.0,
    watch_file: WatchFlag = False,
    log_format: LogFlag = LogFormat.TEXT,
    engine_module: EngineFlag = None,
) -> None:
    """Start the agent of one host, which starts its engines.

    The agent owns the host's devices. The host stands in FILE, or joins the fleet by one of FILE's pool.devices. After
    SIGHUP it restarts with FILE as it is then, while engines and streams go on.
    """
    from sloserve.fleet.run import live
    from sloserve.fleet.run.agent_process import run_agent
    from sloserve.fleet.run.file_watch import watch_file as watch
    from sloserve.fleet.run.processes import end_processes, processes_for
    from sloserve.fleet.run.restarting import hold_signals, restart
    from sloserve.fleet.run.signals import Stopping, hang_up_self

    _log(log_format)

    def read() -> Any:
        found = _read(file)
        at = live.place_of(found, state)
        return *live.joining_host(found, this.host, this.device, this.devices, this.address, at), at

    fleet, owned, place = read()

    async def serve() -> bool:
        processes, stopping = processes_for(place, owned, engine_module), Stopping()
        watching = asyncio.create_task(watch(file, hang_up_self)) if watch_file else None
        is_again = await run_agent(fleet, owned, place, processes, stopping, read, lease_s=lease_s)
        if watching is not None:
            watching.cancel()
        hold_signals()  # one that comes from here on is for the next image
        if is_again and stopping.is_set:  # asked to stop after the engines were left to the next agent
            end_processes(place, owned)
        return is_again and not stopping.is_set

    hold_signals()
    if asyncio.run(serve()):
        restart()


@fleet_app.command("gateway")
@with_option_groups
def start_gateway(
    file: FileArgument,
    gateway: GatewayFlags,
    http3: Http3Flags,
    state: StateFlag = None,
    watch_file: WatchFlag = False,
    log_format: LogFlag = LogFormat.TEXT,
) -> None:
    """Start one gateway. Any number of gateways may share a store. On SIGHUP it reads FILE again."""
    from sloserve.fleet.gateway import serve
    from sloserve.fleet.run.gateway_process import serve_gateway
    from sloserve.fleet.run.live import place_of
    from sloserve.fleet.run.reloading import FleetSource

    _log(log_format)
    read = partial(_read, file, _gateway_fields(asdict(gateway) | asdict(http3)))
    fleet = read()
    serve.run(serve_gateway(fleet, place_of(fleet, state), say, FleetSource(file, read, watch_file)))


@fleet_app.command()
def planner(
    file: FileArgument,
    state: StateFlag = None,
    lease_s: LeaseFlag = 5.0,
    watch_file: WatchFlag = False,
    log_format: LogFlag = LogFormat.TEXT,
) -> None:
    """Start one planner. One of several planners on a store leads; when it ends, another takes over.

    On SIGHUP it reads FILE again.
    """
    from sloserve.fleet.run.live import place_of
    from sloserve.fleet.run.planner_process import serve_planner
    from sloserve.fleet.run.reloading import FleetSource

    _log(log_format)
    fleet, source = _read(file), FleetSource(file, partial(_read, file), watch_file)
    asyncio.run(serve_planner(fleet, place_of(fleet, state), lease_s, source))


@fleet_app.command()
def pool(
    file: FileArgument,
    state: StateFlag = None,
    lease_s: LeaseFlag = 30.0,
    log_format: LogFlag = LogFormat.TEXT,
    engine_module: EngineFlag = None,
) -> None:
    """Start an agent on each node of a Ray cluster.

    FILE's pool.ray names the cluster. `sloserve fleet FILE` does it, too.
    """
    from sloserve.fleet.run.live import place_of
    from sloserve.fleet.run.pool_process import serve_pool

    _log(log_format)
    fleet = _read(file)
    asyncio.run(serve_pool(fleet, place_of(fleet, state), say, _agent_options(lease_s, engine_module)))


@fleet_app.command()
def reload(
    file: FileArgument,
    state: StateFlag = None,
    check: Annotated[bool, typer.Option("--check", help="Only check FILE, and print what would change.")] = False,
) -> None:
    """Check FILE, print what changes, and have the fleet apply it.

    No stream is broken off. This is for `sloserve fleet FILE` with the same state folder; gateways, planners and agents
    that were started by themselves apply FILE on SIGHUP, or with --watch-file.
    """
    from sloserve.fleet.run import reload as reloading
    from sloserve.fleet.run.live import place_of

    fleet = _read(file)
    reloading.reload(fleet, place_of(fleet, state), print, only_check=check)


@fleet_app.command()
@with_option_groups
def picker(file: PickerArgument, listen: PickerFlags, log_format: LogFlag = LogFormat.TEXT) -> None:
    """Choose servers for another gateway, as its endpoint picker.

    The gateway is one of the Gateway API. The servers are vLLM's, which others started; no fleet is needed. See
    docs/beside-other-gateways.md.
    """
    try:
        from sloserve.fleet.beside.endpoint_picker.picker_file import read_picker
        from sloserve.fleet.beside.endpoint_picker.picker_server import serve_picker
        from sloserve.fleet.gateway import serve
        from sloserve.fleet.run.signals import Stopping
    except ModuleNotFoundError as error:
        from sloserve.core.extras import not_installed

        raise not_installed("sloserve fleet picker", str(error.name), "picker") from None

    _log(log_format)
    given = {name: value for name, value in asdict(listen).items() if value is not None}
    found = read_picker(file)
    found = replace(found, listen=found.listen.model_copy(update=given))

    async def serve_until_stopped() -> None:
        await serve_picker(found, say, Stopping().wait)

    serve.run(serve_until_stopped())


@fleet_app.command()
def key(as_json: JsonFlag = False) -> None:
    """Print a new key for a client, and its hash.

    The hash belongs in the file of keys (--keys); `sloserve key` is the same.
    """
    make_key(as_json)


@fleet_app.command()
def certificates(
    file: FileArgument,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="Host that joins, of no section in FILE; may be given more than once."),
    ] = None,
) -> None:
    """Make or renew the certificates of FILE's fleet.

    Renewed is what ends within 30 days. The certificates are of the fleet's authority, its gateways, and the agents of
    hosts with `door`.
    """
    from sloserve.core.errors import ConfigError
    from sloserve.fleet.run.live import certificates_of

    fleet = _read(file)
    found = certificates_of(fleet)
    if found is None:
        raise ConfigError(f"{file}: certificates.folder is missing: the folder that they are to be made in")
    named = [host.name for host in fleet.hosts.values() if host.door is not None]
    made = found.issue([*named, *(hosts or ())])
    print("\n".join(f"made {path}" for path in made) or "nothing to do: no certificate ends within 30 days")


@fleet_app.command()
def upgrade(file: FileArgument, state: StateFlag = None) -> None:
    """Bring the tables of the store to this version's schema.

    Every process does so when it starts, if it may. Where it may not (deploy/postgres/roles.sql), run this first, with
    the owner's address in SLOSERVE_FLEET_STORE.
    """
    from sloserve.fleet.run.live import place_of
    from sloserve.fleet.store.migrations import STEPS
    from sloserve.fleet.store.store import open_store

    open_store(place_of(_read(file), state).store).close()
    print(f"the store has schema version {len(STEPS)}")


@fleet_app.command()
def usage(
    file: FileArgument,
    hours: Annotated[int, typer.Option(min=1, max=2208, help="Number of hours, the current one counted.")] = 24,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV in place of the table.")] = False,
    as_json: JsonFlag = False,
    state: StateFlag = None,
) -> None:
    """Print what tenants have used of the fleet, by hour.

    Printed are requests, tokens of prompts and of outputs, promises, and the same counts of lines of batches. The
    store keeps 92 days.
    """
    from sloserve.fleet.run.live import place_of
    from sloserve.fleet.store.store import open_store
    from sloserve.fleet.usage_report import as_text

    store = open_store(place_of(_read(file), state).store)
    try:
        rows = store.usage.since(hours)
    finally:
        store.close()
    print(as_text(rows, "csv" if as_csv else "json" if as_json else "table"))


@fleet_app.command()
def logs(
    file: FileArgument,
    model: Annotated[str, typer.Argument(help="A model of FILE.")],
    lines: Annotated[int, typer.Option(min=1, max=100_000, help="Number of lines per engine.")] = 50,
    state: StateFlag = None,
) -> None:
    """Print the last log lines of MODEL's engines here."""
    from sloserve.core.errors import ConfigError, UnknownModel
    from sloserve.fleet.agent.engine_logs import last_lines
    from sloserve.fleet.run.live import place_of

    fleet = _read(file)
    if model not in fleet.models:
        raise ConfigError(str(UnknownModel(model, list(fleet.models))))
    for line in last_lines(place_of(fleet, state).logs, model, lines):
        print(line)


@fleet_app.command("top")
def fleet_top(url: UrlFlag = DEFAULT_URL) -> None:
    """Show live what a fleet does, until q or Ctrl-C.

    Shown are instances and their models, switches and waiting requests. The key is the gateway's admin key, read
    from the environment: SLOSERVE_ADMIN_KEY. See docs/watch.md.
    """
    show(url)


def _gateway_fields(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the section ``gateway`` that flags set, with the fields of HTTP/3 as a mapping.

    All flags except the flags of HTTP/3 have the names of their fields.
    """
    given = {
        name: str(value.resolve()) if isinstance(value, Path) else value
        for name, value in flags.items()
        if value is not None
    }
    http3 = {field: given.pop(flag) for field, flag in optional_http3.FLAGS.items() if flag in given}
    return {**given, **({"http3": http3} if http3 else {})}


def _agent_options(lease_s: float, engine_module: str | None) -> list[str]:
    """Return the options with which an agent is started."""
    return ["--lease-s", str(lease_s), *(["--engine-module", engine_module] if engine_module else [])]


def _flag(field: str) -> str:
    return "--" + optional_http3.FLAGS[field].replace("_", "-")


def _read(file: Path, given: Mapping[str, Any] | None = None) -> Any:
    """Return the fleet; the fields ``given`` of its section ``gateway`` win over the file's. Raises: ConfigError."""
    from sloserve.core.errors import ConfigError
    from sloserve.core.files.model import check_model
    from sloserve.fleet.file import read_fleet
    from sloserve.wire.optional_http3 import Http3Settings

    fleet, changes = read_fleet(file, to_run=True), dict(given or {})
    if "http3" in changes:
        http3, wrong = check_model(Http3Settings, {**fleet.gateway.http3.model_dump(), **changes["http3"]})
        if http3 is None:
            raise ConfigError("\n".join(f"{_flag(str(problem.path[0]))}: {problem.text}" for problem in wrong))
        if not http3.enabled and (idle := next((name for name in changes["http3"] if name != "enabled"), None)):
            raise ConfigError(f"{_flag(idle)} has no effect without HTTP/3; add --http3")
        changes["http3"] = http3
    return replace(fleet, gateway=fleet.gateway.model_copy(update=changes)) if changes else fleet


def _log(wanted: LogFormat) -> None:
    begin_logging(wanted)  # call this first: basicConfig does not change what it configured
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "httpcore", "asyncio", "quic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
