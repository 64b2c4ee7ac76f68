"""The sections of a fleet's file: names, values and what is allowed."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sloserve.core.files.model import NOT_TINY, Allowed
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.wire.optional_http3 import Http3Settings

MAX_DEVICES = 1024

Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, ge=0.0, le=86_400.0), Allowed("a number of seconds from 0 to 86400")]
Devices = Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)]
Text = Annotated[str, Field(min_length=1)]
InstanceEndpoint = Annotated[str, Field(pattern=r"^https?://[^/\s]+:\d{1,5}$")]
Url = Annotated[str, Field(pattern=r"^https?://[^/\s]+$")]
GiB = Annotated[float, Field(strict=True, ge=0.0, le=1e6), Allowed("a number of GiB >= 0")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineFlags(Section):
    """Flags of vLLM with which an engine is started; the profile's own values apply if they are not given."""

    max_num_seqs: Annotated[Count | None, Allowed("a whole number >= 1")] = None
    max_num_batched_tokens: Annotated[Count | None, Allowed("a whole number >= 1")] = None
    max_model_len: Annotated[Count | None, Allowed("a whole number >= 1")] = None


class ModelEntry(Section):
    profile: Annotated[str | dict[str, str], Allowed("the name or file of a profile, or a mapping of device to one")]
    share: Annotated[
        Annotated[float, Field(strict=True, gt=0.0, le=1e6), NOT_TINY] | None, Allowed("a number above 0, up to 1e6")
    ] = None
    tail: Annotated[bool, Allowed("true or false")] = False
    active_on: Annotated[list[str], Allowed("a list of instances, as [node-a/0]")] = []
    flags: Annotated[EngineFlags, Allowed("a mapping of vLLM's flags")] = EngineFlags()
    model: Annotated[Text | None, Allowed("a folder or name, as sloserve serve is given it")] = None
    arguments: Annotated[tuple[Text, ...], Allowed("a list of further flags of sloserve serve, as text")] = ()
    environment: Annotated[dict[str, str], Allowed("a mapping of variables to text")] = {}
    supports: Annotated[
        list[Literal["tools", "grammar", "images", "audio", "video"]] | None,
        Allowed("a list of tools, grammar, images, audio, video"),
    ] = None
    adapter_of: Annotated[Text | None, Allowed("the model that it is a LoRA adapter of")] = None


MOST_FORWARDERS: Final = 64


class DeviceHost(Section):
    """Settings of a host that do not depend on its devices.

    Args:
        forwarding_processes: Processes that pass requests to its engines. If not given, there is one for two instances,
            as far as there are cores for them.
        alone_s: Seconds for which engines and streams go on without an agent; then they end, too.
    """

    width: Annotated[Count, Allowed("a whole number >= 1: devices of one instance")] = 1
    host_memory_gib: GiB = 0.0
    swap_space_gib: GiB = 0.0
    environment: Annotated[dict[str, str], Allowed("a mapping of variables to text")] = {}
    forwarding_processes: Annotated[
        Annotated[int, Field(strict=True, ge=1, le=MOST_FORWARDERS)] | None,
        Allowed(f"a whole number from 1 to {MOST_FORWARDERS}"),
    ] = None
    alone_s: Seconds = 120.0


class PrefillSection(Section):
    """Engines of an attached pair that compute prompts.

    Args:
        engines: Number of these engines.
        tensor_parallel: Devices of each.
        profile: Profile of the model on one of them.
    """

    engines: Annotated[Devices, Allowed(f"a whole number from 1 to {MAX_DEVICES}")] = 1
    tensor_parallel: Annotated[Devices, Allowed(f"a whole number from 1 to {MAX_DEVICES}")] = 1
    profile: Annotated[Text, Allowed("the name or file of a profile")]


class ShapeSection(Section):
    """Use that an attached server makes of its devices, as one instance.

    Args:
        tensor_parallel: Devices between which each layer is split, of a pair in the engine that generates tokens.
        pipeline_parallel: Stages between which the layers are split.
        nodes: Machines with these devices.
        prefill: Engines of a prefill/decode pair that compute prompts; ``None`` for no pair.
    """

    tensor_parallel: Annotated[Devices, Allowed(f"a whole number from 1 to {MAX_DEVICES}")] = 1
    pipeline_parallel: Annotated[Devices, Allowed(f"a whole number from 1 to {MAX_DEVICES}")] = 1
    nodes: Annotated[Devices, Allowed(f"a whole number from 1 to {MAX_DEVICES}")] = 1
    prefill: Annotated[PrefillSection | None, Allowed("a mapping with engines, tensor_parallel, profile")] = None

    @property
    def devices(self) -> int:
        """Number of all its devices."""
        beside = 0 if self.prefill is None else self.prefill.engines * self.prefill.tensor_parallel
        return self.tensor_parallel * self.pipeline_parallel + beside


class HostEntry(DeviceHost):
    device: Annotated[str, Field(min_length=1), Allowed("the kind of its devices, as text")]
    devices: Annotated[Devices, Allowed(f"a whole number from 1 to {MAX_DEVICES}")]
    attach: Annotated[Url | None, Allowed("http://HOST:PORT or https://, of a server that others started")] = None
    serves: Annotated[Text | None, Allowed("the one model of the server that is attached")] = None
    shape: Annotated[
        ShapeSection | None, Allowed("a mapping with tensor_parallel, pipeline_parallel, nodes, prefill")
    ] = None
    door: Annotated[
        InstanceEndpoint | None,
        Allowed("http://HOST:PORT, or https:// with certificates, for an agent that others reach over the network"),
    ] = None


