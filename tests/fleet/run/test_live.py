"""From a fleet's file to what its processes are started with."""

import json
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.fleet.agent.orders import agendas
from sloserve.fleet.file import parse_fleet, read_fleet
from sloserve.fleet.file_sections import CertificateSection, HostTemplate, PoolSection
from sloserve.fleet.fleet import Host
from sloserve.fleet.run.live import (
    DOOR_KEY,
    STORE,
    Place,
    agent_settings,
    check_endpoints,
    file_limits,
    forwarders_of,
    host_named,
    joining_host,
    place_of,
    with_own_key,
)
from sloserve.fleet.run.open_files import allow_open_files
from sloserve.scheduler.settings import read_settings
from sloserve.scheduler.share_settings import ShareSettings
from tests.fleet.test_file import CONFIGS

FILE = """
models:
  chat: {model: meta/llama, profile: big, arguments: [--kv-cache-dtype=fp8], flags: {max_num_seqs: 7}}
  tuned: {model: /adapters/tuned, profile: big, adapter_of: chat}
hosts:
  a: {device: h100, devices: 4, width: 2, host_memory_gib: 10, swap_space_gib: 8, environment: {X: y}}
  b: {device: h100, devices: 2, width: 2, door: "http://10.0.0.2:7000"}
gateway: {port: 9000, keys: keys.yaml, hold_max_s: 5.0}
batches: {lines: 10, file_mb: 1}
store: sqlite:db/fleet.sqlite
settings: {policy: sjf}
"""


def test_a_model_says_how_its_engine_is_started(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path)
    settings = agent_settings(fleet, fleet.hosts["a"], place_of(fleet, environ={}))
    assert settings.environments["a/1"] == {"CUDA_VISIBLE_DEVICES": "2,3", "X": "y"}
    chat, tuned = settings.instances["a/1"]["chat"], settings.instances["a/1"]["tuned"]
    assert (chat.model, chat.max_num_seqs, tuned.adapter_of) == ("meta/llama", 7, "chat")
    big = fleet.models["chat"].profiles["h100"]
    assert chat.longest_step_s > big.step_s(StepLoad.of([(big.max_num_batched_tokens, 0)])) > 0.01
    flags = dict(zip(chat.flags[:-1:2], chat.flags[1:-1:2], strict=False))
    assert flags["--max-num-seqs"] == "7" and flags["--tensor-parallel-size"] == "2"
    assert flags["--swap-space-gib"] == "2.000"  # two instances, two models
    assert chat.flags[-2:] == ("--enable-sleep-mode", "--kv-cache-dtype=fp8")
    section = json.loads(Path(flags["--slo-config"]).read_text())
    expected = {"profile": str(tmp_path / "big.yaml"), "policy": "sjf", "admission": {"promises": "gateway"}}
    assert section == expected and read_settings(section)[1] == []


@pytest.mark.parametrize(("given", "promises"), [("any", "gateway"), ("classes", "gateway"), ("off", "off")])
def test_engines_take_over_promises_and_leave_limits_of_tenants_to_the_gateway(
    tmp_path: Path, given: str, promises: str
) -> None:
    fleet = _fleet(tmp_path)
    own = {"admission": {"mode": "cap", "promises": given}, "tenants": {"acme": "batch"}, "tenant_default": "batch"}
    settings = fleet.settings.model_copy(
        update={"admission": fleet.settings.admission.model_copy(update={"promises": given})}
    )
    fleet = replace(fleet, settings=settings, section={**fleet.section, **own})
    started = agent_settings(fleet, fleet.hosts["a"], place_of(fleet, environ={})).instances["a/1"]["chat"]
    assert json.loads(started.settings) == {
        "profile": str(tmp_path / "big.yaml"),
        "policy": "sjf",
        "admission": {"mode": "cap", "promises": promises},
    }


