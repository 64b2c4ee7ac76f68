"""Step times of an engine without a profile, learnt from its own steps.

A step's time is a sum of non-negative terms: a constant, decodes, their context, a constant for any prompt, prompt
tokens, tokens beyond the number that the reading of the weights hides, attention of the prompts, and what drafts add.
So it never falls with anything in the step, where each decode has as many drafts, and its inverse needs no bound.
Coefficients are fitted by recursive least squares with forgetting, of relative errors.

Guarantees, whatever is observed: coefficients are finite and never negative; a step takes constant memory, and some ten
microseconds; equal observations give an equal fit.

- Rare outliers hardly move anything: an error counts at most ``_CLIP`` times the usual one (Huber). A lasting change is
  followed all the same, since clipped errors raise the usual error, and with it the clip.
- A term that the recent load does not excite keeps its coefficient: forgetting never takes the information below its
  first value. Before the first steps that value, a usual engine of a model of some ten billion parameters, is all there
  is.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray
from sloserve.core.kernels import fit_nonnegative
from sloserve.estimator.step_time.inverse import ROUNDING, most_tokens, quadratic_root
from sloserve.estimator.step_time.latency import StepLoad

FREE_TOKENS = 160
"""Tokens that cost little beyond the reading of the weights; GPUs lie between 100 and 300."""

DRAFT_KNEES = (64, 256, 400)
"""Decoded positions from which on each may cost more, in steps with drafts. With drafts, decodes alone pass the point
up to which the reading of the weights hides what they compute, and engines differ in where it is.
"""

_PRIOR_S = (0.02, 1e-4, 3e-7, 2e-3, 2e-5, 4e-5, 2e-9, 2e-5, 1e-3, *([1e-5] * len(DRAFT_KNEES)))
"""Seconds for each step, decode, token of context, step with a prompt, prompt token, token beyond ``FREE_TOKENS``,
squared token, draft token, round of drafting, and decoded position beyond each of ``DRAFT_KNEES``."""
_CONSTANT, _SEQ, _CONTEXT, _PROMPTS, _PREFILL, _BEYOND, _ATTENTION, *_DRAFTED = _PRIOR_S
_UNDRAFTED = (0.0,) * len(_DRAFTED)
_PRIOR_STEPS = 0.02
_WINDOW_STEPS = 256.0
_KEEP = 1.0 - 1.0 / _WINDOW_STEPS
_LEAK_EACH = _PRIOR_STEPS * (1.0 - _KEEP)
_FIRST_STEPS = 8
"""Number of first steps that count in full, as there is no usual error yet."""
_MOST_SOLVES = 3
_CLIP = 2.5
_ERROR_MIN, _ERROR_MAX, _ERROR_STEPS = 0.01, 1.0, 32.0


class Learned:
    """A step latency that knows nothing at first, and follows the engine's steps."""

    def __init__(self) -> None:
        # The coefficients are in multiples of the prior, so that one number says how much the prior counts.
        self._theta: FloatArray = np.ones(len(_PRIOR_S))
        self._information: FloatArray = np.eye(len(_PRIOR_S)) * _PRIOR_STEPS
        self._aim: FloatArray = self._information @ self._theta
        self._positive: BoolArray = np.ones(len(_PRIOR_S), np.bool_)
        self._error2 = _ERROR_MAX**2
        self.observed = 0
        """Steps observed so far."""

    @property
    def relative_error(self) -> float:
        """Usual relative error of a step's prediction, made before it was observed; outliers count clipped."""
        return math.sqrt(self._error2)

    @property
    def coefficients_s(self) -> tuple[float, ...]:
        """Seconds for each unit of what a step consists of, in the order of the module's first sentence."""
        return tuple(theta * prior for theta, prior in zip(self._theta.tolist(), _PRIOR_S, strict=True))

    def step_s(self, load: StepLoad) -> float:
        """Return the seconds that the engine takes for the step, as far as observed; 0 for a step without tokens."""
        if not load.tokens:
            return 0.0
        return float(sum(map(operator.mul, self._theta.tolist(), _parts_s(load))))

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk in a step of ``seconds``; see StepLatency."""
        constant, seq, context, prompts, prefill, beyond, attention, *_ = self.coefficients_s
        tokens, limit_s = base.tokens, seconds * ROUNDING
        fixed_s = constant + prompts + seq * base.decode_seqs + context * base.decode_context_tokens
        if base.draft_tokens:
            fixed_s += sum(map(operator.mul, self._theta.tolist()[-len(_DRAFTED) :], _drafted_s(base)))

        def bound_s(chunk: int) -> float:
            return (
                fixed_s
                + prefill * (base.prefill_tokens + chunk)
                + beyond * max(tokens + chunk - FREE_TOKENS, 0)
                + attention * (base.prefill_attention_tokens2 + chunk * (chunk + 2 * prefix_tokens))
            )

        spare_s = limit_s - bound_s(0)
        if spare_s <= 0.0:
            return 0
        linear = prefill + 2.0 * attention * prefix_tokens
        free = max(FREE_TOKENS - tokens, 0)
        guess = min(
            quadratic_root(spare_s, linear, attention),
            quadratic_root(spare_s + beyond * free, linear + beyond, attention),
        )
        return most_tokens(bound_s, limit_s, guess)

    def observe(self, load: StepLoad, duration_s: float) -> None:
        """Record that a step of ``load`` took ``duration_s``.

        The step is ignored if it has no tokens or no positive, finite time.
        """
        if not (load.tokens and 0.0 < duration_s < math.inf):
            return
        predicted_s = max(self.step_s(load), 1e-9)
        error = duration_s / predicted_s - 1.0
        if self.observed < _FIRST_STEPS:
            # The prior may be wrong by orders of magnitude: relative to what was measured, a first stall counts little.
            scale_s, clipped = duration_s, (duration_s - predicted_s) / duration_s
            self._error2 += (min(abs(error), _ERROR_MAX) ** 2 - self._error2) / 2.0
        else:
            clip = _CLIP * self.relative_error
            scale_s, clipped = predicted_s, min(max(error, -clip), clip)
            known = min(self.observed - _FIRST_STEPS + 3.0, _ERROR_STEPS)
            self._error2 += (clipped**2 - self._error2) / known
        self._error2 = min(max(self._error2, _ERROR_MIN**2), _ERROR_MAX**2)
        fit_nonnegative(
            information=self._information,
            aim=self._aim,
            theta=self._theta,
            positive=self._positive,
            share=np.array(_parts_s(load)) / scale_s,
            target=predicted_s / scale_s + clipped,
            keep=_KEEP,
            leak=_LEAK_EACH,
            most_solves=_MOST_SOLVES,
        )
        self.observed += 1

    def state(self) -> Mapping[str, Any]:
        """Return all that was learnt, as plain values."""
        return {
            "theta": self._theta.tolist(),
            "information": self._information.tolist(),
            "aim": self._aim.tolist(),
            "positive": self._positive.tolist(),
            "error2": self._error2,
            "observed": self.observed,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Learned":
        """Return the latency with this :meth:`state`.

        Raises: KeyError for a state that is not complete.
        """
        made = cls()
        made._theta, made._aim = np.array(state["theta"]), np.array(state["aim"])
        made._information, made._positive = np.array(state["information"]), np.array(state["positive"])
        made._error2, made.observed = state["error2"], state["observed"]
        return made


def _parts_s(load: StepLoad) -> Sequence[float]:
    """Return what the prior says of each term, ``[7 + len(_DRAFTED)]``."""
    return (
        _CONSTANT,
        _SEQ * load.decode_seqs,
        _CONTEXT * load.decode_context_tokens,
        _PROMPTS if load.prefill_tokens else 0.0,
        _PREFILL * load.prefill_tokens,
        _BEYOND * max(load.tokens - FREE_TOKENS, 0),
        _ATTENTION * load.prefill_attention_tokens2,
        *(_drafted_s(load) if load.draft_tokens else _UNDRAFTED),
    )


def _drafted_s(load: StepLoad) -> Sequence[float]:
    """Return what the prior says of the terms of drafts, ``[len(_DRAFTED)]``.

    Drafting runs in rounds: each adds a token to the drafts of every decode.
    """
    drafts = load.draft_tokens or 0
    positions = load.decode_seqs + drafts
    draft, rounds, *beyond = _DRAFTED
    return (
        draft * drafts,
        rounds * drafts / max(load.decode_seqs, 1),
        *(prior * max(positions - knee, 0) for prior, knee in zip(beyond, DRAFT_KNEES, strict=True)),
    )
