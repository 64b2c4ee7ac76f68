"""Which address a request comes from, and which addresses are trusted to name a tenant."""

from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from sloserve.wire.peers import LOOPBACK, TrustedProxies, networks, peer_of, record_peers
from tests import bounded


def test_networks_are_read_as_people_write_them() -> None:
    assert networks(["10.0.0.7", "10.1.0.0/16", "10.0.0.7"]) == ("10.0.0.7/32", "10.1.0.0/16")
    assert networks(["*"]) == ("0.0.0.0/0", "::/0") and networks([]) == ()
    for wrong in ("10.0.0.1/8", "gateway", "", "10.0.0.0/40", "**"):
        with pytest.raises(ValueError):
            networks([wrong])


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("testclient", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_this_machine_is_trusted_by_default(host: str, trusted: bool) -> None:
    assert TrustedProxies(LOOPBACK).trust((host, 5000)) is trusted


def test_a_unix_socket_is_this_machine_and_a_word_means_all_addresses() -> None:
    assert TrustedProxies(LOOPBACK).trust(None) and not TrustedProxies(()).trust(None)
    everyone = TrustedProxies(networks(["*"]))
    assert all(everyone.trust((host, 1)) for host in ("10.0.0.1", "fe80::1%eth0", "::1"))
    assert not everyone.trust(("testclient", 1)), "no address at all"
    assert TrustedProxies((*LOOPBACK, "10.0.0.0/8")).beyond_this_machine == ["10.0.0.0/8"]


@pytest.mark.parametrize("stated", [None, "127.0.0.1", "203.0.113.9"])
def test_the_peer_is_the_one_that_connects_whatever_a_proxy_states(stated: str | None) -> None:
    """Uvicorn puts what X-Forwarded-For says in the place of the address, for proxies that it trusts."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((peer_of(scope), scope["client"][0]))

    config = SimpleNamespace(loaded_app=ProxyHeadersMiddleware(app, trusted_hosts="*"))  # type: ignore[arg-type]
    record_peers(SimpleNamespace(config=config))
    recorded = config.loaded_app
    record_peers(SimpleNamespace(config=config))
    assert config.loaded_app is recorded, "a second call adds nothing"
    headers = [] if stated is None else [(b"x-forwarded-for", stated.encode())]
    scope = {"type": "http", "headers": headers, "client": ("10.0.0.1", 5), "http_version": "1.1"}
    bounded.run(config.loaded_app(scope, None, None))
    assert seen == [(("10.0.0.1", 5), stated or "10.0.0.1")]


def test_an_address_that_a_server_may_have_replaced_is_trusted_by_nobody() -> None:
    scope = {"headers": [(b"x-forwarded-for", b"127.0.0.1")], "client": ("127.0.0.1", 0), "http_version": "1.1"}
    assert not TrustedProxies(LOOPBACK).trust(peer_of(scope))
    assert peer_of({**scope, "http_version": "3"}) == ("127.0.0.1", 0), "our own HTTP/3 replaces no address"
    record_peers(None), record_peers(SimpleNamespace()), record_peers(SimpleNamespace(config=SimpleNamespace()))
