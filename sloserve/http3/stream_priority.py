"""RFC 9218: the ``priority`` field of requests and responses, and PRIORITY_UPDATE frames.

A client may ask for any urgency; :meth:`StreamPriority.clamped` limits it to what its class may have. A value that
cannot be read is ignored, as the RFC demands.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from aioquic.buffer import Buffer, BufferReadError

from sloserve.http3.stream_schedulers import DEFAULT_URGENCY

PRIORITY_UPDATE_REQUEST = 0xF0700

MAX_FIELD_BYTES = 256
"""Longest field value that is read; what is sensible has six characters."""

_MEMBER = re.compile(r"(?P<key>[a-z*][a-z0-9_.*-]*)(?:=(?P<value>[^;,]*))?(?:;[^,]*)?")


@dataclass(frozen=True, slots=True)
class StreamPriority:
    """The priority that a request states.

    Args:
        urgency: Urgency 0..7, lower first; ``None`` if none was stated.
        incremental: Whether parts of the response are of use.
    """

    urgency: int | None = None
    incremental: bool | None = None

    def clamped(self, default: int = DEFAULT_URGENCY, most_urgent: int = 0) -> int:
        """Return the urgency that is granted: ``default`` if none was stated, and nothing below ``most_urgent``."""
        return max(default if self.urgency is None else self.urgency, most_urgent)


NONE = StreamPriority()


def parse_priority(raw: bytes) -> StreamPriority:
    """Return what a field value states; a member that is malformed or unknown is passed over."""
    urgency, incremental = None, None
    if len(raw) > MAX_FIELD_BYTES:
        return NONE
    for member in raw.decode("latin-1").split(","):
        match = _MEMBER.fullmatch(member.strip(" \t"))
        if match is None:
            continue
        key, value = match["key"], match["value"]
        if key == "u" and value is not None and re.fullmatch("[0-7]", value):
            urgency = int(value)
        elif key == "i" and value in (None, "?0", "?1"):
            incremental = value != "?0"
    return StreamPriority(urgency, incremental)


def parse_update(payload: bytes) -> tuple[int, StreamPriority] | None:
    """Stream and priority of a PRIORITY_UPDATE of a request; ``None`` for one that names no request's stream."""
    buf = Buffer(data=payload)
    try:
        stream_id = buf.pull_uint_var()
    except BufferReadError:
        return None
    return None if stream_id % 4 else (stream_id, parse_priority(payload[buf.tell() :]))


class ControlFrames:
    """A reader of a peer's unidirectional stream: it yields the frame headers of a control stream.

    aioquic's own reader passes over frames that it does not know.

    Args:
        payload_types: Types of the frames with a payload that is kept; of all others only type and length are reported.
        max_payload: The most bytes of a payload that is kept.
    """

    def __init__(self, payload_types: frozenset[int], max_payload: int) -> None:
        self._payload_types = payload_types
        self._max_payload = max_payload
        self._buffer = b""
        self._skip = 0
        self._stream_type: int | None = None

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield type, length and payload of each frame in ``data``.

        A frame is reported when it begins, or, if its payload is kept, when it ends; without a kept payload it has
        ``None``.
        """
        data = self._buffer + data
        buf, read, self._buffer = Buffer(data=data), 0, b""
        while read < len(data) and self._stream_type in (None, 0):
            skipped = min(self._skip, len(data) - read)
            self._skip -= skipped
            buf.seek(read + skipped)
            read = buf.tell()
            try:
                if self._stream_type is None:
                    self._stream_type = buf.pull_uint_var()
                    read = buf.tell()
                    continue
                frame_type, length = buf.pull_uint_var(), buf.pull_uint_var()
                kept = frame_type in self._payload_types and length <= self._max_payload
                payload = buf.pull_bytes(length) if kept else None
            except BufferReadError:  # the rest is yet to come
                self._buffer = data[read:]
                return
            self._skip, read = 0 if kept else length, buf.tell()
            yield frame_type, length, payload
