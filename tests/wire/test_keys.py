"""Keys in wire, for servers and gateways alike: how a key is looked up, and when a file is read again."""

import hashlib
import hmac
import logging
import os
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.core.files.marked_yaml import load_yaml, parse_yaml
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.wire.keys import LOOK_S, KeyEntry, Keys, KeyTenant, WatchedKeys, hash_of, keys_of, new_key


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read(path: Path) -> Keys[KeyTenant]:
    return keys_of(load_yaml(path), KeyEntry, lambda name, entry: KeyTenant(name, entry.slo_class), DEFAULT_CLASSES)


@pytest.mark.parametrize("shown", ["one", "two", "", "o", "one ", "sha256:" + 64 * "0"])
def test_every_look_up_compares_one_digest_in_constant_time(monkeypatch: pytest.MonkeyPatch, shown: str) -> None:
    keys = Keys({digest("one"): KeyTenant("a")})
    compared: list[tuple[int, int]] = []

    def compare(known: bytes, found: bytes) -> bool:
        compared.append((len(known), len(found)))
        return hmac.compare_digest(known, found)

    monkeypatch.setattr("sloserve.wire.keys.hmac", type("Hmac", (), {"compare_digest": staticmethod(compare)}))
    assert (keys.tenant_of(shown.encode()) is not None) == (shown == "one")
    assert compared == [(32, 32)], "for an unknown key as well"


def test_no_digest_is_the_place_of_an_entry() -> None:
    """The table is searched by a hash with a secret: what a client can compute says nothing of its order."""
    one, other = (Keys({digest("k"): KeyTenant("a")}) for _ in range(2))
    assert digest("k") not in one._tenants and one._tenants.keys() != other._tenants.keys()


def test_new_keys_are_long_and_differ() -> None:
    made = [new_key() for _ in range(100)]
    assert len({key for key, _ in made}) == 100 and all(len(key) >= 43 for key, _ in made)
    assert all(hash_of(key) == text for key, text in made)


def test_a_file_is_looked_at_once_in_an_interval(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path, clock = tmp_path / "keys.yaml", ManualClock(1000.0)
    path.write_text(f"tenants: {{a: {{keys: ['{hash_of('one')}']}}}}")
    times = 0

    def counting(file: Path) -> Keys[KeyTenant]:
        nonlocal times
        times += 1
        return read(file)

    watched = WatchedKeys(path, counting, clock)
    assert [tenant.name for tenant in watched] == ["a"] and watched.named("a") is not None
    path.write_text(f"tenants: {{b: {{keys: ['{hash_of('two')}']}}}}")
    os.utime(path, ns=(0, 1))
    clock.advance_to(1000.0 + 0.9 * LOOK_S)
    assert watched.tenant_of(b"one") is not None and times == 1
    clock.advance_to(1000.0 + LOOK_S)
    assert watched.tenant_of(b"one") is None and times == 2 and watched.named("a") is None
    clock.advance_to(1000.0 + 2 * LOOK_S)
    assert watched.tenant_of(b"two") is not None and times == 2, "it has not changed"
    path.write_text("tenants: {b: {keys: [two]}}")
    for _ in range(3):
        clock.advance_to(clock.now_s() + LOOK_S)
        assert watched.tenant_of(b"two") is not None
    assert (times, watched.faults) == (3, 1), "a fault is reported once for each change"
    assert "the previous keys stay in use" in caplog.text and "[two]" not in caplog.text
    with pytest.raises(ConfigError):
        WatchedKeys(path, counting, clock)


@pytest.mark.parametrize(
    "text",
    [
        "tenants: {a: {keys: KEY}}",
        "tenants: {a: {keys: [KEY]}}",
        "tenants: {a: {keys: [31415926535]}}",
        "tenants: {a: {keys: {KEY: sha256}}}",
        "tenants: {a: {keys: [{KEY: sha256}]}}",
    ],
)
@pytest.mark.parametrize("key", ["sk-secret", "sloserve-" + 43 * "k"])
def test_no_error_repeats_what_stands_where_the_hash_of_a_key_belongs(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match="sha256:") as raised:
        _keys_in(text.replace("KEY", key))
    assert key not in str(raised.value) and "31415926535" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "tenants: KEY",
        "tenants: {KEY: acme}",
        "KEY: {}",
        "tenants: {a: {KEY: 1}}",
        "tenants: {a: {keys: [], class: KEY}}",
    ],
)
def test_no_error_repeats_a_key_that_sloserve_made_wherever_it_stands(text: str) -> None:
    key = new_key()[0]
    with pytest.raises(ConfigError, match=r"sloserve-\.\.\.|keys: \[\] is not a list") as raised:
        _keys_in(text.replace("KEY", key))
    assert key not in str(raised.value)


def _keys_in(text: str) -> Keys[KeyTenant]:
    return keys_of(parse_yaml(text, "keys"), KeyEntry, lambda name, entry: KeyTenant(name), DEFAULT_CLASSES)
