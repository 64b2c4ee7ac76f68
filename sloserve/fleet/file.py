"""The fleet file: which models there are, on which hosts they can run, and how each engine is set.

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

A host's devices form instances of ``width`` devices each, named ``node-a/0``, ``node-a/1``. An instance has one engine
for each model that it can serve, of which one is active. Every fault is one line that names file, line, column, key,
value and what is allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.profile import Profile, load_profile, profile_names
from sloserve.files.marked_yaml import Node, load_yaml, parse_yaml
from sloserve.files.model import Allowed, Problem, at_place, check_model, unknown
from sloserve.fleet.file_sections import (
    BatchSection,
    CertificateSection,
    DeviceHost,
    EngineFlags,
    GatewaySection,
    HostEntry,
    ModelEntry,
    PoolSection,
    Section,
    Switching,
)
from sloserve.fleet.planner_rule import QLM, Rule
from sloserve.fleet.router.settings import RouterSettings
from sloserve.fleet.router_section import FleetRouter, read_section
from sloserve.settings import PluginSettings, file_problems, policy_problems, read_settings
from sloserve.virtual_queues.model_swap import ModelSwap, model_swap

GIB = 2**30
SET_BY_FLEET = ("--uds", "--host", "--port", "--served-model-name", "--slo-config", "--enable-lora", "--admin-key")
"""Flags of ``sloserve serve`` that an engine of a fleet is given anyway."""
_TOOLS = "--enable-auto-tool-choice"
"""The flag with which an engine calls tools."""
_STREAM_INTERVAL = "--stream-interval"
"""The flag that states the tokens per event of a stream."""

_Entry = TypeVar("_Entry", bound=BaseModel)


class FleetSections(Section):
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
    store: Annotated[str | None, Field(min_length=1), Allowed("sqlite:PATH or postgresql://...")] = None
    state: Annotated[str | None, Field(min_length=1), Allowed("the path of a folder")] = None
    files: Annotated[str | None, Field(min_length=1), Allowed("the path of a folder, or s3://BUCKET/PREFIX")] = None


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How a model's engine is started, where the fleet is run.

    Args:
        model: as ``sloserve serve`` is given it.
        arguments: further flags of that.
        environment: of the engine.
        adapter_of: the model that it is a LoRA adapter of.
        profiles: name or path of its profile, by kind of device, as the file has it.
    """

    model: str | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    adapter_of: str | None = None
    profiles: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens_an_event(self) -> int:
        """Tokens per event of its streams, as the flags say; speculative decoding is not counted."""
        words = [word for one in self.arguments for word in one.replace("_", "-").split("=", 1)]
        value = dict(pairwise(words)).get(_STREAM_INTERVAL, "1")
        return int(value) if value.isdecimal() and int(value) > 0 else 1


