"""What it is worth to serve a request now rather than later, in expected good requests.

A request that is not served now is served after a delay T, exponentially distributed with mean ``wait_s``. Its worth
now less its expected worth then is its gain. Worth has three parts:

- **good**: the chance that it meets all its targets. A first token or a pace leaves a slack, and is kept if T is
  within it; a whole reply ends in time with the chance that what is left is no longer than the time allows.
- **experience**: what its reader has of it, if it has one: Andes' QoE of a reply that is late by so much and comes at
  the engine's pace.
- **stretch**: target / (target + latency), for every request; one without any target has ``UNHURRIED_S``.

Limits that hold exactly, for requests that arrived together: with first-token targets alone and equal costs the order
is that of least slack, for any ``wait_s``, since the chance that T exceeds a slack is exp(-slack / wait_s). Without
targets gains are equal, and the order is that of least cost, Smith's rule. With readers alone the form is that of
Andes, QoE served less QoE not served, per unit of what is short.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.qoe import DEFAULT_TDS, DEFAULT_TTFT_S
from sloserve.core.rows import Rows
from sloserve.lso.lengths import LENGTH_COLUMNS, Lengths
from sloserve.lso.pace import PACE_COLUMNS, pace_s
from sloserve.scheduler.auto.prices import Pace

UNHURRIED_S: Final = 600.0
"""Target of a request that states none."""
GOOD, EXPERIENCE, STRETCH = 1.0, 0.5, 0.1
"""Weights of the parts: what counts is targets that are met; the others decide where none can be."""
VALUE_COLUMNS: Final = PACE_COLUMNS | LENGTH_COLUMNS | {"arrival_s", "class_rank", "e2e_s", "first_token_s", "ttft_s"}
"""Columns that :class:`Worth` reads."""
_NODES: Final = np.array((0.41577455678348, 2.29428036027904, 6.28994508293748))
_WEIGHTS: Final = np.array((0.711093009929173, 0.278517733569241, 0.0103892565015861))
"""Of Gauss-Laguerre's rule: the expectation of f(T) is the sum of weight x f(node x wait_s)."""


@dataclass(frozen=True, slots=True, eq=False)
class Worth:
    """Requests in ``slots`` as the value of their service sees them; all ``[n]``.

    left: tokens to come, expected. slack_s: until a first token, or the pace, can be kept no more; inf where neither is
    promised. dry_s: until the reader has nothing to read; inf without a reader. age_s, target_s: since arrival, and
    within which it should end. due_s: until its reply must have ended; nan without such a target. gen_s: to write what
    is left. promised: whether it has any target.
    """

    rows: Rows
    slots: IntArray
    lengths: Lengths
    pace: Pace
    left: FloatArray
    slack_s: FloatArray
    dry_s: FloatArray
    age_s: FloatArray
    target_s: FloatArray
    due_s: FloatArray
    gen_s: FloatArray
    promised: BoolArray

    @classmethod
    def of(
        cls,
        rows: Rows,
        slots: IntArray,
        lengths: Lengths,
        left: FloatArray,
        prefill_s: FloatArray,
        pace: Pace,
        now_s: float,
    ) -> "Worth":
        """prefill_s: ``[n]``, to compute before the next token."""
        age_s = np.maximum(now_s - rows.arrival_s[slots], 0.0)
        ttft_s, e2e_s, a_token_s = rows.ttft_s[slots], rows.e2e_s[slots], pace_s(rows, slots)
        done, first_s = rows.output_tokens[slots], rows.first_token_s[slots]
        begun = ~np.isnan(first_s)
        gen_s = left * pace.step_s
        since_first_s = np.where(begun, now_s - first_s, 0.0)
        to_first_s = ttft_s - age_s - prefill_s
        # Begun, its mean pace must be kept to the end.
        to_pace_s = a_token_s * (done + left) - since_first_s - prefill_s - gen_s
        slack_s = np.where(begun, to_pace_s, to_first_s)
        late_begun = begun & (age_s - since_first_s > ttft_s)
        slack_s = np.where(np.isnan(slack_s), np.inf, slack_s)
        slack_s[late_begun] = -np.inf
        has_reader = ~(np.isnan(ttft_s) & np.isnan(a_token_s))
        reading_s = np.where(np.isnan(a_token_s), 1.0 / DEFAULT_TDS, a_token_s)
        expected_s = np.where(np.isnan(ttft_s), DEFAULT_TTFT_S, ttft_s)
        dry_s = np.where(begun, reading_s * done - since_first_s, expected_s - age_s) - prefill_s
        streamed_s = expected_s + np.where(np.isnan(a_token_s), 0.0, a_token_s * (done + left))
        target_s = np.where(np.isnan(e2e_s), np.where(has_reader, streamed_s, UNHURRIED_S), e2e_s)
        return cls(
            rows,
            slots,
            lengths,
            pace,
            left,
            slack_s,
            np.where(has_reader, dry_s, np.inf),
            age_s + prefill_s,
            target_s,
            e2e_s - age_s - prefill_s,
            gen_s,
            has_reader | ~np.isnan(e2e_s),
        )

    def good(self) -> FloatArray:
        """The chance to meet all targets if served now, ``[n]``; 0 for those without any."""
        chance = self._in_time(np.zeros((self.slots.size, 1)))[:, 0]
        return np.where(self.promised & (self.slack_s >= -self.pace.full_s), chance, 0.0)

    def gain(self, good: FloatArray, wait_s: float, later_s: FloatArray | float = 0.0) -> FloatArray:
        """Worth now less the expected worth after a delay of mean ``wait_s`` and ``later_s`` seconds more, ``[n]``."""
        n = self.slots.size
        extra = np.broadcast_to(np.asarray(later_s, np.float64), (n,))
        delay = extra[:, None] + wait_s * _NODES
        in_time = np.ones(n)
        timed = np.flatnonzero(~np.isnan(self.due_s) & (good > 0.0))
        if timed.size:
            chance = self._in_time(delay[timed], timed) @ _WEIGHTS
            in_time[timed] = np.minimum(chance / good[timed], 1.0)
        kept = -np.expm1(-np.maximum(self.slack_s - extra, 0.0) / wait_s)
        gain: FloatArray = GOOD * good * (1.0 - in_time * kept)
        readers = np.flatnonzero(np.isfinite(self.dry_s))
        if readers.size:
            span = np.maximum(self.gen_s[readers], self.pace.step_s)
            late = np.maximum(delay[readers] - self.dry_s[readers, None], 0.0)
            now = np.maximum(-self.dry_s[readers], 0.0)
            then = (span[:, None] / (span[:, None] + late)) ** 2 @ _WEIGHTS
            gain[readers] += EXPERIENCE * ((span / (span + now)) ** 2 - then)
        ends_s = self.target_s + self.age_s + self.gen_s
        gain += STRETCH * self.target_s * (1.0 / ends_s - (1.0 / (ends_s[:, None] + delay)) @ _WEIGHTS)
        return gain

    def _in_time(self, delay: FloatArray, of: IntArray | None = None) -> FloatArray:
        """The chance that the reply ends in time after each delay, ``[len(of), m]``; 1 where nothing is due."""
        places = np.arange(self.slots.size) if of is None else of
        tokens = (self.due_s[places, None] - delay) / self.pace.step_s
        timed = ~np.isnan(self.due_s[places])
        chance = np.ones(delay.shape)
        if timed.any():
            chance[timed] = self.lengths.within(self.rows, self.slots[places[timed]], tokens[timed])
        return chance
