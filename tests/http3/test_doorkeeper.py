"""Which new connections are let in."""

import asyncio
from collections import Counter

import pytest

from sloserve.http3.doorkeeper import Doorkeeper, network
from sloserve.wire.optional_http3 import Http3Settings
from tests.http3.serving import ask, connected, echo, listening, run


def test_an_ipv6_host_cannot_choose_itself_more_addresses() -> None:
    hosts = ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1", "fe80::1%eth0")
    assert list(map(network, hosts)) == [
        "192.0.2.1",
        "192.0.2.1",
        "2001:db8::/64",
        "2001:db8::/64",
        "2001:db8:0:1::/64",
        "fe80::/64",
    ]


def test_handshakes_come_at_a_rate_and_unfinished_ones_ask_for_a_proof() -> None:
    counts: Counter[str] = Counter()
    limits = Http3Settings(handshakes_per_s=2, retry_above=3, connections=6, connections_per_address=4)
    door = Doorkeeper(limits, counts)
    assert [door.ask("192.0.2.1", False, 0.0) for _ in range(5)] == ["admit"] * 4 + ["refuse"]  # a burst of two seconds
    assert door.ask("192.0.2.1", False, 0.5) == "admit"
    for host in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        door.entered(host)
    assert (door.ask("192.0.2.9", False, 9.0), door.ask("192.0.2.9", True, 9.0)) == ("retry", "admit")
    door.shook_hands()
    assert door.ask("192.0.2.9", False, 9.0) == "admit"
    for _ in range(3):
        door.entered("192.0.2.1")
    assert door.ask("192.0.2.9", True, 99.0) == "refuse"  # six in all
    door.left("192.0.2.3", half_open=True)
    assert (door.ask("192.0.2.1", True, 99.0), door.ask("192.0.2.9", True, 99.0)) == ("refuse", "admit")
    assert counts == {"retried": 1, "rate": 1, "connections": 1, "address": 1}


@pytest.mark.slow
def test_an_address_has_a_rate_of_its_own_that_others_cannot_use_up() -> None:
    counts: Counter[str] = Counter()
    door = Doorkeeper(Http3Settings(handshakes_per_s=20, handshakes_per_s_per_address=2, connections=9999), counts)
    greedy, modest = "192.0.2.1", "192.0.2.2"
    assert [door.ask(greedy, False, 0.0) for _ in range(100)] == ["admit"] * 4 + ["retry"] * 96
    assert door.ask(modest, False, 0.0) == "admit"
    assert [door.ask(greedy, True, 0.0) for _ in range(6)] == ["admit"] * 4 + ["refuse"] * 2  # it was no one else
    assert [door.ask(greedy, proven, 0.5) for proven in (False, False, True)] == ["admit", "retry", "admit"]
    assert counts == {"retried": 97, "address_rate": 2}
    for number in range(10_000):
        door.ask(f"198.51.{number // 250}.{number % 250}", number % 2 > 0, 1.0 + number)
    assert len(door._rates) == 80  # what two seconds can let in, twice


@pytest.mark.slow
def test_opening_and_cancelling_requests_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sloserve.http3.server_connection.SPARE_RESETS", 20)

    async def test() -> None:
        async with listening(echo) as listener, connected(listener) as client:
            with pytest.raises(ConnectionError):
                for _ in range(200):
                    reply = ask(client, method="POST", body=True)
                    await client.ping()
                    reply.cancel()
            assert "too many cancelled requests" in str(client.lost)

    run(asyncio.wait_for(test(), 20))
