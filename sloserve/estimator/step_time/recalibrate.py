"""A profile corrected by the steps of the engine in use: recursive least squares with forgetting, safe from outliers.

A profile was measured elsewhere, or before; the engine in use may be slower by a factor, or in one kind of step. So the
profile's time of a step is split in four parts: what every step costs, what prefill adds, what decoding adds, and what
draft tokens add. Each part gets a factor: predicted = sum of factor * part. Factors start at 1 and are fitted to the
ratio of measured to profiled time, the last ``WINDOW_STEPS`` steps counting most.

Guarantees, whatever is observed:

- One observation moves no prediction by more than ``MAX_CHANGE``: every prediction is a mean of the factors, weighted
  by the parts, and no factor moves further. Beyond that, an innovation counts at most ``_CLIP`` times the usual error
  (Huber), so that rare outliers hardly move anything.
- A lasting change is followed all the same: clipped errors raise the usual error, and with it the clip.
- A part that the recent load does not excite keeps its factor, and stays as ready to change as it was at the start:
  forgetting never takes the information below its first value.
- Factors stay within ``LIMITS``; predictions are positive and finite.
"""

import math
from collections.abc import Mapping
from typing import Any

from sloserve.estimator.step_time.inverse import ROUNDING
from sloserve.estimator.step_time.latency import FittedLatency, StepLoad

_SMALLEST = StepLoad(decode_seqs=1, decode_context_tokens=1)
WINDOW_STEPS = 64.0
"""Steps after which an observation counts 1/e: one or two seconds of a busy GPU, which average an error of 5 % to about
0.5 %."""
MAX_CHANGE = 0.04
"""The most that one observation may change any prediction, as a share of it."""
LIMITS = (0.1, 10.0)
"""The least and the largest factor."""
_KEEP = 1.0 - 1.0 / WINDOW_STEPS
_PRIOR_STEPS = 1.0
_CLIP = 2.5
"""Largest error that counts in full, as a multiple of the usual error.

Huber's constant is 1.35 for 95 % efficiency; step times have heavier tails than measurement errors.
"""
_ERROR_START, _ERROR_MIN, _ERROR_MAX = 0.1, 0.01, 1.0
_ERROR_STEPS = 32.0

# Plain floats: this runs at every step, and for four of them numpy takes several times as long.
_Parts = tuple[float, float, float, float]
"""One figure for each part of a step's time: constant, prefill, decode, drafts."""
_Symmetric = tuple[float, float, float, float, float, float, float, float, float, float]
"""A symmetric 4 x 4 matrix, its upper triangle row by row."""
_NO_INFORMATION: _Symmetric = (_PRIOR_STEPS, 0.0, 0.0, 0.0, _PRIOR_STEPS, 0.0, 0.0, _PRIOR_STEPS, 0.0, _PRIOR_STEPS)


