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

A host's devices form instances of ``width`` devices each, named ``node-a/0``, ``node-a/1``. An instance has one engine
for each model that it can serve, of which one is active. Every fault is one line that names file, line, column, key,
value and what is allowed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.files.marked_yaml import Node, load_yaml, parse_yaml
from sloserve.files.model import Allowed, Problem, at_place, check_model, unknown
from sloserve.lso.model_swap import ModelSwap, model_swap
from sloserve.settings import PluginSettings, file_problems, policy_problems, read_settings

GIB = 2**30
MAX_DEVICES = 1024
SECTIONS = ("models", "hosts", "switching", "settings")

Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, ge=0.0, le=86_400.0), Allowed("a number of seconds from 0 to 86400")]
GiB = Annotated[float, Field(strict=True, ge=0.0, le=1e6), Allowed("a number of GiB from 0")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Entry = TypeVar("_Entry", bound=_Section)


class EngineFlags(_Section):
    """Flags of vLLM's that an engine is started with; the profile's own values where they are not given."""

    max_num_seqs: Annotated[Count | None, Allowed("a whole number from 1")] = None
    max_num_batched_tokens: Annotated[Count | None, Allowed("a whole number from 1")] = None
    max_model_len: Annotated[Count | None, Allowed("a whole number from 1")] = None


class _ModelEntry(_Section):
    profile: Annotated[str | dict[str, str], Allowed("the name or file of a profile, or a mapping of device to one")]
    share: Annotated[
        Annotated[float, Field(strict=True, gt=0.0, le=1e6)] | None, Allowed("a number above 0, up to 1e6")
    ] = None
    tail: Annotated[bool, Allowed("true or false")] = False
    active_on: Annotated[list[str], Allowed("a list of instances, as [node-a/0]")] = []
    flags: Annotated[EngineFlags, Allowed("a mapping of vLLM's flags")] = EngineFlags()


class _HostEntry(_Section):
    device: Annotated[str, Field(min_length=1), Allowed("the kind of its devices, as text")]
    devices: Annotated[
        int, Field(strict=True, ge=1, le=MAX_DEVICES), Allowed(f"a whole number from 1 to {MAX_DEVICES}")
    ]
    width: Annotated[Count, Allowed("a whole number from 1: devices of one instance")] = 1
    host_memory_gib: GiB = 0.0
    swap_space_gib: GiB = 0.0


class Switching(_Section):
    """When an instance may change its model.

    min_active_s: a model stays at least so long once it is active. max_wait_s: a request of a model that is active
    nowhere waits at most so long before an instance turns to it. drain_max_s: longest time that streams may take to
    end before the switch; those that would take longer are parked.
    """

    min_active_s: Seconds = 10.0
    max_wait_s: Seconds = 60.0
    drain_max_s: Seconds = 60.0


@dataclass(frozen=True, slots=True)
class FleetModel:
    """One model. profiles: by kind of device. share: of the requests, if stated. tail: seldom asked for."""

    name: str
    profiles: Mapping[str, Profile]
    share: float | None = None
    tail: bool = False
    flags: EngineFlags = field(default_factory=EngineFlags)


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. host_memory_bytes: for weights of models that sleep. swap_space_bytes: for KV of parked requests."""

    name: str
    device: str
    devices: int
    width: int
    host_memory_bytes: int
    swap_space_bytes: int

    @property
    def instances(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"{self.name}/{i}" for i in range(self.devices // self.width))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the file says. active: the model that each instance starts with, where that is said. section: of settings,
    as written. swap_cost: multiple of what swaps of models are known or assumed to take.
    """

    source: str
    models: Mapping[str, FleetModel]
    hosts: Mapping[str, Host]
    active: Mapping[str, str]
    switching: Switching
    settings: PluginSettings
    section: Mapping[str, Any]
    swap_cost: float = 1.0

    @property
    def instances(self) -> tuple[tuple[str, Host], ...]:
        """Name and host of each, in the order of the file."""
        return tuple((name, host) for host in self.hosts.values() for name in host.instances)

    def models_on(self, host: Host) -> tuple[str, ...]:
        """Models that an instance of this host can serve: measured on its device at its width."""
        return tuple(
            m.name
            for m in self.models.values()
            if host.device in m.profiles and m.profiles[host.device].tensor_parallel == host.width
        )

    def swaps(self) -> dict[tuple[str, str], ModelSwap]:
        """What each model costs to swap, by model and kind of device.

        Raises: ConfigError for a profile that does not know the size of its weights.
        """
        kinds = dict.fromkeys(host.device for host in self.hosts.values())
        return {
            (m.name, kind): model_swap(m.profiles[kind]).times(self.swap_cost)
            for m in self.models.values()
            for kind in kinds
            if kind in m.profiles
        }


def read_fleet(path: str | Path) -> Fleet:
    """The fleet in the file at ``path``.

    Raises: ConfigError that lists every fault, one line each.
    """
    return _fleet(load_yaml(Path(path)), str(path))


def parse_fleet(text: str, source: str = "fleet") -> Fleet:
    """The fleet in ``text``; ``source`` stands for the file in messages. Raises: as :func:`read_fleet`."""
    return _fleet(parse_yaml(text, source), source)


def _fleet(root: Node, source: str) -> Fleet:
    top = root.mapping(SECTIONS)
    for name, what in (("models", "a name, and its profile"), ("hosts", "a name, its device and how many it has")):
        if name not in top or not top[name].mapping():
            raise top.get(name, root).fail(f"no {name}; a fleet has at least one, under {name}: {what}")
    problems: list[Problem] = []
    entries = _entries(_ModelEntry, top["models"], "models", problems)
    hosts = {
        name: _host(name, entry, problems) for name, entry in _entries(_HostEntry, top["hosts"], "hosts", problems)
    }
    devices = dict.fromkeys(host.device for host in hosts.values())
    models = {name: _model(name, entry, tuple(devices), problems) for name, entry in entries}
    section = top["settings"].plain() if "settings" in top else {}
    settings, wrong = read_settings(section)
    wrong += policy_problems(section) if isinstance(section, dict) else []
    wrong += [] if settings is None else file_problems(settings)
    problems += [Problem(("settings", *path), text) for path, text in wrong]
    switching, wrong = check_model(Switching, top["switching"].plain() if "switching" in top else {}, ("switching",))
    problems += wrong
    active: dict[str, str] = {}
    if not problems:
        fleet = Fleet(source, models, hosts, active, switching or Switching(), settings or PluginSettings(), section)
        problems = [*_served(fleet), *_placed(fleet, dict(entries), active)]
    if problems:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return fleet


def _entries(kind: type[_Entry], section: Node, name: str, problems: list[Problem]) -> list[tuple[str, _Entry]]:
    made = []
    for key, node in section.mapping().items():
        entry, wrong = check_model(kind, node.plain(), (name, key))
        problems += wrong
        if entry is not None:
            made.append((key, entry))
    return made


def _host(name: str, entry: _HostEntry, problems: list[Problem]) -> Host:
    if entry.devices % entry.width:
        text = f"{entry.devices} devices do not form instances of {entry.width}; give a multiple of width"
        problems.append(Problem(("hosts", name, "devices"), text))
    memory, swap = int(entry.host_memory_gib * GIB), int(entry.swap_space_gib * GIB)
    return Host(name, entry.device, entry.devices, entry.width, memory, swap)


def _model(name: str, entry: _ModelEntry, devices: tuple[str, ...], problems: list[Problem]) -> FleetModel:
    given = entry.profile if isinstance(entry.profile, dict) else dict.fromkeys(devices, entry.profile)
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
    return FleetModel(name, profiles, entry.share, entry.tail, entry.flags)


def _served(fleet: Fleet) -> list[Problem]:
    """Models that no instance can serve, and sizes of weights that a swap needs and no profile has."""
    problems = []
    for name, model in fleet.models.items():
        if not any(name in fleet.models_on(host) for host in fleet.hosts.values()):
            needed = ", ".join(f"{p.tensor_parallel} of {kind}" for kind, p in model.profiles.items())
            have = ", ".join(f"{host.name}: {host.width} of {host.device}" for host in fleet.hosts.values())
            text = f"no instance can serve it; it needs {needed}; instances are {have}; set width of a host"
            problems.append(Problem(("models", name), text))
        try:
            for profile in model.profiles.values():
                model_swap(profile)
        except ConfigError as error:
            problems.append(Problem(("models", name, "profile"), str(error)))
    return problems


def _placed(fleet: Fleet, entries: Mapping[str, _ModelEntry], active: dict[str, str]) -> list[Problem]:
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
