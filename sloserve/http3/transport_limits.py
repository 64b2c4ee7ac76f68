"""What a peer may make one end of a connection hold."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """streams: that the peer may have open at once. uni_streams: the same of one direction; HTTP/3 needs three.
    stream_window_bytes, connection_window_bytes: that it may send ahead of the application that reads.
    """

    streams: int = 128
    uni_streams: int = 16
    stream_window_bytes: int = 256 * 1024
    connection_window_bytes: int = 4 * 2**20
