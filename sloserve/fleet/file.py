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

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.kinds import reading
from sloserve.core.files.marked_yaml import Node, load_yaml, parse_yaml
from sloserve.core.files.model import Allowed, Problem, at_place, check_model, unknown
from sloserve.estimator.step_time.profile import load_profile, profile_names
from sloserve.fleet.file_sections import (
    BatchSection,
    CertificateSection,
    GatewaySection,
    HostEntry,
    MediaSection,
    ModelEntry,
    PoolSection,
    Section,
    Switching,
)
from sloserve.fleet.fleet import AttachedShape, EngineStart, Fleet, FleetModel, Host, no_instances
from sloserve.fleet.planner_rule import QLM, Rule
from sloserve.fleet.router.settings import RouterSettings
from sloserve.fleet.router_section import read_section
from sloserve.scheduler.settings import PluginSettings, file_problems, policy_problems, read_settings
from sloserve.scheduler.virtual_queues.model_swap import model_swap
from sloserve.wire.headers import TENANT
from sloserve.wire.peers import LOOPBACK, TrustedProxies

_TOOLS = "--enable-auto-tool-choice"
"""The flag with which an engine calls tools."""

_Entry = TypeVar("_Entry", bound=BaseModel)


class PlacesSection(Section):
    """Locations in which a fleet keeps what outlives its processes."""

    store: Annotated[str | None, Field(min_length=1), Allowed("sqlite:PATH or postgresql://...")] = None
    state: Annotated[str | None, Field(min_length=1), Allowed("the path of a folder")] = None
    files: Annotated[str | None, Field(min_length=1), Allowed("the path of a folder, or s3://BUCKET/PREFIX")] = None


