"""Keys: what a file may say, whose a key is, and that a changed file counts."""

import os
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.core.files.marked_yaml import parse_yaml
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.fleet.gateway.keys import KeyFile, Tenant, _keys, read_keys
from sloserve.wire.asgi import key_in
from sloserve.wire.keys import Keys, hash_of, new_key

MODELS = ("chat", "legal")


def keys(text: str) -> Keys[Tenant]:
    return _keys(parse_yaml(text, "keys"), DEFAULT_CLASSES, MODELS)


def test_a_key_is_its_tenants_and_no_other_text_is() -> None:
    (first, first_hash), (second, second_hash) = new_key(), new_key()
    found = keys(
        f"tenants:\n  a: {{keys: ['{first_hash}'], class: batch, models: [chat], quota: {{lines: 5}}}}\n"
        f"  b: {{keys: ['{second_hash}', '{hash_of('old')}'], metrics: true}}\n"
    )
    a, b = found.tenant_of(first.encode()), found.tenant_of(second.encode())
    assert a is not None and (a.name, a.slo_class, a.quota.lines) == ("a", "batch", 5)
    assert a.may_use("chat") and not a.may_use("legal") and not a.metrics
    assert b is not None and b.may_use("legal") and b.metrics and found.tenant_of(b"old") is b
    for wrong in (b"", first_hash.encode(), first.encode()[:-1], first.encode() + b"\0", b"\xff"):
        assert found.tenant_of(wrong) is None
    assert [tenant.name for tenant in found] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tenants: {}", "keys:1:1: tenants: no tenants"),
        ("tenant: {}", "keys:1:1: tenant: unknown key"),
        ("tenants:\n  a: {keys: []}", "keys:2:7: tenants.a.keys: [] is not a list of at least one hash"),
        ("tenants:\n  a: {keys: [sk-secret]}", "keys:2:14: tenants.a.keys.0: is not sha256:"),
        ("tenants:\n  a b: {keys: ['HASH']}", "keys:2:3: tenants.a b: a tenant's name is"),
        ("tenants:\n  a: {keys: ['HASH'], class: urgent}", "tenants.a.class: class 'urgent' is unknown"),
        ("tenants:\n  a: {keys: ['HASH'], models: [chta]}", "did you mean 'chat'?"),
        ("tenants:\n  a: {keys: ['HASH'], quota: {lines: -1}}", "quota.lines: -1 is not a whole number"),
        ("tenants:\n  a: {keys: ['HASH']}\n  b: {keys: ['HASH']}", "a key of 'a' already"),
    ],
)
def test_faults_are_named_with_their_place_and_a_key_is_never_repeated(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        keys(text.replace("HASH", hash_of("x")))
    assert fault in str(raised.value) and "sk-secret" not in str(raised.value)


def test_a_changed_file_counts_and_a_faulty_one_does_not(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.yaml", ManualClock()

    def write(text: str) -> None:
        path.write_text(text)
        os.utime(path, ns=(0, int(clock.now_s() * 1e9)))
        clock.advance_to(clock.now_s() + 2.0)

    write(f"tenants:\n  a: {{keys: ['{hash_of('one')}']}}\n")
    file = KeyFile(path, DEFAULT_CLASSES, MODELS, clock)
    assert not file.is_open and file.tenant_of(b"one") is not None
    write(f"tenants:\n  a: {{keys: ['{hash_of('two')}']}}\n")
    assert file.tenant_of(b"one") is None and file.tenant_of(b"two") is not None
    write("tenants: [")
    assert file.tenant_of(b"two") is not None and file.faults == 1
    path.unlink()
    clock.advance_to(clock.now_s() + 2.0)
    assert file.tenant_of(b"two") is not None, "a file that is gone changes nothing but for a line in the log"
    shown = {
        "two": [(b"authorization", b"bearer  two "), (b"x-api-key", b"three")],
        "three": [(b"authorization", b"Basic two"), (b"x-api-key", b" three ")],
        "": [(b"authorization", b"Bearer"), (b"x-two", b"two")],
    }
    assert [key_in(headers).decode() for headers in shown.values()] == list(shown)
    assert file.tenant_of(b"") is None
    assert file.named("a").may_use("chat") and not file.named("gone").may_use("chat"), "it may not do more than before"


def test_the_example_is_a_file_of_keys() -> None:
    example = Path(__file__).parents[3] / "configs" / "keys.yaml"
    found = {tenant.name: tenant for tenant in read_keys(example, DEFAULT_CLASSES, MODELS)}
    assert found["acme"].slo_class == "interactive" and found["monitoring"].metrics


def test_without_a_file_all_requests_are_one_tenants() -> None:
    file = KeyFile(None, DEFAULT_CLASSES, MODELS, ManualClock())
    tenant = file.tenant_of(b"anything")
    assert file.is_open and tenant is not None and tenant.name == "local" and tenant.may_use("legal")
    assert tenant.quota.requests > 4096, "the gateway's limit is the only one"
    assert file.named("of an earlier file").may_use("legal")
