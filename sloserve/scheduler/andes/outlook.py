"""What Andes knows of each request when it plans: its reader's lead, and the QoE that serving it now would gain.

There are three kinds of requests. A request with a TTFT, TDS or TPOT target has a reader, and the reader's curve is
kept (a TPOT is a TDS of its inverse). A request with an e2e target alone has QoE 1 if it ends in time, else 0. A
request without targets gains nothing by haste.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.digest import DigestCurves, Replies
from sloserve.core.qoe import DEFAULT_TDS, DEFAULT_TTFT_S
from sloserve.core.rows import Rows
from sloserve.lso.decode_first import PREFILL_COLUMNS, uncomputed_tokens
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.lso.pace import pace_s

COLUMNS = LENGTH_COLUMNS | PREFILL_COLUMNS | {"arrival_s", "e2e_s", "first_token_s", "tds", "tpot_s", "ttft_s"}
"""Columns that :class:`Outlook` reads, including the columns of the length predictor."""


def reading_tds(rows: Rows, slots: IntArray) -> FloatArray:
    """Return the tokens per second that each reader digests, ``[n]``: at the stated pace, else the usual one."""
    pace = pace_s(rows, slots)
    return np.where(np.isnan(pace), DEFAULT_TDS, 1.0 / pace)


@dataclass(frozen=True, slots=True, eq=False)
class Foresight:
    """QoE within the horizon, for each of several step times.

    Args:
        serve: QoE of a request that is served, ``[num_steps, n]``.
        wait: QoE of a request that is not served, ``[n]``.
        gain: QoE that serving a request gains, at least 0, ``[num_steps, n]``.
    """

    serve: FloatArray
    wait: FloatArray
    gain: FloatArray


class Outlook:
    """Figures of the requests in ``slots``, ``[n]`` each.

    Attributes:
        context_tokens: Tokens of the prompt and of the output so far.
        left_tokens: Predicted tokens still to come.
        prefill_tokens: Tokens to compute before the next token.
        tds: Tokens per second that the reader digests.
        lead_s: Seconds that the reader, or the deadline, can do without service; negative for a late request, inf
            without a reader or a deadline.
    """

    def __init__(
        self, rows: Rows, slots: IntArray, left_tokens: FloatArray, curves: DigestCurves, now_s: float
    ) -> None:
        self.slots, self.left_tokens, self.curves = slots, left_tokens, curves
        self.context_tokens = rows.prompt_tokens[slots] + rows.output_tokens[slots]
        self.prefill_tokens = uncomputed_tokens(rows, slots)
        self.tds = reading_tds(rows, slots)
        self._now_s = np.maximum(now_s - rows.arrival_s[slots], 0.0)
        ttft_s = rows.ttft_s[slots]
        self._ttft_s = np.where(np.isnan(ttft_s), DEFAULT_TTFT_S, ttft_s)
        self._first_s = rows.first_token_s[slots] - rows.arrival_s[slots]
        no_reader = np.isnan(ttft_s) & np.isnan(rows.tds[slots]) & np.isnan(rows.tpot_s[slots])
        self.no_reader = np.flatnonzero(no_reader)
        self._due_s = rows.e2e_s[slots[self.no_reader]]
        dry_s = curves.dry_s(slots)
        self.lead_s = np.where(dry_s > 0.0, dry_s, self._ttft_s) - self._now_s
        if self.no_reader.size:
            slack_s = self._due_s - self._now_s[self.no_reader]
            self.lead_s[self.no_reader] = np.where(np.isnan(slack_s), np.inf, slack_s)

    def foresee(
        self, steps_s: FloatArray, prefill_token_s: float, horizon_s: float, *, alpha: float = 1.0
    ) -> Foresight:
        """Return what serving gains within ``horizon_s``, for each time of a step.

        Source: Andes, Eq. 2.

        Args:
            steps_s: Times of a step in seconds, ``[num_steps]``.
            prefill_token_s: Seconds that a token of a prefill takes.
            horizon_s: Seconds from now within which QoE is compared.
            alpha: Penalty for a late first token, see :func:`sloserve.core.qoe.qoe`.
        """
        prefill_s: FloatArray = np.multiply(self.prefill_tokens, prefill_token_s)
        replies = self.replies(prefill_s)
        serve, wait = self.curves.foresee(replies, steps_s, horizon_s, alpha=alpha)
        if self.no_reader.size:
            of = self.no_reader
            ends_s = self._now_s[of] + prefill_s[of] + steps_s[:, None] * self.left_tokens[of]
            # Without a deadline neither is in time, and nothing is gained.
            serve[:, of] = ends_s <= self._due_s
            wait[of] = ends_s[0] + horizon_s <= self._due_s
        return Foresight(serve, wait, np.maximum(serve - wait, 0.0))

    def replies(self, prefill_s: FloatArray) -> Replies:
        """Return the outputs as the QoE kernel reads them.

        Args:
            prefill_s: Seconds that the prefills of the requests take, ``[n]``.
        """
        return Replies.of(
            self.slots,
            now_s=self._now_s,
            ttft_s=self._ttft_s,
            tds=self.tds,
            left_tokens=self.left_tokens,
            prefill_s=prefill_s,
            first_token_s=self._first_s,
        )