@dataclass(frozen=True, slots=True)
class FleetModel:
    """One model. profiles: by kind of device. share: of the requests, if stated. tail: seldom asked for. supports: what
    a request may need: tools, grammar, images, audio, video.
    """

    name: str
    profiles: Mapping[str, Profile]
    share: float | None = None
    tail: bool = False
    flags: EngineFlags = field(default_factory=EngineFlags)
    start: EngineStart = field(default_factory=EngineStart)
    supports: frozenset[str] = frozenset()

    @property
    def max_model_len(self) -> int:
        """Tokens of its context, on whichever device has the smallest."""
        return self.flags.max_model_len or min(profile.max_model_len for profile in self.profiles.values())


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. host_memory_bytes: for weights of models that sleep. swap_space_bytes: for KV of parked requests.
    attach: the server that is its one instance, which others started, with the model ``serves``.
    """

    name: str
    device: str
    devices: int
    width: int
    host_memory_bytes: int
    swap_space_bytes: int
    environment: Mapping[str, str] = field(default_factory=dict)
    door: str | None = None
    attach: str | None = None
    serves: str | None = None

    @property
    def instances(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"{self.name}/{i}" for i in range(self.devices // self.width))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the file says. active: the model that each instance starts with, where that is said. section: of settings,
    as written. swap_cost: multiple of what swaps of models are known or assumed to take. router: for requests that
    name no model. planner: of a fleet that is run, see ``planner_rule.py``. store, state, files, pool, certificates: as
    written.
    """

    source: str
    models: Mapping[str, FleetModel]
    hosts: Mapping[str, Host]
    active: Mapping[str, str]
    switching: Switching
    settings: PluginSettings
    section: Mapping[str, Any]
    swap_cost: float = 1.0
    gateway: GatewaySection = GatewaySection()
    batches: BatchSection = BatchSection()
    router: FleetRouter | None = None
    planner: str = QLM
    store: str | None = None
    state: str | None = None
    files: str | None = None
    pool: PoolSection = PoolSection()
    certificates: CertificateSection = CertificateSection()

    @property
    def instances(self) -> tuple[tuple[str, Host], ...]:
        """Name and host of each, in the order of the file."""
        return tuple((name, host) for host in self.hosts.values() for name in host.instances)

    def models_on(self, host: Host) -> tuple[str, ...]:
        """Models that an instance of this host can serve: measured on its device at its width."""
        return tuple(
            m.name
            for m in self.models.values()
            if host.device in m.profiles
            and m.profiles[host.device].tensor_parallel == host.width
            and host.serves in (None, m.name)
        )

    def joined_by(self, name: str, device: str, devices: int | None = None, door: str | None = None) -> "Fleet":
        """The fleet with one more host, of a kind that ``pool.devices`` has. devices: how many, if the file does not
        say it.

        Raises: ConfigError for a kind that it does not have, and for devices that do not form instances.
        """
        template = self.pool.devices.get(device)
        if template is None:
            known = tuple(self.pool.devices)
            raise ConfigError(f"{self.source}: pool.devices: {device!r} {unknown(device, known)}")
        if template.devices is not None and devices not in (None, template.devices):
            raise ConfigError(
                f"host {name}: {devices} devices, and {self.source} says {template.devices} for each {device}; leave "
                f"out --devices, or pool.devices.{device}.devices"
            )
        count = template.devices or devices
        if count is None:
            raise ConfigError(
                f"host {name}: how many devices it has is not known; give --devices, or "
                f"pool.devices.{device}.devices in {self.source}"
            )
        if count % template.width:
            raise ConfigError(f"host {name}: {_no_instances(count, template.width)}")
        host = _made_host(name, device, count, template, door)
        return replace(self, hosts={**self.hosts, name: host})

    def swaps(self) -> dict[tuple[str, str], ModelSwap]:
        """What each model costs to swap, by model and kind of device.

        Raises: ConfigError for a profile that does not know the size of its weights.
        """
        kinds = dict.fromkeys([*(host.device for host in self.hosts.values()), *self.pool.devices])
        return {
            (m.name, kind): model_swap(m.profiles[kind]).times(self.swap_cost)
            for m in self.models.values()
            for kind in kinds
            if kind in m.profiles
        }


def read_fleet(path: str | Path, *, to_run: bool = False) -> Fleet:
    """The fleet in the file at ``path``. to_run: rather than to simulate, for which it says more.

    Raises: ConfigError that lists every fault, one line each.
    """
    return _fleet(load_yaml(Path(path)), str(path), to_run)