class Recalibrated:
    """A step latency that starts as ``profile`` and follows the engine.

    Args:
        profile: The latency to correct; a Profile, in which case its overhead is a part of it, or a bare form.
    """

    def __init__(self, profile: FittedLatency) -> None:
        self._profile = profile
        self._constant_s = profile.step_s(_SMALLEST)
        self._factors: _Parts = (1.0, 1.0, 1.0, 1.0)
        self._information = _NO_INFORMATION
        self._error2 = _ERROR_START**2
        self.observed = 0
        """Steps observed so far."""

    @property
    def factors(self) -> _Parts:
        """Return the factors of the profile's constant part, prefill part, decode part and draft part."""
        return self._factors

    @property
    def relative_error(self) -> float:
        """Usual relative error of one step's prediction, as a standard deviation; outliers count clipped."""
        return math.sqrt(self._error2)

    def step_s(self, load: StepLoad) -> float:
        """Return the seconds that the engine takes for the step, as far as observed; 0 for a step without tokens."""
        return _dot(self._parts_s(load), self._factors) if load.tokens else 0.0

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk in a step of ``seconds``; see StepLatency.

        Decodes may have a lower factor than prefill; the bound charges the lower factor only for what decodes surely
        cost.
        """
        constant, prefill, decode, draft = self.factors
        if decode < prefill:
            decodes_s = self._profile.decode_floor_s(_undrafted(base))
        else:
            decodes_s = max(self._profile.decode_bound_s(_undrafted(base)) - self._constant_s, 0.0)
        spare_s = seconds * ROUNDING - constant * self._constant_s - (decode - prefill) * decodes_s
        if base.draft_tokens:
            # Where drafts are cheaper than prompts, the profile's price of them stays: forms bound it in other ways.
            spare_s -= max(draft - prefill, 0.0) * self._drafts_s(base)
        return self._profile.prefill_within(self._constant_s + spare_s / prefill, base, prefix_tokens)

    def observe(self, load: StepLoad, duration_s: float) -> None:
        """Record that a step of ``load`` took ``duration_s``.

        The step is ignored if it has no tokens or no positive, finite time.
        """
        if not (load.tokens and 0.0 < duration_s < math.inf):
            return
        parts_s = self._parts_s(load)
        profiled_s = parts_s[0] + parts_s[1] + parts_s[2] + parts_s[3]
        shares = x, y, z, w = (
            parts_s[0] / profiled_s,
            parts_s[1] / profiled_s,
            parts_s[2] / profiled_s,
            parts_s[3] / profiled_s,
        )
        error = duration_s / profiled_s - _dot(shares, self._factors)
        clip = _CLIP * self.relative_error
        clipped = min(max(error, -clip), clip)
        self._error2 += (clipped * clipped - self._error2) / _ERROR_STEPS
        self._error2 = min(max(self._error2, _ERROR_MIN**2), _ERROR_MAX**2)
        keep, leak = _KEEP, (1.0 - _KEEP) * _PRIOR_STEPS
        xx, xy, xz, xw, yy, yz, yw, zz, zw, ww = self._information
        self._information = (
            keep * xx + x * x + leak,
            keep * xy + x * y,
            keep * xz + x * z,
            keep * xw + x * w,
            keep * yy + y * y + leak,
            keep * yz + y * z,
            keep * yw + y * w,
            keep * zz + z * z + leak,
            keep * zw + z * w,
            keep * ww + w * w + leak,
        )
        constant, prefill, decode, draft = self._factors
        move = _solved(self._information, shares)
        self._factors = (
            self._moved(constant, move[0] * clipped),
            self._moved(prefill, move[1] * clipped),
            self._moved(decode, move[2] * clipped),
            self._moved(draft, move[3] * clipped),
        )
        self.observed += 1

    def state(self) -> Mapping[str, Any]:
        """Return all that was learnt, as plain values."""
        xx, xy, xz, xw, yy, yz, yw, zz, zw, ww = self._information
        return {
            "factors": list(self._factors),
            "information": [[xx, xy, xz, xw], [xy, yy, yz, yw], [xz, yz, zz, zw], [xw, yw, zw, ww]],
            "error2": self._error2,
            "observed": self.observed,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], profile: FittedLatency) -> "Recalibrated":
        """Return the latency with this :meth:`state`, of the same profile.

        Raises: KeyError for a state that is not complete.
        """
        made = cls(profile)
        (xx, xy, xz, xw), (_, yy, yz, yw), (_, _, zz, zw), (_, _, _, ww) = state["information"]
        made._factors, made._information = tuple(state["factors"]), (xx, xy, xz, xw, yy, yz, yw, zz, zw, ww)
        made._error2, made.observed = state["error2"], state["observed"]
        return made

    def _moved(self, factor: float, move: float) -> float:
        """Return ``factor`` after a move, which is cut to what one observation may do, within the limits."""
        furthest = MAX_CHANGE * factor
        least, most = LIMITS
        return min(max(factor + min(max(move, -furthest), furthest), least), most)

    def _parts_s(self, load: StepLoad) -> _Parts:
        """Return the profile's time of the step: constant, prefill, decode, drafts; none is negative."""
        total_s = self._profile.step_s(load)
        constant_s = min(self._constant_s, total_s)
        drafts_s = min(self._drafts_s(load), total_s - constant_s) if load.draft_tokens else 0.0
        if not load.prefill_tokens:
            return constant_s, 0.0, total_s - constant_s - drafts_s, drafts_s
        decode_s = 0.0
        if load.decode_seqs:
            alone_s = self._profile.step_s(_undrafted(load))
            decode_s = min(max(alone_s - constant_s, 0.0), total_s - constant_s - drafts_s)
        return constant_s, max(total_s - constant_s - decode_s - drafts_s, 0.0), decode_s, drafts_s

    def _drafts_s(self, load: StepLoad) -> float:
        """Return what the load's drafts add to its decodes, in seconds by the profile."""
        return max(self._profile.decode_bound_s(load) - self._profile.decode_bound_s(_undrafted(load)), 0.0)


def _undrafted(load: StepLoad) -> StepLoad:
    """Return the load of the decodes alone, each of one token."""
    return StepLoad(decode_seqs=load.decode_seqs, decode_context_tokens=load.decode_context_tokens)


def _dot(a: _Parts, b: _Parts) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


def _solved(matrix: _Symmetric, right: _Parts) -> _Parts:
    """Return the solution of ``matrix @ x = right`` by elimination, which is stable for a positive definite matrix."""
    xx, xy, xz, xw, yy, yz, yw, zz, zw, ww = matrix
    a, b, c, d = right
    of_y, of_z, of_w = xy / xx, xz / xx, xw / xx
    yy, yz, yw = yy - of_y * xy, yz - of_y * xz, yw - of_y * xw
    zz, zw, ww = zz - of_z * xz, zw - of_z * xw, ww - of_w * xw
    b, c, d = b - of_y * a, c - of_z * a, d - of_w * a
    of_z, of_w = yz / yy, yw / yy
    zz, zw, ww = zz - of_z * yz, zw - of_z * yw, ww - of_w * yw
    c, d = c - of_z * b, d - of_w * b
    of_w = zw / zz
    w = (d - of_w * c) / (ww - of_w * zw)
    z = (c - zw * w) / zz
    y = (b - yz * z - yw * w) / yy
    return (a - xy * y - xz * z - xw * w) / xx, y, z, w
