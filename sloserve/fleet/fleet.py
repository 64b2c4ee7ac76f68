"""The contents of a fleet's file: models, hosts and the settings of each engine.

A host's devices form instances of ``width`` devices each, named ``node-a/0``, ``node-a/1``. An instance has one engine
for each model that it can serve, of which one is active.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.files.model import unknown
from sloserve.core.slo import ClassTable
from sloserve.estimator.step_time.profile import Profile
from sloserve.fleet.file_sections import (
    BatchSection,
    CertificateSection,
    DeviceHost,
    EngineFlags,
    GatewaySection,
    PoolSection,
    Switching,
)
from sloserve.fleet.planner_rule import QLM
from sloserve.fleet.router_section import FleetRouter
from sloserve.scheduler.class_settings import stated_classes
from sloserve.scheduler.settings import PluginSettings
from sloserve.scheduler.virtual_queues.model_swap import ModelSwap, model_swap

GIB = 2**30
_STORES_RESPONSES = "VLLM_ENABLE_RESPONSES_API_STORE"
"""The variable that has an engine store the responses of ``/v1/responses``."""
_STREAM_INTERVAL = "--stream-interval"
"""The flag that states the tokens per event of a stream."""


@dataclass(frozen=True, slots=True)
class EngineStart:
    """Settings with which a model's engine is started, if the fleet is run.

    Args:
        model: The model, as ``sloserve serve`` takes it.
        arguments: Further flags of ``sloserve serve``.
        environment: Environment variables of the engine.
        adapter_of: The model that it is a LoRA adapter of.
        profiles: Name or path of its profile, by kind of device, as the file has it.
    """

    model: str | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    adapter_of: str | None = None
    profiles: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens_an_event(self) -> int:
        """The tokens per event of its streams, by the flags; speculative decoding is not counted."""
        words = [word for one in self.arguments for word in one.replace("_", "-").split("=", 1)]
        value = dict(pairwise(words)).get(_STREAM_INTERVAL, "1")
        return int(value) if value.isdecimal() and int(value) > 0 else 1


@dataclass(frozen=True, slots=True)
class FleetModel:
    """One model.

    Args:
        profiles: Profiles of the model, by kind of device.
        share: Share of the requests that ask for it, if stated.
        tail: Whether requests seldom ask for it.
        supports: Features that a request may need: tools, grammar, images, audio, video.
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
        """The tokens of its context, on the device with the smallest."""
        return self.flags.max_model_len or min(profile.max_model_len for profile in self.profiles.values())


@dataclass(frozen=True, slots=True)
class AttachedShape:
    """Use that an attached server makes of its devices; a value for each of its section's, profiles read.

    Args:
        prefill: Profile of the model on an engine that computes prompts alone; ``None`` for no pair.
        prefill_engines: Number of these engines.
    """

    tensor_parallel: int
    pipeline_parallel: int = 1
    prefill: Profile | None = None
    prefill_engines: int = 1