def parse_fleet(text: str, source: str = "fleet", *, to_run: bool = False) -> Fleet:
    """The fleet in ``text``; ``source`` stands for the file in messages. Raises: as :func:`read_fleet`."""
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
    entries = _entries(ModelEntry, top["models"], "models", problems)
    entered = _entries(HostEntry, top["hosts"], "hosts", problems) if "hosts" in top else []
    hosts = {name: _host(name, entry, problems) for name, entry in entered}
    for kind, template in pool.devices.items():
        if template.most is not None and (pool.ray is None or template.devices is None):
            text = "hosts are asked for where ray and devices are given: without these, others add hosts"
            problems.append(Problem(("pool", "devices", kind, "most"), text))
        if template.most is not None and template.most < template.least:
            problems.append(
                Problem(("pool", "devices", kind, "most"), f"{template.most} is below least, {template.least}")
            )
        if template.devices is not None and template.devices % template.width:
            text = _no_instances(template.devices, template.width)
            problems.append(Problem(("pool", "devices", kind, "devices"), text))
    if pool.ray is not None and not pool.devices:
        problems.append(Problem(("pool", "ray"), "needs pool.devices: what a node of each kind of device has"))
    if pool.ray is not None and "certificates" in top:
        text = "doors of nodes have no certificates: keep the cluster on a private network, and leave out certificates"
        problems.append(Problem(("pool", "ray"), text))
    if pool.ray is not None and hosts:
        text = "nodes of a cluster and hosts of the file could be the same machines; leave out hosts"
        problems.append(Problem(("pool", "ray"), text))
    devices = dict.fromkeys([*(host.device for host in hosts.values()), *pool.devices])
    models = {name: _model(name, entry, tuple(devices), Path(source).parent, problems) for name, entry in entries}
    section = top["settings"].plain() if "settings" in top else {}
    settings, wrong = read_settings(section)
    wrong += policy_problems(section) if isinstance(section, dict) else []
    wrong += [] if settings is None else file_problems(settings)
    problems += [Problem(("settings", *path), text) for path, text in wrong]
    if settings is not None and settings.http3.enabled:
        problems.append(Problem(("settings", "http3"), "engines of a fleet serve no HTTP/3; move it to gateway"))
    switching = _section(Switching, top, "switching", problems)
    gateway = _section(GatewaySection, top, "gateway", problems)
    batches = _section(BatchSection, top, "batches", problems)
    certificates = _section(CertificateSection, top, "certificates", problems)
    for name, entry in entered:
        if entry.door is not None and entry.door.startswith("https:") != (certificates.folder is not None):
            text = "https:// belongs to doors where certificates.folder is given, http:// to others; change one of them"
            problems.append(Problem(("hosts", name, "door"), f"{entry.door}: {text}"))
    router, wrong = read_section(
        top["router"].plain() if "router" in top else None,
        Path(source).parent,
        tuple(name for name, _ in entries),
        (settings or PluginSettings()).classes.names,
    )
    problems += wrong
    paths = {name: top[name].plain() if name in top else None for name in ("store", "state", "files")}
    for name, what in (
        ("store", "sqlite:PATH or postgresql://..."),
        ("state", "the path of a folder"),
        ("files", "the path of a folder, or s3://BUCKET/PREFIX"),
    ):
        if paths[name] is not None and not (isinstance(paths[name], str) and paths[name]):
            problems.append(Problem((name,), f"{paths[name]!r} is not {what}"))
    planner = top["planner"].plain() if "planner" in top else QLM
    try:
        Rule.parse(str(planner), 0.0)
    except ConfigError as error:
        problems.append(Problem(("planner",), str(error)))
    active: dict[str, str] = {}
    if not problems:
        fleet = Fleet(
            source,
            models,
            hosts,
            active,
            switching,
            settings or PluginSettings(),
            section,
            gateway=gateway,
            batches=batches,
            router=router,
            planner=planner,
            store=paths["store"],
            state=paths["state"],
            files=paths["files"],
            pool=pool,
            certificates=certificates,
        )
        problems = [*_served(fleet), *_placed(fleet, dict(entries), active), *_adapted(fleet)]
        problems += _startable(fleet) if to_run else []
    if problems:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return fleet


def _section(kind: type[_Entry], top: Mapping[str, Node], name: str, problems: list[Problem]) -> _Entry:
    found, wrong = check_model(kind, top[name].plain() if name in top else {}, (name,))
    problems += wrong
    return found or kind()


