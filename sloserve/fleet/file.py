"""The fleet file: models, the hosts on which they can run, and the settings of each engine.

    models:
      chat:  {profile: h100-llama3-8b, share: 0.7}
      legal: {profile: {h100: h100-llama2-7b, a100: a100-llama2-7b}, share: 0.3, active_on: [node-b/0]}
    hosts:
      node-a: {device: h100, devices: 4, host_memory_gib: 256}
      node-b: {device: a100, devices: 2, host_memory_gib: 128}
    switching: {min_active_s: 10, max_wait_s: 60}
    settings:
      policy: edf
      classes: {interactive: {rank: 1, e2e_ms: 20000}, batch: {rank: 2, e2e_ms: 300000}}

A fleet that is to be run, not simulated, says more: ``model`` of each model, what engines are started with, and where
gateway and store are (``live.py``).

Hosts can also join a fleet that is run (``fleet/pool``): ``pool`` says what a host of each kind of device has.

Every fault is one line that names file, line, column, key, value and what is allowed.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.marked_yaml import Node, load_yaml, parse_yaml
from sloserve.core.files.model import Allowed, Problem, at_place, check_model, unknown
from sloserve.estimator.step_time.profile import load_profile, profile_names
from sloserve.fleet.file_checks import not_startable, placed, unserved, wrong_host, wrong_pool, wrongly_adapted
from sloserve.fleet.file_sections import (
    BatchSection,
    CertificateSection,
    GatewaySection,
    HostEntry,
    ModelEntry,
    PoolSection,
    Section,
    Switching,
)
from sloserve.fleet.fleet import EngineStart, Fleet, FleetModel, Host
from sloserve.fleet.planner_rule import QLM, Rule
from sloserve.fleet.router.settings import RouterSettings
from sloserve.fleet.router_section import read_section
from sloserve.scheduler.settings import PluginSettings, file_problems, policy_problems, read_settings

_TOOLS = "--enable-auto-tool-choice"
"""The flag with which an engine calls tools."""

_Entry = TypeVar("_Entry", bound=BaseModel)


class PlacesSection(Section):
    """Locations in which a fleet keeps what outlives its processes."""

    store: Annotated[str | None, Field(min_length=1), Allowed("sqlite:PATH or postgresql://...")] = None
    state: Annotated[str | None, Field(min_length=1), Allowed("the path of a folder")] = None
    files: Annotated[str | None, Field(min_length=1), Allowed("the path of a folder, or s3://BUCKET/PREFIX")] = None


class FleetSections(PlacesSection):
    """The file as it is written."""

    models: Annotated[dict[str, ModelEntry], Field(min_length=1), Allowed("a mapping of name to model")]
    hosts: Annotated[dict[str, HostEntry], Allowed("a mapping of name to host")] = {}
    pool: Annotated[PoolSection, Allowed("a mapping with devices, for hosts that join")] = PoolSection()
    switching: Annotated[Switching, Allowed("when an instance may change its model")] = Switching()
    settings: Annotated[PluginSettings, Allowed("settings of every engine, as configs/serve.yaml")] = PluginSettings()
    gateway: Annotated[GatewaySection, Allowed("address, certificates, keys and limits")] = GatewaySection()
    certificates: Annotated[CertificateSection, Allowed("a mapping with folder, of_gateways")] = CertificateSection()
    batches: Annotated[BatchSection, Allowed("a mapping with file_mb, lines, line_mb")] = BatchSection()
    router: Annotated[RouterSettings | str | None, Allowed("settings of a router, or the path of its file")] = None
    planner: Annotated[str, Allowed("qlm, or a rule: on-demand, collate:max_wait_s=N, edf, sa")] = QLM


def read_fleet(path: str | Path, *, to_run: bool = False) -> Fleet:
    """Return the fleet in the file at ``path``; ``to_run`` checks it for running, else for simulation.

    Raises: ConfigError that lists every fault, one line each.
    """
    return _fleet(load_yaml(Path(path)), str(path), to_run)


def parse_fleet(text: str, source: str = "fleet", *, to_run: bool = False) -> Fleet:
    """Return the fleet in ``text``; ``source`` stands for the file in messages.

    Raises: as :func:`read_fleet`.
    """
    return _fleet(parse_yaml(text, source), source, to_run)


def _fleet(root: Node, source: str, to_run: bool) -> Fleet:
    top = root.mapping(tuple(FleetSections.model_fields))
    problems: list[Problem] = []
    pool = _section(PoolSection, top, "pool", problems)
    wanted = {"models": "a name, and its profile"}
    if not (to_run and (pool.devices or problems)):
        wanted["hosts"] = "a name, its device and how many it has"
    for name, what in wanted.items():
        if name not in top or not top[name].mapping():
            raise top.get(name, root).fail(f"no {name}; a fleet has at least one, under {name}: {what}")
    certificates = _section(CertificateSection, top, "certificates", problems)
    entries = _entries(ModelEntry, top["models"], "models", problems)
    entered = _entries(HostEntry, top["hosts"], "hosts", problems) if "hosts" in top else {}
    for name, entry in entered.items():
        problems += wrong_host(name, entry, certificates)
    problems += wrong_pool(pool, has_hosts=bool(entered), has_certificates="certificates" in top)
    devices = tuple(dict.fromkeys([*(entry.device for entry in entered.values()), *pool.devices]))
    beside = Path(source).parent
    section = top["settings"].plain() if "settings" in top else {}
    settings = _engine_settings(section, problems)
    rule = top["planner"].plain() if "planner" in top else QLM
    try:
        Rule.parse(str(rule), 0.0)
    except ConfigError as error:
        problems.append(Problem(("planner",), str(error)))
    router, wrong = read_section(
        top["router"].plain() if "router" in top else None, beside, tuple(entries), settings.classes.names
    )
    problems += wrong
    places, wrong = check_model(PlacesSection, {k: top[k].plain() for k in PlacesSection.model_fields if k in top})
    problems += wrong
    fleet = Fleet(
        source,
        {name: _model(name, entry, devices, beside, problems) for name, entry in entries.items()},
        {name: _host(name, entry) for name, entry in entered.items()},
        {},
        _section(Switching, top, "switching", problems),
        settings,
        section,
        gateway=_section(GatewaySection, top, "gateway", problems),
        batches=_section(BatchSection, top, "batches", problems),
        router=router,
        planner=rule,
        pool=pool,
        certificates=certificates,
        **(places or PlacesSection()).model_dump(),
    )
    if not problems:  # faults between sections that are right by themselves
        active, problems = placed(fleet, entries)
        problems = [*unserved(fleet), *problems, *wrongly_adapted(fleet), *(not_startable(fleet) if to_run else [])]
        fleet = replace(fleet, active=active)
    if problems:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return fleet


def _engine_settings(section: Any, problems: list[Problem]) -> PluginSettings:
    settings, wrong = read_settings(section)
    wrong += policy_problems(section) if isinstance(section, dict) else []
    wrong += [] if settings is None else file_problems(settings)
    problems += [Problem(("settings", *path), text) for path, text in wrong]
    if settings is not None and settings.http3.enabled:
        problems.append(Problem(("settings", "http3"), "engines of a fleet serve no HTTP/3; move it to gateway"))
    return settings or PluginSettings()


def _section(kind: type[_Entry], top: Mapping[str, Node], name: str, problems: list[Problem]) -> _Entry:
    found, wrong = check_model(kind, top[name].plain() if name in top else {}, (name,))
    problems += wrong
    return found or kind()


def _entries(kind: type[_Entry], section: Node, name: str, problems: list[Problem]) -> dict[str, _Entry]:
    made = {}
    for key, node in section.mapping().items():
        entry, wrong = check_model(kind, node.plain(), (name, key))
        problems += wrong
        if entry is not None:
            made[key] = entry
    return made


def _host(name: str, entry: HostEntry) -> Host:
    host = Host.made(name, entry.device, entry.devices, entry, entry.door)
    return replace(host, attach=entry.attach, serves=entry.serves)


def _model(name: str, entry: ModelEntry, devices: tuple[str, ...], folder: Path, problems: list[Problem]) -> FleetModel:
    stated = entry.profile if isinstance(entry.profile, dict) else dict.fromkeys(devices, entry.profile)
    given = {device: _beside(profile, folder) for device, profile in stated.items()}
    profiles = {}
    for device, profile in given.items():
        at = ("models", name, "profile", *([device] if isinstance(entry.profile, dict) else []))
        if device not in devices:
            problems.append(Problem(at, f"device {device!r} {unknown(device, devices)}"))
            continue
        try:
            profiles[device] = load_profile(profile)
        except ConfigError as error:
            problem = Problem(at, str(error))
            problems += [] if problem in problems else [problem]
    start = EngineStart(entry.model, entry.arguments, entry.environment, entry.adapter_of, given)
    supports = {"grammar"} | ({"tools"} if _TOOLS in entry.arguments else set())
    return FleetModel(
        name,
        profiles,
        entry.share,
        entry.tail,
        entry.flags,
        start,
        frozenset(supports if entry.supports is None else entry.supports),
    )


def _beside(profile: str, folder: Path) -> str:
    """Return the path of a profile, which may lie beside the fleet's file."""
    beside = folder / profile
    is_there = profile not in profile_names() and not Path(profile).is_file() and beside.is_file()
    return str(beside) if is_there else profile


def fleet_schema() -> dict[str, Any]:
    """Return the JSON schema of FleetSections, for ``sloserve schema fleet``."""
    return schema_of(FleetSections, "Fleet of sloserve")
