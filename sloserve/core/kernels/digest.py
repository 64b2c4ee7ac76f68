"""Readers' digest curves, one per slot of the request table, and the QoE that their replies will have.

The server's side of the token buffer: what each reader has digested is known exactly from the times at which tokens
were delivered. One update a delivery, in constant time; QoE at any later time follows in closed form.

Source: Andes, Sec. 3.1 and 4.1. Differs: see csrc/include/sloserve/digest.h.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.core.kernels import _csrc

_COLUMNS = 5
_DRY = 4


@dataclass(frozen=True, slots=True, eq=False)
class Replies:
    """Replies to n requests, by the slots of their readers; ``columns`` is ``[6, n]``."""

    slots: IntArray
    columns: FloatArray

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
        """Replies from one column each.

        Args:
            slots: ``[n]``; of the readers.
            now_s: ``[n]``; since the request's arrival.
            ttft_s: ``[n]``; expected until the first token.
            tds: ``[n]``; tokens per second that the reader digests.
            left_tokens: ``[n]``; still to come, 1 at least.
            prefill_s: ``[n]``; prefill time before the next token.
            first_token_s: ``[n]``; since the request's arrival, nan where there is no token yet.
        """
        return cls(slots, np.array((now_s, ttft_s, tds, left_tokens, prefill_s, first_token_s), np.float64))


class DigestCurves:
    """What each reader has digested. Times are seconds since the request's arrival, and never go back."""

    def __init__(self) -> None:
        self._curves: FloatArray = np.zeros((64, _COLUMNS))

    def reset(self, slot: int) -> None:
        """A new request has this slot."""
        if slot >= len(self._curves):
            self._curves = grown(self._curves, 2 * slot)
        self._curves[slot] = 0.0

    def deliver(self, slots: IntArray, tokens: IntArray, times_s: FloatArray, tds: FloatArray) -> None:
        """Tokens reached readers.

        Args:
            slots: ``[n]``; of the readers.
            tokens: ``[n]``; how many tokens reached each.
            times_s: ``[n]``; when.
            tds: ``[n]``; tokens per second that each digests.

        Raises: ValueError for a slot beyond those that were ever reset, TypeError for columns of another type.
        """
        # Columns of a table come strided; what is of another type is refused.
        contiguous = np.ascontiguousarray
        _csrc.deliver(self._curves, contiguous(slots), contiguous(tokens), contiguous(times_s), contiguous(tds))

    def dry_s(self, slots: IntArray) -> FloatArray:
        """When each reader will have digested all that was delivered, ``[n]``; 0 before the first token."""
        dry: FloatArray = self._curves[slots, _DRY]
        return dry

    def foresee(
        self, replies: Replies, steps_s: FloatArray, horizon_s: float, *, alpha: float = 1.0
    ) -> tuple[FloatArray, FloatArray]:
        """QoE in ``horizon_s`` if served from now on, ``[num_steps, n]``, and if left waiting, ``[n]``.

        The QoE of a served reply that ends sooner is taken at its last token.

        Args:
            replies: the n replies.
            horizon_s: seconds from now.
            steps_s: ``[num_steps]``, possible times of an engine step, above 0.
            alpha: see :func:`sloserve.core.qoe.qoe`; 1 for none.
        """
        serve, wait = _csrc.foresee(self._curves, replies.slots, replies.columns, steps_s, horizon_s, alpha)
        return serve.reshape(steps_s.size, replies.slots.size), wait

    def current(self, replies: Replies, *, alpha: float = 1.0) -> FloatArray:
        """QoE up to now, ``[n]``; 1 where nothing was expected yet."""
        return _csrc.stand(self._curves, replies.slots, replies.columns, alpha)
