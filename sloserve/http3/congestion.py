"""A congestion window that stays as it is, whatever is lost.

A window that halves at each loss carries 1.2 segments per round trip, divided by the root of the loss rate: 1.7 Mbit/s
at 0.5 % and 100 ms, whatever the link could carry. On a private link of known bandwidth the product of bandwidth and
round trip is the better window. It does not yield to other traffic, so never choose it on a shared network.
"""

from collections.abc import Iterable
from functools import partial

from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.packet_builder import QuicSentPacket


class ConstantWindow(QuicCongestionControl):
    """A congestion controller with a constant window.

    Args:
        max_datagram_size: The size of the largest datagram, in bytes.
        window_bytes: The number of bytes that may be on their way without acknowledgement.
    """

    def __init__(self, *, max_datagram_size: int, window_bytes: int) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        self.congestion_window = max(window_bytes, 2 * max_datagram_size)

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        self.bytes_in_flight -= packet.sent_bytes

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        self.bytes_in_flight += packet.sent_bytes

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        for packet in packets:
            self.bytes_in_flight -= packet.sent_bytes

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        self.on_packets_expired(packets=packets)

    def on_persistent_congestion(self) -> None:
        pass

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        pass


def congestion_name(congestion: str, window_bytes: int) -> str:
    """Return the name by which aioquic knows the controller; register one with a constant window."""
    if congestion != "constant":
        return congestion
    name = f"sloserve-constant-{window_bytes}"
    register_congestion_control(name, partial(ConstantWindow, window_bytes=window_bytes))
    return name