@dataclass(frozen=True, slots=True)
class Host:
    """One machine.

    Args:
        host_memory_bytes: Bytes of host memory for weights of models that sleep.
        swap_space_bytes: Bytes of host memory for KV of parked requests.
        attach: The server that is its one instance, which others started, with the model ``serves``.
        stated_forwarders: Number of its forwarding processes, if the file states it.
        alone_s: Seconds for which engines and streams go on without an agent.
        shape: Use that the attached server makes of its devices; ``None`` for one engine on all of them.
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
    stated_forwarders: int | None = None
    alone_s: float = 120.0
    shape: AttachedShape | None = None

    @property
    def tensor_parallel(self) -> int:
        """Devices between which an instance splits each layer, for which the profile of its model was measured."""
        return self.width if self.shape is None else self.shape.tensor_parallel

    @classmethod
    def made(cls, name: str, device: str, devices: int, said: DeviceHost, door: str | None = None) -> "Host":
        """Make a host with ``devices`` of this kind; ``said`` holds the settings that do not depend on their number."""
        memory, swap = int(said.host_memory_gib * GIB), int(said.swap_space_gib * GIB)
        return cls(
            name,
            device,
            devices,
            said.width,
            memory,
            swap,
            said.environment,
            door,
            stated_forwarders=said.forwarding_processes,
            alone_s=said.alone_s,
        )

    @property
    def instances(self) -> tuple[str, ...]:
        """The names of the host's instances."""
        return tuple(f"{self.name}/{i}" for i in range(self.devices // self.width))


@dataclass(frozen=True, slots=True)
class Fleet:
    """The contents of a fleet's file.

    Args:
        active: The model that each instance starts with, if it is stated.
        section: The section of settings, as written.
        swap_cost: Factor on the known or assumed times of model swaps.
        router: Router of requests that name no model.
        media_domains: Hosts from which engines may fetch media, ``*`` for any.
        planner: Name of the planner of a fleet that is run, see ``planner_rule.py``.
        store, state, files, pool, certificates: values as written.
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
    media_domains: tuple[str, ...] = ()
    planner: str = QLM
    store: str | None = None
    state: str | None = None
    files: str | None = None
    pool: PoolSection = PoolSection()
    certificates: CertificateSection = CertificateSection()

    @property
    def replays_traffic(self) -> bool:
        """Whether recent traffic is replayed to find how many instances are needed."""
        return self.pool.scaling.replay_s > 0.0

    @property
    def instances(self) -> tuple[tuple[str, Host], ...]:
        """The name and host of each instance, in the order of the file."""
        return tuple((name, host) for host in self.hosts.values() for name in host.instances)

    @property
    def stated_classes(self) -> ClassTable:
        """The classes that the file states, which simulated requests have; all classes if it states none."""
        return stated_classes(self.section, self.settings.classes)

    def models_on(self, host: Host) -> tuple[str, ...]:
        """Return the models that an instance of this host can serve: measured on its device at its width."""
        return tuple(
            m.name
            for m in self.models.values()
            if host.device in m.profiles
            and m.profiles[host.device].tensor_parallel == host.tensor_parallel
            and host.serves in (None, m.name)
        )

    def storing_models(self) -> frozenset[str]:
        """Return the models of which engines may store responses: as their environment says, or attached servers."""
        shared = [host.environment for host in self.hosts.values()]
        shared += [one.environment for one in self.pool.devices.values()]
        found = {host.serves for host in self.hosts.values() if host.serves is not None}
        for name, model in self.models.items():
            own = self.models.get(model.start.adapter_of or name, model).start.environment
            if any(one.get(_STORES_RESPONSES) == "1" for one in (own, *shared)):
                found.add(name)
        return frozenset(found)

    def joined_by(self, name: str, device: str, devices: int | None = None, door: str | None = None) -> "Fleet":
        """Return the fleet with one more host, of a kind that ``pool.devices`` has.

        Args:
            name: Name of the host.
            device: Kind of its devices.
            devices: Number of its devices, if the file does not state it.
            door: Address of its agent on TCP, if it has one.

        Raises:
            ConfigError: The file lacks this kind, or the devices do not form instances.
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
                f"host {name}: its number of devices is unknown; give --devices, or "
                f"pool.devices.{device}.devices in {self.source}"
            )
        if count % template.width:
            raise ConfigError(f"host {name}: {no_instances(count, template.width)}")
        host = Host.made(name, device, count, template, door)
        return replace(self, hosts={**self.hosts, name: host})

    def swaps(self) -> dict[tuple[str, str], ModelSwap]:
        """Return what each model costs to swap, by model and kind of device.

        Raises: ConfigError for a profile that does not know the size of its weights.
        """
        kinds = dict.fromkeys([*(host.device for host in self.hosts.values()), *self.pool.devices])
        return {
            (m.name, kind): model_swap(m.profiles[kind]).times(self.swap_cost)
            for m in self.models.values()
            for kind in kinds
            if kind in m.profiles
        }


def no_instances(devices: int, width: int) -> str:
    """Return the text of the fault that ``devices`` do not form instances of ``width``."""
    return f"{devices} devices do not form instances of {width}; give a multiple of width"
