"""Counters of what a listener has done since its start; they hold nothing of a request's content."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from sloserve.core.json_lines import lines_of


@dataclass(slots=True)
class QuicTraffic:
    """The traffic of QUIC connections.

    Args:
        sent_bytes: Bytes of UDP payload that were sent.
        received_bytes: Bytes of UDP payload that were received.
        resent_frames: Parts of streams that were sent again after a loss.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    resent_frames: int = 0


@dataclass(slots=True)
class Deadlines:
    """Counts of response parts that had a deadline, by when the last byte of each left for the first time.

    Args:
        met: Parts that left by their deadline.
        missed: Parts that left later.
        overdue: Parts that were due already when the application wrote them.
    """

    met: int = 0
    missed: int = 0
    overdue: int = 0


@dataclass(slots=True)
class Http3Figures:
    """The figures of a listener.

    Args:
        traffic: Bytes and frames of all connections.
        handshakes: Handshakes by how they ended.
        requests: Requests by how they ended.
        discarded: Datagrams that began or reached no connection, by the reason.
        deadlines: Response parts with a deadline, by service class.
    """

    traffic: QuicTraffic = field(default_factory=QuicTraffic)
    handshakes: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    discarded: Counter[str] = field(default_factory=Counter)
    deadlines: defaultdict[str, Deadlines] = field(default_factory=lambda: defaultdict(Deadlines))


def kernel_discards(inode: int) -> int:
    """Return how many datagrams the kernel discarded at a UDP socket, since the process was too busy to fetch them."""
    found = 0
    for table in (Path("/proc/net/udp"), Path("/proc/net/udp6")):
        rows = lines_of(table.read_text(encoding="utf-8"))[1:] if table.exists() else []
        found += sum(int(row.split()[12]) for row in rows if row.split()[9] == str(inode))
    return found
