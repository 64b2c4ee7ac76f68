"""What a peer may make one end of a connection hold."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Limits on what a peer may open and send.

    Args:
        streams: Streams in both directions that the peer may have open at once.
        uni_streams: Streams in one direction that the peer may have open at once; HTTP/3 needs three.
        stream_window_bytes: Bytes that the peer may send on a stream ahead of the application that reads.
        connection_window_bytes: The same for all streams of the connection.
    """

    streams: int = 128
    uni_streams: int = 16
    stream_window_bytes: int = 256 * 1024
    connection_window_bytes: int = 4 * 2**20