class HostTemplate(DeviceHost):
    """Each host of one kind of device that joins the fleet.

    Args:
        devices: Number of devices; each host states it itself if not given.
        least: The fewest hosts that the fleet asks its cluster for.
        most: The most hosts that the fleet asks its cluster for; it asks for none if this is not given.
        bundle: Ray's resources that each host holds, and that an autoscaler is asked for, if not its GPUs or CPUs.
    """

    least: Annotated[int, Field(strict=True, ge=0, le=MAX_DEVICES), Allowed("a whole number >= 0")] = 0
    most: Annotated[Devices | None, Allowed(f"a whole number from 1 to {MAX_DEVICES}")] = None
    bundle: Annotated[
        dict[str, Annotated[float, Field(gt=0.0)]] | None,
        Allowed("a mapping of Ray's resources to numbers above 0"),
    ] = None
    devices: Annotated[Devices | None, Allowed(f"a whole number from 1 to {MAX_DEVICES}")] = None


class ScalingSection(Section):
    """Rules by which hosts come and go.

    Args:
        up_s: Seconds for which more hosts must be needed before one is added.
        down_s: Seconds for which fewer must be needed before one goes.
        start_s: Seconds that a host takes to start, for which the rate of requests is expected ahead.
        objective: Share of the requests of each class that shall meet their targets.
        replay_s: CPU seconds a minute for replays of recent traffic with other numbers of instances; 0 for none, where
            the plan's pressure says how many are needed.
    """

    up_s: Seconds = 30.0
    down_s: Seconds = 600.0
    start_s: Seconds = 180.0
    objective: Annotated[float, Field(strict=True, gt=0.0, lt=1.0), Allowed("a number between 0 and 1")] = 0.95
    replay_s: Annotated[float, Field(strict=True, ge=0.0, le=50.0), Allowed("a number of seconds from 0 to 50")] = 0.0


class PoolSection(Section):
    """Hosts that no section names: they join.

    Args:
        devices: Settings of the hosts, by their kind of device.
        ray: Address of the Ray cluster that has them as nodes; without it others start their agents.
        unattended_s: Seconds for which agents on a Ray cluster go on without a process that looks after them.
    """

    ray: Annotated[Text | None, Allowed("auto, or the address of a Ray cluster, HOST:PORT")] = None
    unattended_s: Seconds = 600.0
    scaling: Annotated[ScalingSection, Allowed("a mapping with up_s, down_s, objective, replay_s")] = ScalingSection()
    devices: Annotated[dict[str, HostTemplate], Allowed("a mapping of kind of device to what such a host has")] = {}


class Switching(Section):
    """Limits on when an instance may change its model.

    Args:
        min_active_s: Seconds for which a model stays at least once it is active.
        max_wait_s: Longest wait, in seconds, of a request for a model that is active nowhere, before an instance
            switches to it.
        drain_max_s: Longest time, in seconds, that streams may take to end before the switch; longer ones are parked.
    """

    min_active_s: Seconds = 10.0
    max_wait_s: Seconds = 60.0
    drain_max_s: Seconds = 60.0


class GatewaySection(GatewaySettings):
    """The gateway's address, certificates, file of keys, and limits.

    Args:
        http3: Settings of HTTP/3 on UDP, beside TCP. ssl_*, enable_ssl_refresh: settings with the meaning of vLLM's
            flags of these names.
        reuse_port: Whether other gateways of this machine may listen on the same port, so that one after another can
            be replaced. leave_s: Seconds for which a gateway that ends still accepts requests, while health checks
            fail.
    """

    host: Annotated[Text, Allowed("an address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field(strict=True, ge=0, le=65535), Allowed("a port, 0 for any that is free")] = 8000
    reuse_port: Annotated[bool, Field(strict=True), Allowed("true or false")] = False
    leave_s: Seconds = 0.0
    keys: Annotated[Text | None, Allowed("the path of a file of keys")] = None
    http3: Annotated[Http3Settings, Allowed("a mapping with enabled, scheduler and limits")] = Http3Settings()
    ssl_certfile: Annotated[Text | None, Allowed("the path of a PEM file")] = None
    ssl_keyfile: Annotated[Text | None, Allowed("the path of a PEM file")] = None
    ssl_ca_certs: Annotated[Text | None, Allowed("the path of a PEM file")] = None
    ssl_cert_reqs: Annotated[Literal[0, 1, 2], Allowed("0, 1 or 2, where 2 has clients show a certificate")] = 0
    enable_ssl_refresh: Annotated[bool, Field(strict=True), Allowed("true or false")] = False


_HOST: Final = re.compile(r"\*|[a-z0-9-]+(\.[a-z0-9-]+)*")


def _hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    if not all(_HOST.fullmatch(value) for value in values):
        raise ValueError
    return values


class MediaSection(Section):
    """Images, recordings and videos that requests name by URL.

    Args:
        media_domains: Hosts from which engines may fetch them, ``*`` for any; none by default.
    """

    media_domains: Annotated[
        tuple[str, ...], AfterValidator(_hosts), Allowed("a list of hosts, as images.example.org, or of '*'")
    ] = ()


class CertificateSection(Section):
    """TLS to agents on TCP.

    Args:
        folder: Folder of authority and certificates; without one agents use plain HTTP.
        of_gateways: Whether agents ask gateways for a certificate, too.
    """

    folder: Annotated[Text | None, Allowed("the path of a folder")] = None
    of_gateways: Annotated[bool, Field(strict=True), Allowed("true or false")] = False


class BatchSection(Section):
    """Limits of one input file of a batch."""

    file_mb: Annotated[Count, Allowed("a whole number >= 1, of 1e6 bytes")] = 200
    lines: Annotated[Count, Allowed("a whole number >= 1")] = 50_000
    line_mb: Annotated[Count, Allowed("a whole number >= 1, of 1e6 bytes")] = 4
