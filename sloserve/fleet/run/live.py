"""Derives from a fleet's file what its processes are started with."""

import asyncio
import ipaddress
import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sloserve.core.errors import ConfigError
from sloserve.core.extras import not_installed
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile, profile_names
from sloserve.fleet.agent.agent import AgentSettings
from sloserve.fleet.agent.engine_spec import Attached, EngineModel
from sloserve.fleet.agent.forwarding.forwarders import ForwarderSettings
from sloserve.fleet.batch_api.lines import Limits
from sloserve.fleet.contract.endpoint import keys_in
from sloserve.fleet.file_sections import MOST_FORWARDERS
from sloserve.fleet.fleet import GIB, Fleet, FleetModel, Host
from sloserve.fleet.http import keep_renewed

if TYPE_CHECKING:
    from sloserve.fleet.certificates import Certificates

STORE: Final = "SLOSERVE_FLEET_STORE"
"""Environment variable: the store's address, in place of the file's; a password belongs here."""

DOOR_KEY: Final = "SLOSERVE_FLEET_DOOR_KEY"
"""Environment variable: the key that gateways show to agents on TCP, the same in all processes of a fleet."""

ATTACH_KEY: Final = "SLOSERVE_ATTACH_KEY"
"""Environment variable: key of the API of a server that is attached."""

ATTACH_ADMIN_KEY: Final = "SLOSERVE_ATTACH_ADMIN_KEY"
"""Environment variable: admin key for the status of a server that is attached, if it runs sloserve."""

_LEAST_KEY: Final = 16
_HOST_NAME: Final = re.compile(r"[\w.:-]{1,100}", re.ASCII)
CPU: Final = "cpu"
"""The kind of device that is the host itself."""

_SLEEPING_CPU: Final = ("--worker-cls", "sloserve.vllm_plugin.sleeping_worker.SleepingCPUWorker")
_MEDIA: Final = "--allowed-media-domains"
"""Flag of vLLM with the hosts from which it fetches media; without it, or with an empty list, it fetches from any."""
_REDIRECTS: Final = "VLLM_MEDIA_URL_ALLOW_REDIRECTS"
"""Variable of vLLM, by default 1: an allowed host may send it to any other."""
ANY_HOST: Final = "*"
NO_HOST: Final = "none.invalid"
"""Host name that never exists (RFC 2606): the only host that is allowed if none is."""
_SQLITE: Final = "sqlite:"
_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_KEY_FILE: Final = "door-key"


@dataclass(frozen=True, slots=True)
class Place:
    """Locations in which a fleet keeps what outlives its processes.

    Args:
        folder: Folder of its state: logs, files of batches, measured costs, settings of engines.
        store: Address of the store.
        endpoint_key: Key that agents on TCP ask for, if there is one.
        stated_files: Location of the bytes of files, if the fleet's file states it.
    """

    folder: Path
    store: str = field(repr=False)
    endpoint_key: str | None = field(default=None, repr=False)
    stated_files: str | Path | None = None

    @property
    def files(self) -> str | Path:
        """The location for bytes of the files of batches: a folder, or an address of object storage."""
        return self.stated_files or self.folder / "files"

    @property
    def logs(self) -> Path:
        """The folder for logs of engines and agents."""
        return self.folder / "logs"


