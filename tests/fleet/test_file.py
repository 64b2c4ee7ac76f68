"""The fleet file: what it says, and every fault at its place with what is allowed."""

from dataclasses import replace
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.file import parse_fleet, read_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.snapshot import serving_of

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_example_is_a_fleet() -> None:
    fleet = read_fleet(CONFIGS / "fleet.yaml")
    assert [name for name, _ in fleet.instances] == [f"node-a/{i}" for i in range(4)]
    assert fleet.active["node-a/2"] == "code" and fleet.settings.classes["batch"].targets.e2e_s == 300.0
    assert sum(model.tail for model in fleet.models.values()) > len(fleet.models) / 2
    assert fleet.models_on(fleet.hosts["node-a"]) == tuple(fleet.models)
    assert fleet.swaps()["legal", "h100"].weights_bytes > 13 * 10**9


def test_a_model_is_served_where_device_and_width_fit_its_profile() -> None:
    fleet = parse_fleet(
        """
models:
  big: {profile: {a100: a100-llama3-70b-tp4}}
  small: {profile: {a100: a100-llama2-7b, h100: h100-llama2-7b}}
hosts:
  wide: {device: a100, devices: 8, width: 4, host_memory_gib: 500}
  narrow: {device: h100, devices: 2}
"""
    )
    assert [name for name, _ in fleet.instances] == ["wide/0", "wide/1", "narrow/0", "narrow/1"]
    assert fleet.models_on(fleet.hosts["wide"]) == ("big",)
    assert fleet.models_on(fleet.hosts["narrow"]) == ("small",)


JOINED = """
models: {chat: {model: m, profile: {h100: h100-llama3-8b, a100: a100-llama2-7b}}}
pool: {devices: {h100: {devices: 4, host_memory_gib: 9}, a100: {width: 1, environment: {X: y}}}}
"""


def test_a_host_that_joins_has_what_is_said_of_its_kind_of_device() -> None:
    fleet = parse_fleet(JOINED, to_run=True)
    assert fleet.hosts == {} and fleet.swaps().keys() == {("chat", "h100"), ("chat", "a100")}
    joined = fleet.joined_by("rack-7", "h100", 4, "http://10.0.0.7:0").joined_by("n", "a100", 2)
    host = joined.hosts["rack-7"]
    assert host.instances == tuple(f"rack-7/{k}" for k in range(4)) and host.host_memory_bytes == 9 * 2**30
    assert joined.models_on(joined.hosts["n"]) == ("chat",) and joined.hosts["n"].environment == {"X": "y"}
    for device, message in (("h200", "pool.devices: 'h200' is unknown; known here: h100, a100"), ("a100", "--devices")):
        with pytest.raises(ConfigError, match=message):
            fleet.joined_by("n", device)
    with pytest.raises(ConfigError, match="host n: 2 devices, and fleet says 4 for each h100; leave out --devices"):
        fleet.joined_by("n", "h100", 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (JOINED.replace("devices: 4", "devices: 3, width: 2"), "pool.devices.h100.devices: 3 devices do not form"),
        (JOINED.replace("width: 1", "widht: 1"), "pool.devices.a100.widht: is unknown"),
        (
            JOINED.replace("pool: {", "pool: {ray: auto, ") + "certificates: {folder: x}",
            "agents on nodes have no certificates",
        ),
        (JOINED.replace("devices: 4", "width: 2").replace("{width: 1", "{width: 2"), "no instance can serve it"),
    ],
)
def test_faults_of_hosts_that_join_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_fleet(text, to_run=True)


def test_a_simulation_has_its_hosts_in_the_file() -> None:
    with pytest.raises(ConfigError, match="no hosts; a fleet has at least one"):
        parse_fleet(JOINED)


FAULTS = {
    "hosts: {n: {device: x, devices: 1}}": ["fleet:1:1: no models; a fleet has at least one, under models"],
    "models: {a: {profile: h100-llama3-8b}}": ["no hosts; a fleet has at least one, under hosts"],
    "models: {a: {profile: h100-llama3-8, shape: 1}}\nhosts: {n: {device: h100, devices: 1}}": [
        "fleet:1:38: models.a.shape: is unknown; known here: profile, share",
    ],
    "models: {a: {profile: h100-llama3-8}}\nhosts: {n: {device: h100, devices: 3, width: 2}}": [
        "fleet:2:27: hosts.n.devices: 3 devices do not form instances of 2; give a multiple of width",
        "fleet:1:14: models.a.profile: unknown profile 'h100-llama3-8'",
        "did you mean 'h100-llama3-8b'?",
    ],
    "models: {a: {profile: {h9: h100-llama3-8b}}}\nhosts: {n: {device: h100, devices: 1}}": [
        "models.a.profile.h9: device 'h9' is unknown; known here: h100"
    ],
    "models: {a: {profile: h100-llama3-8b, active_on: [n/7, n/0]}, b: {profile: h100-llama3-8b, active_on: [n/0]}}\n"
    "hosts: {n: {device: h100, devices: 1}}": [
        "models.a.active_on.0: instance 'n/7' is unknown; known here: n/0",
        "models.b.active_on.0: n/0 has a already; one model is active at a time",
    ],
    "models: {a: {profile: a100-llama3-70b-tp4}}\nhosts: {n: {device: a100, devices: 4}}": [
        "models.a: no instance can serve it; it needs 4 of a100; instances are n: 1 of a100; set width of a host"
    ],
    "models: {a: {profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1, door: 'http://b:1'}}\n"
    "certificates: {folder: tls}": ["fleet:2:39: hosts.n.door: http://b:1: https:// needs certificates.folder"],
    "models: {a: {profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1, door: 'https://b:1'}}": [
        "hosts.n.door: https://b:1: https:// needs certificates.folder, and http:// does not allow it"
    ],
    "models: {a: {profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1}}\nswitching: {max_wait_s: -1}\n"
    "settings: {policy: edg, classes: {a: {rank: 0, e2e_ms: 0}}}": [
        "fleet:3:13: switching.max_wait_s: -1 is not a number of seconds from 0 to 86400",
        "settings.policy: unknown policy 'edg'",
        "settings.classes.a.e2e_ms: 0 is not a number of milliseconds above 0",
    ],
    "models: {a: {profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1}}\n"
    "settings: {classes: {a: {rank: 0, ttft_ms: 5.0e-324}}}": [
        "settings.classes.a.ttft_ms: 5e-324 is not a number of milliseconds above 0",
    ],
    "models: {a: {profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1}}\n"
    "settings: {tenant_headers: [x-org], trusted_proxies: [10.0.0.0/8]}": [
        "settings.tenant_headers: the gateway states tenants to engines in x-tenant-id, which is not listed; leave",
        "settings.trusted_proxies: engines learn tenants from the agent beside them, and 127.0.0.0/8 is not listed",
    ],
}