@pytest.mark.parametrize(("given", "second"), [("4,5,6,7", "6,7"), ("4,5", "2,3"), ("", "2,3")])
def test_engines_get_the_devices_that_their_agent_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, second: str
) -> None:
    """Ray gives an actor some of a node's GPUs, by their numbers; others may have the rest."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    fleet = _fleet(tmp_path)
    settings = agent_settings(fleet, fleet.hosts["a"], place_of(fleet, environ={}))
    assert settings.environments["a/1"]["CUDA_VISIBLE_DEVICES"] == second


def test_a_key_that_a_fleet_makes_is_the_same_at_its_next_start(tmp_path: Path) -> None:
    first, second = (with_own_key(Place(tmp_path, "sqlite:x")) for _ in range(2))
    assert first.endpoint_key == second.endpoint_key and len(first.endpoint_key or "") > 40
    (tmp_path / "other").mkdir()
    assert with_own_key(Place(tmp_path / "other", "sqlite:x")).endpoint_key != first.endpoint_key
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.glob("door-key*")} == {"0o600"}


def test_agents_share_where_the_settings_have_shares(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path)
    assert agent_settings(fleet, fleet.hosts["a"], place_of(fleet, environ={})).half_life_s is None
    shares = replace(
        fleet, settings=fleet.settings.model_copy(update={"tenant_shares": ShareSettings(half_life_s=7.0)})
    )
    assert agent_settings(shares, fleet.hosts["a"], place_of(fleet, environ={})).half_life_s == 7.0


def test_state_and_store_stand_beside_the_file_unless_it_says_otherwise(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path)
    place = place_of(fleet, environ={})
    assert place.folder == tmp_path / "fleet.state" and place.files == place.folder / "files"
    assert place.store == f"sqlite:{tmp_path}/db/fleet.sqlite"
    address = "postgresql://u:secret@db/fleet"
    assert place_of(fleet, tmp_path / "elsewhere", {STORE: address}).store == address
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o700
    limits = file_limits(fleet)
    assert (limits.file_bytes, limits.lines, fleet.gateway.port, fleet.gateway.hold_max_s) == (10**6, 10, 9000, 5.0)


@pytest.mark.parametrize("environ", [{}, {DOOR_KEY: "short"}, {DOOR_KEY: ","}, {DOOR_KEY: "a-key-of-the-fleet,short"}])
def test_a_door_on_tcp_needs_a_key(tmp_path: Path, environ: dict[str, str]) -> None:
    fleet = _fleet(tmp_path)
    with pytest.raises(ConfigError, match=r"hosts.b.door: .*set SLOSERVE_FLEET_DOOR_KEY to a secret of at least 16"):
        agent_settings(fleet, fleet.hosts["b"], place_of(fleet, environ=environ))
    with pytest.raises(ConfigError, match="hosts.b.door"):
        check_endpoints(fleet, place_of(fleet, environ=environ))
    place = place_of(fleet, environ={DOOR_KEY: "a-key-of-the-fleet"})
    assert agent_settings(fleet, fleet.hosts["b"], place).endpoint_key == "a-key-of-the-fleet"
    assert "a-key" not in repr(place) + repr(agent_settings(fleet, fleet.hosts["b"], place))
    check_endpoints(fleet, place)


def test_the_limit_of_open_files_is_raised_to_what_requests_need(caplog: pytest.LogCaptureFixture) -> None:
    """At 1,024, the default of Linux, a gateway came to its end with some 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        allow_open_files(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (532, hard) and not caplog.records
        allow_open_files(1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 532, "it is never lowered"
        allow_open_files(10**9)
        assert "LimitNOFILE" in caplog.text and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_host_is_named_where_there_are_several(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path)
    assert host_named(fleet, "b").door == "http://10.0.0.2:7000"
    for name, message in ((None, "say with --host which this is: a, b"), ("c", "--host c: is unknown; .* has a, b")):
        with pytest.raises(ConfigError, match=message):
            host_named(fleet, name)


def test_a_host_joins_by_its_kind_of_device(tmp_path: Path) -> None:
    fleet, place = _fleet(tmp_path), Place(tmp_path, "postgresql://db/fleet", "a-key-of-the-fleet")
    fleet = replace(fleet, pool=PoolSection(devices={"h100": HostTemplate(devices=4, width=2)}))
    joined, host = joining_host(fleet, "rack-7", None, None, "10.0.0.7", place)
    assert host.instances == ("rack-7/0", "rack-7/1") and host.door == "http://10.0.0.7:0"
    settings = agent_settings(joined, host, place)
    assert settings.instances["rack-7/1"].keys() == {"chat", "tuned"} and settings.endpoint_key == place.endpoint_key
    assert agendas(joined, host.instances).keys() == {"rack-7/0", "rack-7/1"}
    with_tls = replace(fleet, certificates=CertificateSection(folder="tls"))
    assert joining_host(with_tls, "rack-7", None, None, "10.0.0.7", place)[1].door == "https://10.0.0.7:0"
    unnamed = joining_host(fleet, None, "h100", None, None, place)[1]
    assert (unnamed.name, unnamed.door) == (socket.gethostname(), None)
    assert joining_host(fleet, "a", None, None, None, place)[1] is fleet.hosts["a"]
    assert joining_host(fleet, "x", None, None, "::1", Place(tmp_path, "sqlite:x"))[1].door == "http://[::1]:0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rack/7", None, None, None), "--host rack/7: .* has a name of at most 100 letters"),
        (("x", "h200", None, None), "pool.devices: 'h200' is unknown"),
        (("a", "h100", None, None), "--device h100: is for a host that joins"),
        (("x", None, None, "10.0.0.7"), "--address 10.0.0.7: other hosts cannot reach sqlite:x; name a PostgreSQL"),
    ],
)
def test_what_does_not_fit_a_host_that_joins_is_said(tmp_path: Path, arguments, message: str) -> None:  # type: ignore[no-untyped-def]
    fleet = replace(_fleet(tmp_path), pool=PoolSection(devices={"h100": HostTemplate(devices=4, width=2)}))
    with pytest.raises(ConfigError, match=message):
        joining_host(fleet, *arguments, Place(tmp_path, "sqlite:x"))


