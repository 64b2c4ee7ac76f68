"""Checks faults of a fleet's file that no section shows alone, with the place of each fault."""

from collections.abc import Mapping

from sloserve.core.errors import ConfigError
from sloserve.core.files.model import Problem, unknown
from sloserve.fleet.file_sections import CertificateSection, HostEntry, ModelEntry, PoolSection
from sloserve.fleet.fleet import Fleet, Host, no_instances
from sloserve.scheduler.virtual_queues.model_swap import model_swap

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
    if entry.attach is not None and entry.devices != entry.width:
        text = f"{entry.devices} devices of a server that is attached are one instance; give width: {entry.devices}"
        problems.append(Problem(("hosts", name, "devices"), text))
    if entry.door is not None and entry.door.startswith("https:") != (certificates.folder is not None):
        text = "https:// needs certificates.folder, and http:// does not allow it; change one of them"
        problems.append(Problem(("hosts", name, "door"), f"{entry.door}: {text}"))
    return problems


def unserved(fleet: Fleet) -> list[Problem]:
    """Return models that no instance can serve, and profiles without the size of weights that a swap needs."""
    problems = []
    joining = [Host.made(f"pool.devices.{k}", k, one.width, one) for k, one in fleet.pool.devices.items()]
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
