"""What differs between two versions of a fleet's file, and what of it needs a restart."""

import pytest

from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.run.file_changes import changes, fixed_changes

FLEET = """
models:
  chat: {profile: h100-llama3-8b, arguments: [--key=secret], share: 0.7}
  legal: {profile: h100-llama3-8b, adapter_of: chat}
hosts:
  node-a: {device: h100, devices: 2, host_memory_gib: 64}
switching: {max_wait_s: 60}
settings:
  policy: edf
  tenant_shares: {weights: {acme: 2}}
  classes: {gold: {rank: 0, ttft_ms: 700, aged_after_s: 60}}
store: postgresql://u:password@db/fleet
"""


def fleet(*replaced: tuple[str, str]) -> Fleet:
    text = FLEET
    for before, after in replaced:
        assert before in text
        text = text.replace(before, after)
    return parse_fleet(text)


def test_nothing_differs_between_equal_files() -> None:
    assert changes(fleet(), fleet()) == [] == fixed_changes(fleet(), fleet())


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        (("  legal: {", "  code: {profile: h100-llama3-8b}\n  legal: {"), "model code is added"),
        (("  legal: {profile: h100-llama3-8b, adapter_of: chat}\n", ""), "model legal is removed"),
        (("share: 0.7", "share: 0.5"), "model chat changes: share 0.7 becomes 0.5"),
        (("--key=secret", "--key=other"), "model chat changes: arguments"),
        ((", adapter_of: chat", ""), "model legal changes: adapter_of chat becomes not set"),
        (("legal: {", "legal: {flags: {max_num_seqs: 8}, "), "model legal changes: max_num_seqs not set becomes 8"),
        (("hosts:", "hosts:\n  node-b: {device: h100, devices: 1}"), "host node-b is added"),
        (("memory_gib: 64", "memory_gib: 32"), "host node-a changes: host_memory_gib 64 becomes 32"),
        (("devices: 2", "devices: 4"), "host node-a changes: devices 2 becomes 4"),
        (("ttft_ms: 700", "ttft_ms: 500"), "class gold changes: ttft_ms 700 becomes 500"),
        (("gold: {", "silver: {rank: 1, ttft_ms: 900}, gold: {"), "class silver is added"),
        (("gold: {rank", "silver: {rank"), "class gold is removed\nclass silver is added"),
        (("acme: 2", "acme: 3"), "settings.tenant_shares.weights.acme: 2 becomes 3"),
        (("max_wait_s: 60", "max_wait_s: 30"), "switching.max_wait_s: 60 becomes 30"),
        (("settings:", "gateway: {max_held: 7}\nsettings:"), "gateway.max_held: 1024 becomes 7"),
        (("password", "other"), "store: has changed"),
    ],
)
def test_a_change_is_said_in_plain_words(replaced: tuple[str, str], said: str) -> None:
    assert "\n".join(changes(fleet(), fleet(replaced))) == said


@pytest.mark.parametrize(
    ("replaced", "keys"),
    [
        (("settings:", "gateway: {port: 9, http3: {enabled: true}, max_held: 7}\nsettings:"), "port http3.enabled"),
        (("settings:", "gateway: {host: '::1', ssl_certfile: a.pem}\nsettings:"), "host ssl_certfile"),
        (("settings:", "gateway: {leave_s: 3, keys: keys.yaml}\nsettings:"), ""),
    ],
)
def test_what_the_gateway_listens_with_needs_a_restart(replaced: tuple[str, str], keys: str) -> None:
    assert fixed_changes(fleet(), fleet(replaced)) == [f"gateway.{key}" for key in keys.split()]


def test_places_labels_and_a_ray_cluster_need_a_restart() -> None:
    other = (
        ("store: postgresql://u:password@db/fleet", "state: s\nfiles: f\nstore: sqlite:x"),
        ("policy: edf", "policy: edf\n  max_tenant_labels: 3"),
        ("hosts:\n  node-a: {device: h100, devices: 2, host_memory_gib: 64}", "pool: {ray: auto, devices: {h100: {}}}"),
    )
    changed = parse_fleet_to_run(fleet_text(other))
    keys = ["store", "state", "files", "pool.ray", "settings.max_tenant_labels"]
    assert fixed_changes(parse_fleet_to_run(FLEET), changed) == keys
    assert "host node-a is removed" in changes(parse_fleet_to_run(FLEET), changed)


def fleet_text(replaced: tuple[tuple[str, str], ...]) -> str:
    text = FLEET
    for before, after in replaced:
        assert before in text
        text = text.replace(before, after)
    return text


def parse_fleet_to_run(text: str) -> Fleet:
    return parse_fleet(text.replace("{profile", "{model: m, profile"), to_run=True)