def test_the_tiny_fleet_can_be_run() -> None:
    fleet = read_fleet(CONFIGS / "fleet-tiny.yaml", to_run=True)
    assert len(fleet.models) == 3 and len(fleet.instances) == 1


FAULTS = {
    "models: {a: {profile: h100-llama3-8b}}": "fleet:1:10: models.a.model: is missing; to run a fleet, give",
    "models: {a: {profile: h100-llama3-8b, model: m, arguments: [--port=1]}}": "arguments.0: '--port=1' is set by",
    "models: {a: {profile: h100-llama3-8b, model: m, adapter_of: b}}": "adapter_of: model 'b' is unknown; known here: ",
    "models: {a: {profile: h100-llama3-8b, model: m}}\ngateway: {port: 70000}": "gateway.port: 70000 is not a port",
    "models: {a: {profile: h100-llama3-8b, model: m}}\nbatches: {line: 1}": "batches.line: is unknown; known here: ",
    "models: {a: {profile: h100-llama3-8b, model: m}}\nstore: 5": "store: 5 is not sqlite:PATH or postgresql://...",
}


@pytest.mark.parametrize(("text", "message"), FAULTS.items())
def test_what_cannot_be_run_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_fleet(f"{text}\nhosts: {{n: {{device: h100, devices: 1}}}}", to_run=True)
    assert message in str(error.value)


def _fleet(folder: Path):  # type: ignore[no-untyped-def]
    from sloserve.estimator.step_time import profile

    shipped = Path(profile.__file__).parents[1] / "profiles" / "h100-llama3-8b.yaml"
    (folder / "big.yaml").write_text(shipped.read_text().replace("tensor_parallel: 1", "tensor_parallel: 2"))
    (folder / "fleet.yaml").write_text(FILE.replace("profile: big", "profile: big.yaml"))
    (folder / "db").mkdir()
    return read_fleet(folder / "fleet.yaml", to_run=True)


@pytest.mark.parametrize(
    ("stated", "devices", "cores", "count"),
    [
        (None, 1, 64, 1),
        (None, 2, 64, 1),
        (None, 8, 64, 4),
        (None, 8, 8, 2),
        (None, 8, 2, 1),
        (3, 1, 2, 3),
    ],
)
def test_a_host_has_a_forwarding_process_for_two_instances(
    stated: int | None, devices: int, cores: int, count: int
) -> None:
    host = replace(Host("n", "h100", devices, 1, 0, 0), stated_forwarders=stated)
    assert forwarders_of(host, cores) == count