class FleetSections(PlacesSection, MediaSection):
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
    with reading("fleet", Path(path)):
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
        problems += [*wrong_host(name, entry, certificates), *wrong_shape(name, entry, entered, to_run=to_run)]
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
    media, wrong = check_model(MediaSection, {k: top[k].plain() for k in MediaSection.model_fields if k in top})
    problems += wrong
    fleet = Fleet(
        source,
        {name: _model(name, entry, devices, beside, problems) for name, entry in entries.items()},
        {name: _host(name, entry, beside, problems) for name, entry in entered.items()},
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
        media_domains=(media or MediaSection()).media_domains,
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
    if settings is not None and settings.keys is not None:
        problems.append(Problem(("settings", "keys"), "engines of a fleet check no keys; move it to gateway"))
    if settings is not None:
        problems += _unheard_tenants(settings)
    return settings or PluginSettings()


def _unheard_tenants(settings: PluginSettings) -> Iterator[Problem]:
    """Yield a problem for each setting by which engines would ignore the tenants that the gateway states."""
    if TENANT not in settings.tenant_headers:
        text = f"the gateway states tenants to engines in {TENANT}, which is not listed; leave them out"
        yield Problem(("settings", "tenant_headers"), text)
    if not TrustedProxies(settings.trusted_proxies).trust(None):
        text = f"engines learn tenants from the agent beside them, and {LOOPBACK[0]} is not listed; leave them out"
        yield Problem(("settings", "trusted_proxies"), text)


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


def _host(name: str, entry: HostEntry, folder: Path, problems: list[Problem]) -> Host:
    host = Host.made(name, entry.device, entry.devices, entry, entry.door)
    host = replace(host, attach=entry.attach, serves=entry.serves)
    if entry.shape is None:
        return host
    stated, profile = entry.shape, None
    if stated.prefill is not None:
        try:
            profile = load_profile(_beside(stated.prefill.profile, folder))
        except ConfigError as error:
            problems.append(Problem(("hosts", name, "shape", "prefill", "profile"), str(error)))
    engines = 1 if stated.prefill is None else stated.prefill.engines
    shape = AttachedShape(stated.tensor_parallel, stated.pipeline_parallel, profile, engines)
    return replace(host, width=entry.devices, shape=shape)


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


SET_BY_FLEET = ("--uds", "--host", "--port", "--served-model-name", "--slo-config", "--enable-lora", "--admin-key")
"""Flags of ``sloserve serve`` that the fleet itself sets for an engine."""


def wrong_pool(pool: PoolSection, has_hosts: bool, has_certificates: bool) -> list[Problem]:
    """Return problems of the pool: kinds of devices that no host can join with, and conflicts with a Ray cluster."""
    problems = []
    for kind, template in pool.devices.items():
        at = ("pool", "devices", kind)
        if template.most is not None and (pool.ray is None or template.devices is None):
            text = "needs ray and devices to ask for hosts: without them, others add hosts"
            problems.append(Problem((*at, "most"), text))
        if template.most is not None and template.most < template.least:
            problems.append(Problem((*at, "most"), f"{template.most} is below least, {template.least}"))
        if template.devices is not None and template.devices % template.width:
            problems.append(Problem((*at, "devices"), no_instances(template.devices, template.width)))
    if pool.ray is None:
        return problems
    at_ray = ("pool", "ray")
    if not pool.devices:
        problems.append(Problem(at_ray, "needs pool.devices: what a node of each kind of device has"))
    if has_certificates:
        text = "agents on nodes have no certificates: keep the cluster on a private network, and leave out certificates"
        problems.append(Problem(at_ray, text))
    if has_hosts:
        text = "nodes of a cluster and hosts of the file could be the same machines; leave out hosts"
        problems.append(Problem(at_ray, text))
    return problems


def wrong_host(name: str, entry: HostEntry, certificates: CertificateSection) -> list[Problem]:
    """Return problems of a host: its devices and instances, its attached server, and its use of certificates."""
    problems = []
    if entry.devices % entry.width:
        problems.append(Problem(("hosts", name, "devices"), no_instances(entry.devices, entry.width)))
    if (entry.attach is None) != (entry.serves is None):
        text = "attach and serves belong together: a server, and the model that it has"
        problems.append(Problem(("hosts", name), text))
    if entry.attach is not None and entry.shape is None and entry.devices != entry.width:
        text = f"{entry.devices} devices of a server that is attached are one instance; give width: {entry.devices}"
        problems.append(Problem(("hosts", name, "devices"), text))
    if entry.door is not None and entry.door.startswith("https:") != (certificates.folder is not None):
        text = "https:// needs certificates.folder, and http:// does not allow it; change one of them"
        problems.append(Problem(("hosts", name, "door"), f"{entry.door}: {text}"))
    return problems


def wrong_shape(name: str, entry: HostEntry, hosts: Mapping[str, HostEntry], *, to_run: bool) -> list[Problem]:
    """Return problems of the shape of an attached server: its devices, and other hosts of its kind of device."""
    shape, at = entry.shape, ("hosts", name, "shape")
    if shape is None:
        return []
    if not to_run:
        return [Problem(at, "a simulated fleet has neither pipelines nor pairs; leave the host out")]
    problems = []
    if entry.attach is None:
        problems.append(Problem(at, "belongs to a server that is attached; the fleet itself starts engines of width"))
    if entry.width != 1:
        problems.append(Problem(("hosts", name, "width"), "is all devices of a server with a shape; leave it out"))
    if shape.devices != entry.devices:
        text = f"{entry.devices} is not the {shape.devices} of shape, in all of its engines and stages"
        problems.append(Problem(("hosts", name, "devices"), text))
    if entry.devices % shape.nodes:
        problems.append(Problem((*at, "nodes"), f"{entry.devices} devices are not spread evenly over {shape.nodes}"))
    other = next((one for one in hosts.values() if one.device == entry.device and one.shape != shape), None)
    if other is not None:
        text = "hosts of one kind of device have one shape, since it decides their speed; give this one another device"
        problems.append(Problem(("hosts", name, "device"), f"{entry.device}: {text}"))
    if shape.prefill is not None and shape.pipeline_parallel > 1:
        problems.append(Problem((*at, "pipeline_parallel"), "is 1 in a pair: no times of such pairs are known"))
    return problems


def unserved(fleet: Fleet) -> list[Problem]:
    """Return models that no instance can serve, and profiles without the size of weights that a swap needs."""
    problems = []
    joining = [Host.made(f"pool.devices.{k}", k, one.width, one) for k, one in fleet.pool.devices.items()]
    hosts = [*fleet.hosts.values(), *joining]
    for host in fleet.hosts.values():
        if host.serves is not None and host.serves not in fleet.models_on(host):
            text = f"{host.serves!r} is no model with a profile for {host.tensor_parallel} of {host.device}"
            problems.append(Problem(("hosts", host.name, "serves"), text))
    for name, model in fleet.models.items():
        if not any(name in fleet.models_on(host) for host in hosts):
            needed = ", ".join(f"{p.tensor_parallel} of {kind}" for kind, p in model.profiles.items())
            have = ", ".join(f"{host.name}: {host.tensor_parallel} of {host.device}" for host in hosts)
            text = f"no instance can serve it; it needs {needed}; instances are {have}; set width of a host"
            problems.append(Problem(("models", name), text))
        try:
            for profile in model.profiles.values():
                model_swap(profile)
        except ConfigError as error:
            problems.append(Problem(("models", name, "profile"), str(error)))
    return problems


def not_startable(fleet: Fleet) -> list[Problem]:
    """Return what keeps engines from being started."""
    problems = []
    for name, model in fleet.models.items():
        if model.start.model is None:
            text = "is missing; to run a fleet, give the folder or name that sloserve serve takes"
            problems.append(Problem(("models", name, "model"), text))
        for i, flag in enumerate(model.start.arguments):
            if flag.partition("=")[0] in SET_BY_FLEET:
                text = f"{flag!r} is set by the fleet itself; leave it out"
                problems.append(Problem(("models", name, "arguments", i), text))
    return problems


def wrongly_adapted(fleet: Fleet) -> list[Problem]:
    """Return adapters of a model that does not exist, or is an adapter itself."""
    own = tuple(name for name, model in fleet.models.items() if model.start.adapter_of is None)
    return [
        Problem(("models", name, "adapter_of"), f"model {base!r} {unknown(base, own)}")
        for name, base in ((name, model.start.adapter_of) for name, model in fleet.models.items())
        if base is not None and base not in own
    ]


def placed(fleet: Fleet, entries: Mapping[str, ModelEntry]) -> tuple[dict[str, str], list[Problem]]:
    """Return the model that each instance starts with, and the problems of these choices.

    A problem is an instance that does not exist, has another model already, or cannot serve the model.
    """
    active: dict[str, str] = {}
    problems = []
    host_of = dict(fleet.instances)
    for name, entry in entries.items():
        for i, instance in enumerate(entry.active_on):
            at = ("models", name, "active_on", i)
            if instance not in host_of:
                problems.append(Problem(at, f"instance {instance!r} {unknown(instance, tuple(host_of))}"))
            elif name not in fleet.models_on(host_of[instance]):
                problems.append(Problem(at, f"{instance} cannot serve {name}: device or width do not fit its profile"))
            elif instance in active:
                problems.append(
                    Problem(at, f"{instance} has {active[instance]} already; one model is active at a time")
                )
            else:
                active[instance] = name
    return active, problems