@pytest.mark.parametrize("text", FAULTS)
def test_every_fault_is_named_at_its_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_fleet(text)
    for part in FAULTS[text]:
        assert part in str(caught.value)


SHAPED = """
models: {{big: {{model: m, profile: {{wide: h100x4-llama3-70b-fp8}}}}}}
hosts: {{theirs: {{device: wide, devices: 8, attach: "http://10.0.0.9:8000", serves: big, {}}}{}}}
"""
PAIR = "shape: {tensor_parallel: 4, prefill: {engines: 2, tensor_parallel: 2, profile: h200x2-llama3-70b-fp8}}"


def test_a_server_on_several_nodes_and_a_pair_are_one_instance() -> None:
    staged = parse_fleet(SHAPED.format("shape: {tensor_parallel: 4, pipeline_parallel: 2, nodes: 2}", ""), to_run=True)
    pair = parse_fleet(SHAPED.format(PAIR, ""), to_run=True)
    for fleet in (staged, pair):
        assert [name for name, _ in fleet.instances] == ["theirs/0"]
        assert fleet.models_on(fleet.hosts["theirs"]) == ("big",)
    profile = staged.models["big"].profiles["wide"]
    one, two, both = (serving_of(fleet)["big", "wide"] for fleet in (_unshaped(staged), staged, pair))
    assert (two.engine.kv_tokens, two.engine.token_budget) == (2 * one.engine.kv_tokens, 2 * one.engine.token_budget)
    decodes = StepLoad(0, 0, 64, 64_000)
    assert two.latency.step_s(decodes) < one.latency.step_s(decodes) == both.latency.step_s(decodes)
    assert both.engine.kv_tokens == profile.kv_capacity_tokens
    assert both.engine.token_budget > load_profile("h200x2-llama3-70b-fp8").max_num_batched_tokens


def _unshaped(fleet: Fleet) -> Fleet:
    return replace(fleet, hosts={name: replace(host, shape=None) for name, host in fleet.hosts.items()})


@pytest.mark.parametrize(
    ("shape", "more", "expected"),
    [
        ("shape: {tensor_parallel: 4}", "", "hosts.theirs.devices: 8 is not the 4 of shape"),
        ("shape: {tensor_parallel: 8, nodes: 3}", "", "8 devices are not spread evenly over 3"),
        ("width: 8, shape: {tensor_parallel: 4, pipeline_parallel: 2}", "", "hosts.theirs.width: is all devices"),
        (PAIR.replace("h200x2", "no-such"), "", "hosts.theirs.shape.prefill.profile: "),
        (
            PAIR.replace("4,", "4, pipeline_parallel: 1, ").replace("_parallel: 1,", "_parallel: 2,"),
            "",
            "no times of such",
        ),
        (
            "shape: {tensor_parallel: 4, pipeline_parallel: 2}",
            ", own: {device: wide, devices: 4, width: 4}",
            "hosts of one kind of device have one shape",
        ),
        ("shape: {tensor_parallel: 2, pipeline_parallel: 4}", "", "'big' is no model with a profile for 2 of wide"),
    ],
)
def test_a_shape_that_does_not_fit_says_what_does_not(shape: str, more: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_fleet(SHAPED.format(shape, more), to_run=True)
    assert expected in str(caught.value)


def test_a_shape_is_of_an_attached_server_that_runs() -> None:
    text = SHAPED.format("shape: {tensor_parallel: 4, pipeline_parallel: 2}", "")
    with pytest.raises(ConfigError, match="a simulated fleet has neither pipelines nor pairs; leave the host out"):
        parse_fleet(text)
    own = text.replace('attach: "http://10.0.0.9:8000", serves: big, ', "")
    with pytest.raises(ConfigError, match="hosts.theirs.shape: belongs to a server that is attached"):
        parse_fleet(own, to_run=True)
