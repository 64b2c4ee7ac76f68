"""The times at which a reader is given each piece of a stream, and their quality (Andes, Sec. 5 and Fig. 8).

A piece is handed on at the later of two times: its arrival, and when the reader has digested all that came before, at
``tds`` tokens per second. So tokens that come early wait, and a late token never does. A piece without text waits until
the pieces before it are handed on. This module only computes times; :mod:`~sloserve.client.token_buffer` waits.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.qoe import qoe
from sloserve.core.slo import Targets


@dataclass(frozen=True, slots=True)
class Stall:
    """The reader, having digested all there was at ``at_s``, waited ``duration_s`` for a late token."""

    at_s: float
    duration_s: float


@dataclass(frozen=True, slots=True, eq=False)
class BufferReport:
    """Progress of a stream for its reader: the pieces handed on so far. Times are seconds since the request was sent.

    Args:
        qoe: QoE of the deliveries (:mod:`sloserve.core.qoe`); 0 once the stream has failed, ``None`` without text.
        ttft_s: Time of the first text; ``None`` without text.
        tokens: Tokens of text, as counted by :mod:`~sloserve.client.pieces`.
        stalls: Waits for late tokens after the first token.
        held_s: Time for which the buffer kept pieces with text waiting, summed over them.
        arrivals_s: When each token came, ``[tokens]``.
        releases_s: When each token was handed on, ``[tokens]``.
    """

    qoe: float | None
    ttft_s: float | None
    tokens: int
    stalls: tuple[Stall, ...]
    held_s: float
    arrivals_s: FloatArray
    releases_s: FloatArray


class ReaderPace:
    """Progress of one reader, piece by piece in order: ``arrive``, ``wait_s`` if needed, ``release``.

    All times are seconds since the request was sent; a time before an earlier one counts as equal to it.

    Args:
        ttft_s: Seconds to the first token that the reader expects.
        tds: Tokens per second that the reader expects.

    Raises: ValueError for an expectation that is not positive or out of range.
    """

    def __init__(self, *, ttft_s: float, tds: float) -> None:
        Targets(ttft_s=ttft_s, tds=tds)
        self._ttft_s, self._tds = ttft_s, tds
        self._piece_tokens = 0
        self._arrival_s = self._earliest_s = self._due_s = 0.0
        self._released_s = 0.0
        self._digested_s: float | None = None
        self._texts: list[tuple[int, float, float]] = []
        self._stalls: list[Stall] = []
        self._held_s = 0.0

    def arrive(self, arrival_s: float, tokens: int) -> None:
        """Take the next piece, which came at ``arrival_s`` with ``tokens`` tokens of text."""
        self._piece_tokens = tokens
        self._arrival_s = max(arrival_s, self._arrival_s)
        self._due_s = self._earliest_s = max(self._arrival_s, self._released_s)
        if tokens and self._digested_s is not None:
            self._due_s = max(self._earliest_s, self._digested_s)

    def wait_s(self, now_s: float) -> float:
        """Return how long to keep the piece from ``now_s`` on; never longer than the reader needs for the last one."""
        return max(self._due_s - max(now_s, self._earliest_s), 0.0)

    def release(self, now_s: float) -> None:
        """Record that the piece was handed on at ``now_s``: when it was due, or later if it was taken later."""
        self._released_s = max(now_s, self._due_s)
        if not self._piece_tokens:
            return
        if self._digested_s is not None and self._arrival_s > self._digested_s:
            self._stalls.append(Stall(self._digested_s, self._arrival_s - self._digested_s))
        self._held_s += self._due_s - self._arrival_s
        self._digested_s = self._released_s + self._piece_tokens / self._tds
        self._texts.append((self._piece_tokens, self._arrival_s, self._released_s))

    def report(self, *, failed: bool) -> BufferReport:
        """Return the progress up to now.

        Args:
            failed: Whether the stream ended in an error.
        """
        tokens, arrivals_s, releases_s = np.array(self._texts).reshape(-1, 3).T
        arrivals_s, releases_s = (np.repeat(times_s, tokens.astype(np.int64)) for times_s in (arrivals_s, releases_s))
        judged = qoe(arrivals_s, ttft_s=self._ttft_s, tds=self._tds) if arrivals_s.size else None
        return BufferReport(
            qoe=0.0 if failed else judged,
            ttft_s=float(arrivals_s[0]) if arrivals_s.size else None,
            tokens=arrivals_s.size,
            stalls=tuple(self._stalls),
            held_s=self._held_s,
            arrivals_s=arrivals_s,
            releases_s=releases_s,
        )
