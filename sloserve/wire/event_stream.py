"""Events of a stream (``text/event-stream``), counted in the parts in which they come.

Source: HTML Living Standard, Sec. 9.2.6. A line ends with CR, LF or both; a blank line ends an event; one without a
``data`` field is none, as are comments.
"""

from typing import Final

EVENT_STREAM: Final = b"text/event-stream"
"""Content type of a stream of events."""
_DATA = b"data:"


class EventCounter:
    """Counts the events of one stream. Keeps a few bytes of it, however long its lines are."""

    def __init__(self) -> None:
        self._line = b""
        """Beginning of the line that has not ended, as far as it shows whether the line is a ``data`` field."""
        self._after_cr = False
        self._has_data = False

    def add(self, part: bytes) -> int:
        """Add the next part of the stream; return how many events end in it."""
        if self._after_cr and part:  # the LF of a CRLF that is cut in two ends no line
            self._after_cr, part = False, part.removeprefix(b"\n")
        if not part:
            return 0
        self._after_cr = part.endswith(b"\r")
        lines = (self._line + part).splitlines()
        self._line = b"" if part.endswith((b"\r", b"\n")) else lines.pop()[: len(_DATA)]
        ended = 0
        for line in lines:
            if not line:
                ended += self._has_data
                self._has_data = False
            elif line.startswith(_DATA) or line == b"data":
                self._has_data = True
        return ended
