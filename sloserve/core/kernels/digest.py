"""Readers' digest curves, one per slot of the request table, and the QoE that their outputs will have.

This is the server's side of the token buffer: what each reader has digested is known exactly from the times at which
tokens were delivered. A delivery costs one update in constant time; QoE at any later time follows in closed form.

Source: Andes, Sec. 3.1 and 4.1. Differs: see csrc/include/sloserve/digest.h.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.core.kernels import _csrc
from sloserve.core.kernels._csrc import ReplyColumns

_COLUMNS = 5
_DRY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Replies:
    """Outputs of n requests: the slots of their readers, and a column ``[n]`` for each fact."""

    slots: IntArray
    columns: ReplyColumns

    @classmethod
    def of(
        cls,
        slots: IntArray,
        *,
        now_s: FloatArray,
        ttft_s: FloatArray,
        tds: FloatArray,
        left_tokens: FloatArray,
        prefill_s: FloatArray,
        first_token_s: FloatArray,
    ) -> "Replies":
        """Return the outputs with one column for each fact.

        Args:
            slots: Slots of the readers, ``[n]``.
            now_s: Seconds since the request's arrival, ``[n]``.
            ttft_s: Seconds expected until the first token, ``[n]``.
            tds: Tokens per second that the reader digests, ``[n]``.
            left_tokens: Tokens still to come, at least 1, ``[n]``.
            prefill_s: Seconds of prefill before the next token, ``[n]``.
            first_token_s: Seconds from the request's arrival to its first token, ``[n]``; nan if there is no token yet.
        """
        columns = ReplyColumns(
            now_s=np.ascontiguousarray(now_s, np.float64),
            ttft_s=np.ascontiguousarray(ttft_s, np.float64),
            tds=np.ascontiguousarray(tds, np.float64),
            left_tokens=np.ascontiguousarray(left_tokens, np.float64),
            prefill_s=np.ascontiguousarray(prefill_s, np.float64),
            first_token_s=np.ascontiguousarray(first_token_s, np.float64),
        )
        return cls(slots, columns)


class DigestCurves:
    """What each reader has digested. Times are seconds since the request's arrival, and never go back."""

    def __init__(self) -> None:
        self._curves: FloatArray = np.zeros((64, _COLUMNS))

    def reset(self, slot: int) -> None:
        """Start a new curve for the request that now has this slot."""
        if slot >= len(self._curves):
            self._curves = grown(self._curves, 2 * slot)
        self._curves[slot] = 0.0

    def deliver(self, slots: IntArray, tokens: IntArray, times_s: FloatArray, tds: FloatArray) -> None:
        """Record that tokens reached readers.

        Args:
            slots: Slots of the readers, ``[n]``.
            tokens: Number of tokens that reached each reader, ``[n]``.
            times_s: Time of each delivery in seconds, ``[n]``.
            tds: Tokens per second that each reader digests, ``[n]``.

        Raises: ValueError for a slot beyond all slots that were ever reset, TypeError for columns of another type.
        """
        # Columns of a table come strided; a column of another type is refused.
        contiguous = np.ascontiguousarray
        _csrc.deliver(
            self._curves,
            contiguous(slots),
            tokens=contiguous(tokens),
            times_s=contiguous(times_s),
            tds=contiguous(tds),
        )

    def dry_s(self, slots: IntArray) -> FloatArray:
        """Return when each reader will have digested all delivered tokens, in seconds, ``[n]``; 0 without a token."""
        dry: FloatArray = self._curves[slots, _DRY]
        return dry

    def foresee(
        self, replies: Replies, steps_s: FloatArray, horizon_s: float, *, alpha: float = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """Return the QoE in ``horizon_s`` if served without a break, ``[num_steps, n]``, and if left waiting, ``[n]``.

        The QoE of a served output that ends sooner is taken at its last token.

        Args:
            replies: The n outputs.
            horizon_s: Seconds from now.
            steps_s: Possible times of an engine step in seconds, above 0, ``[num_steps]``.
            alpha: Penalty for a late first token, see :func:`sloserve.core.qoe.qoe`; 1 for none.
        """
        serve, wait = _csrc.foresee(
            self._curves, replies.slots, replies.columns, steps_s=steps_s, horizon_s=horizon_s, alpha=alpha
        )
        return serve.reshape(steps_s.size, replies.slots.size), wait

    def current(self, replies: Replies, *, alpha: float = 1.0) -> FloatArray:
        """Return the QoE up to now, ``[n]``; 1 where nothing was expected yet."""
        return _csrc.stand(self._curves, replies.slots, replies.columns, alpha=alpha)