def place_of(fleet: Fleet, state: Path | None = None, environ: Mapping[str, str] = os.environ) -> Place:
    """Return the locations: beside the fleet's file, or in the folder ``state``, or as the file states.

    Raises: ConfigError for a folder that cannot be made.
    """
    source = Path(fleet.source)
    beside = source.parent
    folder = state or (beside / fleet.state if fleet.state else source.with_suffix(".state"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: the folder of the fleet's state cannot be made: {error.strerror}; give another with state in "
            f"{fleet.source}, or with --state"
        ) from None
    address = environ.get(STORE) or fleet.store or f"{_SQLITE}{folder.resolve() / 'store.sqlite'}"
    if address.startswith(_SQLITE):
        address = f"{_SQLITE}{beside.resolve() / address.removeprefix(_SQLITE)}"
    files = fleet.files if fleet.files is None or "://" in fleet.files else beside.resolve() / fleet.files
    return Place(folder.resolve(), address, environ.get(DOOR_KEY), files)


def check_endpoints(fleet: Fleet, place: Place, hosts: Iterable[Host] | None = None) -> None:
    """Check that each agent that listens on TCP has a key.

    Args:
        fleet: Settings of the fleet, from its file.
        place: Locations of the fleet's state.
        hosts: Hosts with agents that are used here; all hosts if not given.

    Raises:
        ConfigError: An agent on TCP has no key, or one that is too short.
    """
    used = fleet.hosts.values() if hosts is None else hosts
    needing = [f"hosts.{host.name}.door: an agent on TCP, {host.door}," for host in used if host.door is not None]
    needing += ["pool.ray: an agent on a node"] if hosts is None and fleet.pool.ray else []
    for one in needing:
        keys = keys_in(place.endpoint_key)
        if not keys or any(len(key) < _LEAST_KEY for key in keys):
            raise ConfigError(
                f"{fleet.source}: {one} needs a key; set "
                f"{DOOR_KEY} to a secret of at least {_LEAST_KEY} characters, the same for all agents and gateways of "
                "the fleet, or to two of them with a comma between, while it changes; sloserve fleet key prints one"
            )


def with_own_key(place: Place) -> Place:
    """Return the locations with a key of this fleet's own, the same at each start: agents may outlive their fleet."""
    path = place.folder / _KEY_FILE
    if not path.exists():
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.touch(mode=0o600)
        scratch.write_text(secrets.token_urlsafe(32), encoding="utf-8")
        scratch.replace(path)
    return replace(place, endpoint_key=path.read_text(encoding="utf-8"))


def certificates_of(fleet: Fleet) -> "Certificates | None":
    """Return the certificates of agents on TCP, or ``None`` where the fleet has none.

    Raises: ConfigError without the package for them.
    """
    section = fleet.certificates
    if section.folder is None:
        return None
    try:
        from sloserve.fleet.certificates import Certificates
    except ModuleNotFoundError:
        raise not_installed("certificates", "cryptography", "fleet") from None
    return Certificates(_beside(fleet) / section.folder, of_gateways=section.of_gateways)


def _beside(fleet: Fleet) -> Path:
    return Path(fleet.source).parent


def refreshing(certificates: "Certificates | None") -> list["asyncio.Task[None]"]:
    """Return the tasks that renew the certificates; the caller cancels them."""
    return [] if certificates is None else [asyncio.create_task(keep_renewed(certificates))]


def file_limits(fleet: Fleet) -> Limits:
    """Return the limits of one input file of a batch."""
    section = fleet.batches
    return Limits(section.file_mb * 1_000_000, section.lines, section.line_mb * 1_000_000)


def host_named(fleet: Fleet, name: str | None) -> Host:
    """Return the host of this name; ``None`` means the only one. Raises: ConfigError for a host not in the file."""
    known = ", ".join(fleet.hosts)
    if name is None:
        if len(fleet.hosts) > 1:
            raise ConfigError(f"{fleet.source} has several hosts; say with --host which this is: {known}")
        return next(iter(fleet.hosts.values()))
    if name not in fleet.hosts:
        raise ConfigError(f"--host {name}: is unknown; {fleet.source} has {known}")
    return fleet.hosts[name]


def joining_host(
    fleet: Fleet, name: str | None, device: str | None, devices: int | None, address: str | None, place: Place
) -> tuple[Fleet, Host]:
    """Return the fleet with this machine in it, and this machine: a host of the file, or one that joins.

    Args:
        fleet: Settings of the fleet, from its file.
        name: Name of this machine, or ``None`` for the only host of the file.
        device: Kind of its devices, if it joins.
        devices: Number of its devices, if it joins.
        address: Network address of this machine; without one only gateways of this machine reach it.
        place: Locations of the fleet's state.

    Raises:
        ConfigError: The host is unknown, or does not fit the file.
    """
    kinds = tuple(fleet.pool.devices)
    if name in fleet.hosts or not kinds:
        for flag, value in (("--device", device), ("--devices", devices), ("--address", address)):
            if value is not None:
                raise ConfigError(
                    f"{flag} {value}: is for a host that joins, which pool.devices of {fleet.source} allows"
                )
        return fleet, host_named(fleet, name)
    name = name or socket.gethostname()
    if not _HOST_NAME.fullmatch(name):
        raise ConfigError(f"--host {name}: a host that joins has a name of at most 100 letters, digits, . _ - and :")
    if device is None and len(kinds) > 1:
        raise ConfigError(f"say with --device which kind this host's devices are: {', '.join(kinds)}")
    door = None
    if address is not None:
        if not _is_loopback(address) and is_of_one_machine(place):
            raise ConfigError(
                f"--address {address}: other hosts cannot reach {place.store}; name a PostgreSQL server in {STORE}"
            )
        scheme = "http" if fleet.certificates.folder is None else "https"
        door = f"{scheme}://{f'[{address}]' if ':' in address else address}:0"
    joined = fleet.joined_by(name, device or kinds[0], devices, door)
    return joined, joined.hosts[name]


def is_of_one_machine(place: Place) -> bool:
    """Return whether other machines cannot reach the fleet's store."""
    return place.store.startswith(_SQLITE)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def agent_settings(fleet: Fleet, host: Host, place: Place) -> AgentSettings:
    """Return the settings of a host's agent; write the settings of its engines into the state folder.

    Raises: ConfigError for an agent that needs a key.
    """
    check_endpoints(fleet, place, [host])
    served = {name: _served(fleet, fleet.models[name], host, place) for name in fleet.models_on(host)}
    if host.attach is not None:
        at = Attached(host.attach, os.environ.get(ATTACH_KEY) or None, os.environ.get(ATTACH_ADMIN_KEY) or None)
        served = {name: replace(model, attached=at) for name, model in served.items()}
    shares, certificates = fleet.settings.tenant_shares, fleet.certificates
    has_tls = certificates.folder is not None and (host.door or "").startswith("https:")
    return AgentSettings(
        host=host.name,
        device=host.device,
        instances={instance: served for instance in host.instances},
        state_folder=place.folder,
        environments={name: _environment(host, k) for k, name in enumerate(host.instances)},
        endpoint=host.door,
        endpoint_key=None if host.door is None else place.endpoint_key,
        forwarders=ForwarderSettings(
            forwarders_of(host, os.cpu_count() or 1),
            _beside(fleet) / certificates.folder if has_tls and certificates.folder else None,
            certificates.of_gateways,
        ),
        host_memory_bytes=host.host_memory_bytes,
        drain_max_s=fleet.switching.drain_max_s,
        half_life_s=None if shares is None else shares.half_life_s,
    )


def forwarders_of(host: Host, cores: int) -> int:
    """Return the number of processes that pass requests to a host's engines.

    One process can pass on the output of two GPUs with a small model. A host with less than four cores for each process
    has fewer, since its engines need their cores, and at least one: its streams outlive the agent.

    Args:
        host: The host.
        cores: Number of its cores.
    """
    stated = host.stated_forwarders
    return max(min(len(host.instances) // 2, cores // 4, MOST_FORWARDERS), 1) if stated is None else stated


def _environment(host: Host, number: int) -> dict[str, str]:
    if host.device == CPU:
        return dict(host.environment)
    first, last = number * host.width, (number + 1) * host.width
    # Who started this agent may have given it some of the machine's devices, as Ray does.
    given = [one for one in os.environ.get(_DEVICES, "").split(",") if one]
    devices = given[first:last] if len(given) >= host.devices else map(str, range(first, last))
    return {_DEVICES: ",".join(devices), **host.environment}


def _served(fleet: Fleet, model: FleetModel, host: Host, place: Place) -> EngineModel:
    profile, start, flags = model.profiles[host.device], model.start, model.flags
    if start.model is None:
        raise ConfigError(
            f"{fleet.source}: models.{model.name}.model is missing: the folder or name of the model to serve"
        )
    max_num_seqs = flags.max_num_seqs or profile.max_num_seqs
    budget = flags.max_num_batched_tokens or profile.max_num_batched_tokens
    max_model_len = flags.max_model_len or profile.max_model_len
    values: dict[str, str] = {
        "--slo-config": str(_settings_file(fleet, model, host, place)),
        "--max-num-seqs": str(max_num_seqs),
        "--max-num-batched-tokens": str(budget),
        "--max-model-len": str(max_model_len),
    }
    if host.width > 1:
        values["--tensor-parallel-size"] = str(host.width)
    sharing = len(host.instances) * max(len(fleet.models_on(host)), 1)
    if host.swap_space_bytes:
        values["--swap-space-gib"] = f"{host.swap_space_bytes / sharing / GIB:.3f}"
    given = {one.partition("=")[0] for one in start.arguments}
    is_open = ANY_HOST in fleet.media_domains
    arguments = [] if is_open or _MEDIA in given else [_MEDIA, *(fleet.media_domains or (NO_HOST,))]
    media = {} if is_open or _REDIRECTS in host.environment else {_REDIRECTS: "0"}
    arguments += [part for flag, value in values.items() if flag not in given for part in (flag, value)]
    if not given & {"--worker-cls", "--enable-sleep-mode"}:
        arguments += _SLEEPING_CPU if host.device == CPU else ("--enable-sleep-mode",)
    size = profile.weights_bytes or 0
    return EngineModel(
        name=model.name,
        model=start.model,
        flags=(*arguments, *start.arguments),
        environment={**media, **start.environment},
        weights_bytes=size,
        max_num_seqs=max_num_seqs,
        adapter_of=start.adapter_of,
        tokens_an_event=start.tokens_an_event,
        settings=json.dumps(_section(fleet, model, host)),
        longest_step_s=_longest_step_s(profile, budget, max_num_seqs, max_model_len),
    )


def _longest_step_s(profile: Profile, budget: int, seqs: int, max_model_len: int) -> float:
    """Return the seconds of an engine's longest step with these flags.

    It is a chunk of its whole budget at the end of the longest prompt, beside a full batch over a full KV cache.
    """
    attention = budget * (budget + 2 * max(max_model_len - budget, 0))
    return profile.step_s(StepLoad(budget, 1, seqs, profile.kv_capacity_tokens, attention))


def _section(fleet: Fleet, model: FleetModel, host: Host) -> dict[str, Any]:
    """Return the settings of the model's engines: the fleet's, and the model's profile.

    The gateway alone limits tenants and gives promises. An engine takes over what it promised; and it limits no tenant
    again, since the deadline of a batch line would count as tighter than a class without one.
    """
    source = model.start.profiles[host.device]
    profile = source if source in profile_names() else str(Path(source).resolve())
    section = {name: value for name, value in fleet.section.items() if name not in ("tenants", "tenant_default")}
    if fleet.settings.admission.promises != "off":
        section["admission"] = {**fleet.section.get("admission", {}), "promises": "gateway"}
    return {"profile": profile, **section}


def _settings_file(fleet: Fleet, model: FleetModel, host: Host, place: Place) -> Path:
    """Write the file for ``--slo-config`` of the model's engines."""
    section = _section(fleet, model, host)
    folder = place.folder / "settings"
    folder.mkdir(exist_ok=True)
    path = folder / f"{model.name.replace('/', '%2F')}@{host.device}.yaml"
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(section, indent=1), encoding="utf-8")  # YAML, too
    scratch.replace(path)
    return path
