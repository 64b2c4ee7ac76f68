"""The order in which streams are served: of frames on a connection, and of the keys alone. No sockets, no root."""

import math

import pytest
from aioquic.quic.events import StopSendingReceived, StreamReset

from sloserve.core.errors import ConfigError
from sloserve.http3 import self_check
from sloserve.http3.joined import _CLIENT, Joined
from sloserve.http3.self_check import observed_order
from sloserve.http3.stream_order import StreamOrder
from sloserve.http3.stream_schedulers import SCHEDULERS, StreamState, TenantStreams, scheduler
from sloserve.http3.transport_limits import TransportLimits


@pytest.mark.parametrize("name", SCHEDULERS)
def test_frames_leave_in_the_order_of_the_scheduler(name: str) -> None:
    """Streams 0 long (due in 7 s), 1 free (2 s), 2 long (7.1 s), 3 real-time (1 s, urgent), each of 3000 bytes."""
    expected = {
        "fcfs": "0123",
        "edf": "3102",
        "abs": "3102",
        "ml": "3" + "012" * 3 + "02",
        "rr": "0123" * 3 + "13",
    }
    assert observed_order(name) == expected[name]


def test_a_lost_packet_keeps_its_streams_place() -> None:
    joined = Joined("edf")
    joined.client.send_stream_data(0, bytes(60_000), end_stream=True)
    joined.client.send_stream_data(4, bytes(6_000), end_stream=True)
    joined.client.set_stream(0, deadline_s=9.0)
    joined.client.set_stream(4, deadline_s=1.0)
    assert joined.client.datagrams_to_send(joined.now_s) and set(joined.client.served) == {1}  # and they get lost
    joined.run()
    assert joined.finished == [4, 0]


def test_a_deadline_per_part_is_that_of_the_next_byte_to_send() -> None:
    order = StreamOrder(scheduler("edf"))
    order.due(0, 100, 5.0)
    order.due(0, 250, 8.0)
    assert [order.key(0, offset, 0)[0] for offset in (0, 99, 100, 249, 250)] == [5.0, 5.0, 8.0, 8.0, 8.0]
    assert order.key(0, 40, 0)[0] == 5.0  # bytes 40 to 99 were lost: they are due when they were
    assert order.key(0, 100, 100)[0] == 8.0
    assert order.key(4, 0, 0)[0] == math.inf


def test_tenants_share_a_rotation_whatever_the_number_of_their_streams() -> None:
    order = StreamOrder(scheduler("rr"))
    tenants = {0: "many", 4: "many", 8: "many", 12: "one"}
    for stream_id, tenant in tenants.items():
        order.set(stream_id, None, None, None, tenant)
    served = []
    for _ in range(12):
        next_id = min(tenants, key=lambda stream_id: order.key(stream_id, 0, 0))
        order.served(next_id, 1000)
        served.append(next_id)
    assert served.count(12) == 6
    assert [served.count(stream_id) for stream_id in (0, 4, 8)] == [2, 2, 2]


def test_a_tenant_that_comes_late_starts_level_with_the_others() -> None:
    order = StreamOrder(scheduler("rr"))
    order.set(0, None, None, None, "early")
    order.waiting([0])
    order.served(0, 10**9)
    order.waiting([0])
    order.set(4, None, None, None, "late")
    order.waiting([0, 4])
    order.served(4, 1)
    assert order.key(0, 0, 0) < order.key(4, 0, 0)


def test_a_tenant_that_was_silent_is_level_too_whatever_else_is_open() -> None:
    """As a stream of tokens whose tenant was served little, beside HTTP/3's own streams."""
    joined = Joined("rr")
    joined.client.send_stream_data(2, b"HTTP/3's own")
    for number, tenant, size in ((0, "late", 1), (1, "silent", 1), (2, "early", 100_000)):
        joined.client.send_stream_data(4 * number, bytes(size))
        joined.client.set_stream(4 * number, tenant=tenant)
        joined.run()
    joined.client.served.clear()
    for number in (0, 2):
        joined.client.send_stream_data(4 * number, bytes(6000))
    joined.run()
    assert sorted(joined.client.served[:6]) == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_end_of_a_stream_does_not_wait_behind_data(name: str) -> None:
    joined = Joined(name)
    joined.client.send_stream_data(0, b"unwanted")
    joined.run()
    joined.client.send_stream_data(4, bytes(200_000))
    joined.client.set_stream(4, deadline_s=1.0, urgency=0)
    joined.client.reset_stream(0, 0x10C)
    joined.client.stop_stream(0, 0x10C)
    first, *_ = joined.client.datagrams_to_send(joined.now_s)
    joined.server.receive_datagram(first[0], _CLIENT, joined.now_s)
    events = iter(joined.server.next_event, None)
    assert {StreamReset, StopSendingReceived} <= {type(event) for event in events}


def test_absolute_priority_serves_incremental_streams_of_an_urgency_in_rotation() -> None:
    tenant = TenantStreams()
    whole, first, second = (StreamState(i, tenant, turn=9 - i, incremental=i > 0) for i in (0, 4, 8))
    key = SCHEDULERS["abs"]
    assert sorted((first, second, whole), key=key) == [whole, second, first]


def test_what_is_over_is_forgotten() -> None:
    order = StreamOrder(scheduler("edf"))
    for stream_id in range(0, 4000, 4):
        order.set(stream_id, 1.0, None, None, str(stream_id))
        order.forget({stream_id})
    assert len(order._states) <= 67 and len(order._tenants) <= 67


def test_unread_data_is_bounded_by_the_windows() -> None:
    assert self_check.unread_limit() == 16384


@pytest.mark.slow
def test_windows_grow_as_data_is_read() -> None:
    joined = Joined("fcfs", TransportLimits(stream_window_bytes=8192, connection_window_bytes=16384))
    joined.client.send_stream_data(0, bytes(200_000), end_stream=True)
    joined.run(2000)
    assert joined.received == {0: 200_000}


def test_an_unknown_scheduler_is_refused() -> None:
    with pytest.raises(ConfigError, match="'wfq' is not one of the stream schedulers edf, ml, abs, rr, fcfs"):
        scheduler("wfq")