def _entries(kind: type[_Entry], section: Node, name: str, problems: list[Problem]) -> list[tuple[str, _Entry]]:
    made = []
    for key, node in section.mapping().items():
        entry, wrong = check_model(kind, node.plain(), (name, key))
        problems += wrong
        if entry is not None:
            made.append((key, entry))
    return made


def _host(name: str, entry: HostEntry, problems: list[Problem]) -> Host:
    if entry.devices % entry.width:
        problems.append(Problem(("hosts", name, "devices"), _no_instances(entry.devices, entry.width)))
    if (entry.attach is None) != (entry.serves is None):
        problems.append(
            Problem(("hosts", name), "attach and serves belong together: a server, and the model that it has")
        )
    if entry.attach is not None and entry.devices != entry.width:
        text = f"{entry.devices} devices of a server that is attached are one instance; give width: {entry.devices}"
        problems.append(Problem(("hosts", name, "devices"), text))
    made = _made_host(name, entry.device, entry.devices, entry, entry.door)
    return replace(made, attach=entry.attach, serves=entry.serves)


def _made_host(name: str, device: str, devices: int, said: DeviceHost, door: str | None) -> Host:
    memory, swap = int(said.host_memory_gib * GIB), int(said.swap_space_gib * GIB)
    return Host(name, device, devices, said.width, memory, swap, said.environment, door)


def _no_instances(devices: int, width: int) -> str:
    return f"{devices} devices do not form instances of {width}; give a multiple of width"


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
    """A profile's file may lie beside the fleet's."""
    beside = folder / profile
    is_there = profile not in profile_names() and not Path(profile).is_file() and beside.is_file()
    return str(beside) if is_there else profile


def _served(fleet: Fleet) -> list[Problem]:
    """Models that no instance can serve, and sizes of weights that a swap needs and no profile has."""
    problems = []
    joining = [_made_host(f"pool.devices.{k}", k, one.width, one, None) for k, one in fleet.pool.devices.items()]
    hosts = [*fleet.hosts.values(), *joining]
    for host in fleet.hosts.values():
        if host.serves is not None and host.serves not in fleet.models_on(host):
            text = f"{host.serves!r} is no model with a profile for {host.width} of {host.device}"
            problems.append(Problem(("hosts", host.name, "serves"), text))
    for name, model in fleet.models.items():
        if not any(name in fleet.models_on(host) for host in hosts):
            needed = ", ".join(f"{p.tensor_parallel} of {kind}" for kind, p in model.profiles.items())
            have = ", ".join(f"{host.name}: {host.width} of {host.device}" for host in hosts)
            text = f"no instance can serve it; it needs {needed}; instances are {have}; set width of a host"
            problems.append(Problem(("models", name), text))
        try:
            for profile in model.profiles.values():
                model_swap(profile)
        except ConfigError as error:
            problems.append(Problem(("models", name, "profile"), str(error)))
    return problems


def _startable(fleet: Fleet) -> list[Problem]:
    """What engines cannot be started from."""
    problems = []
    for name, model in fleet.models.items():
        if model.start.model is None:
            text = "is missing; a fleet that is run needs the folder or name that sloserve serve is given"
            problems.append(Problem(("models", name, "model"), text))
        for i, flag in enumerate(model.start.arguments):
            if flag.partition("=")[0] in SET_BY_FLEET:
                text = f"{flag!r} is set by the fleet itself; leave it out"
                problems.append(Problem(("models", name, "arguments", i), text))
    return problems


def _adapted(fleet: Fleet) -> list[Problem]:
    """Adapters of what is not there, or is an adapter itself."""
    own = tuple(name for name, model in fleet.models.items() if model.start.adapter_of is None)
    return [
        Problem(("models", name, "adapter_of"), f"model {base!r} {unknown(base, own)}")
        for name, base in ((name, model.start.adapter_of) for name, model in fleet.models.items())
        if base is not None and base not in own
    ]


def _placed(fleet: Fleet, entries: Mapping[str, ModelEntry], active: dict[str, str]) -> list[Problem]:
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
    return problems
