"""Checks that the private parts of aioquic on which the stream schedulers depend work as expected.

Two connections, joined in memory, send four streams; the order of their frames must be the scheduler's. A server on
which the scheduler had no effect would look healthy and serve in rotation, so :func:`check` refuses instead. The same
holds for the bounds on HTTP/3 (:mod:`sloserve.http3.bounded_h3`), each of which is tried by a request that breaks it,
and for the resets of lost connections.
"""

import functools
import importlib.metadata
import re
from itertools import groupby

from sloserve.core.errors import ConfigError
from sloserve.core.extras import install_command
from sloserve.http3.joined import Joined
from sloserve.http3.probes import failing
from sloserve.http3.scheduled_connection import AIOQUIC
from sloserve.http3.transport_limits import TransportLimits

STREAM_BYTES = 3000
STREAMS = ((7.0, 5), (2.0, 3), (7.1, 5), (1.0, 1))
"""Deadline in seconds and urgency, in the order of opening."""

ORDERS = {"fcfs": "0123", "edf": "3102", "abs": "3102", "ml": "301201201202", "rr": "01230123012313"}
"""The streams in the order in which their bytes leave, by scheduler, without repetitions."""


def observed_order(name: str) -> str:
    """Return the order in which the scheduler ``name`` serves the four streams, without repetitions."""
    joined = Joined(name)
    for number, (deadline_s, urgency) in enumerate(STREAMS):
        joined.client.send_stream_data(4 * number, bytes(STREAM_BYTES), end_stream=True)
        joined.client.set_stream(4 * number, deadline_s=deadline_s, urgency=urgency)
    joined.run()
    if joined.received != {4 * number: STREAM_BYTES for number in range(len(STREAMS))}:
        return "incomplete"
    return "".join(str(number) for number, _ in groupby(joined.client.served))


def unread_limit() -> int:
    """Return how many bytes a peer can send that the application leaves unread, with windows of 8 and 16 KiB."""
    joined = Joined("fcfs", TransportLimits(stream_window_bytes=8192, connection_window_bytes=16384))
    for stream_id in (0, 4, 8):
        joined.server.hold(stream_id, 2**20)  # none of it will be read
        joined.client.send_stream_data(stream_id, bytes(65536), end_stream=True)
    joined.run()
    return sum(joined.received.values())


@functools.cache
def _tried(name: str) -> tuple[str, int]:
    """Return the order and the limit that are seen; aioquic stays as it is while the process runs."""
    return observed_order(name), unread_limit()


_failing = functools.cache(failing)


def check(name: str, any_version: bool = False) -> None:
    """Raise ConfigError if aioquic does not work as needed.

    It does not if the scheduler ``name`` has no effect, memory has no bound, or a probe of HTTP/3 fails.

    Args:
        name: name of the stream scheduler.
        any_version: whether to accept any aioquic with private parts that work, for a look at a new release.
    """
    version = importlib.metadata.version("aioquic")
    if not any_version and tuple(map(int, re.findall(r"\d+", version)[:2])) != AIOQUIC:
        wanted = ".".join(map(str, AIOQUIC))
        raise ConfigError(f"aioquic {version} is installed, and HTTP/3 needs {wanted}: {install_command('http3')}")
    for one in dict.fromkeys((name, "rr")):  # streams without a deadline take turns under any
        order, unread = _tried(one)
        if order != ORDERS[one]:
            raise ConfigError(
                f"aioquic {version} does not serve streams in the order of {one}: {order} instead of {ORDERS[one]}; "
                "reinstall aioquic, or serve without --http3"
            )
    if unread > 16384:
        raise ConfigError(
            f"aioquic {version} does not bound what a peer may send ahead; reinstall aioquic, or drop --http3"
        )
    missing = ", ".join(_failing())
    if missing:
        raise ConfigError(f"aioquic {version}: these checks failed: {missing}; reinstall aioquic, or drop --http3")
