"""Fits the latency forms to measured steps: weighted, non-negative least squares, scored on steps they have not seen.

Squares are of relative errors: a decode step of 5 ms counts as much as a prefill of 500 ms. Every form is linear in its
coefficients once its threshold is fixed (free tokens of the hinge, batch size of DistServe's two decode sets); the
threshold is the candidate with the least error. Coefficients cannot be negative, so that no step outside the grid costs
less than nothing; the hinge's seq_ms alone may be, within its own bounds.

Draft tokens count as each form counts them. What an engine takes to draft them is part of the decodes' coefficients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from sloserve.estimator.step_time.latency import BatchFit, Bilinear, DecodeLine, DistServe, Hinge, StepLatency, StepLoad

FREE_TOKENS = (0, 8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384, 512)
"""Candidates for the hinge: up to where a GPU's matrix products stop being bound by reading weights."""

SMALL_BATCH_BELOW = (1, 9, 17, 33, 65, 95, 129)
"""Candidates for DistServe's threshold; 95 is its own. 1: one set for all."""

MIN_STEPS = 6
"""Fewer steps of a kind, with prefill or without, do not determine its coefficients."""

_LEAST_SHARE = 0.1
"""A step that only decodes takes at least this share of its time for what is not its drafts."""

_DIGITS = 8
_MIN_BASE_MS = 1e-6
_MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What one step computed, and how long it took in seconds."""

    load: StepLoad
    duration_s: float


@dataclass(frozen=True, slots=True)
class FitScore:
    """Accuracy of a form's predictions of measured steps.

    Args:
        steps: Number of the measured steps.
        r2: Coefficient of determination of the durations; 1 is perfect, 0 no better than their mean.
        mape_percent: Mean absolute percentage error.
    """

    steps: int
    r2: float
    mape_percent: float


def score(form: StepLatency, steps: Sequence[MeasuredStep]) -> FitScore:
    """Return how well ``form`` predicts ``steps``.

    Raises: ValueError for fewer than two steps, of which R^2 says nothing.
    """
    if len(steps) < 2:
        raise ValueError(f"{len(steps)} steps: R^2 needs at least two")
    measured = np.array([s.duration_s for s in steps])
    error = measured - np.array([form.step_s(s.load) for s in steps])
    spread = float(np.sum((measured - measured.mean()) ** 2))
    r2 = 1.0 - float(error @ error) / spread if spread > 0.0 else float("-inf")
    return FitScore(len(steps), r2, float(np.mean(np.abs(error) / measured)) * 100.0)


def held_out(steps: Sequence[MeasuredStep], share: float, seed: int) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Return ``(to fit, held out)``: every 1/share-th step by duration, from a place ``seed`` chooses, is held out.

    So both parts span the whole range, and the shortest and longest steps are always fitted: a profile promises nothing
    outside its grid.

    Raises: ValueError for a share outside 0..0.5.
    """
    if not 0.0 < share <= 0.5:
        raise ValueError(f"share: {share} is not within 0..0.5")
    every = round(1.0 / share)
    order = sorted(range(len(steps)), key=lambda i: (steps[i].duration_s, i))
    first = 1 + int(np.random.default_rng(seed).integers(0, every - 1)) if every > 2 else 1
    out = set(order[first : len(order) - 1 : every])
    return [s for i, s in enumerate(steps) if i not in out], [steps[i] for i in sorted(out)]


def fit_hinge(steps: Sequence[MeasuredStep]) -> Hinge:
    """Return the hinge of least relative error over ``free_tokens``.

    See :class:`~sloserve.estimator.step_time.latency.Hinge` for the form.

    Raises: ValueError when there are too few steps with prefill, or without.
    """
    decode, prefill = _apart(steps)
    line = _decode_line(decode)
    fits = [_hinge_with(free, prefill, line) for free in FREE_TOKENS]
    if not any(step.load.draft_tokens for step in decode):
        return min(fits, key=lambda form: _relative_error(form, prefill))
    fits = [replace(form, decode=_decode_line(_without_drafts(decode, form))) for form in fits]
    return min(fits, key=lambda form: _relative_error(form, steps))


def _without_drafts(steps: Sequence[MeasuredStep], form: Hinge) -> list[MeasuredStep]:
    """Return steps that only decode, without the time that the form counts for their drafts."""
    found = []
    for step in steps:
        plain = replace(step.load, draft_tokens=None)
        drafts_s = form.decode_bound_s(step.load) - form.decode_bound_s(plain)
        found.append(MeasuredStep(plain, max(step.duration_s - drafts_s, _LEAST_SHARE * step.duration_s)))
    return found


def _hinge_with(free_tokens: int, steps: Sequence[MeasuredStep], line: DecodeLine) -> Hinge:
    def columns(load: StepLoad) -> tuple[float, ...]:
        fresh = min(load.prefill_attention_tokens2, load.prefill_tokens**2)
        beyond = max(0, load.tokens - free_tokens)
        # seq_ms = extra - token_ms: what may not be negative is the sum of the two.
        return (
            1.0,
            beyond - load.decode_seqs,
            load.decode_seqs,
            load.decode_context_tokens,
            fresh,
            load.prefill_attention_tokens2 - fresh,
            load.num_prefills,
        )

    base, token, extra, context, fresh, prefix, prefill = _nnls(steps, columns)
    base = max(base, _MIN_BASE_MS)
    least = -0.9 * base / free_tokens if free_tokens else -token
    return Hinge(
        free_tokens=free_tokens,
        base_ms=base,
        token_ms=token,
        seq_ms=max(extra - token, least),
        context_token_ms=context,
        attention_token2_ms=fresh,
        prefix_attention_token2_ms=prefix,
        prefill_ms=prefill,
        decode=line,
    )


def fit_bilinear(steps: Sequence[MeasuredStep]) -> Bilinear:
    """Return the simulated-annealing paper's two fits (Eq. 14 and 15), from steps that do not mix prefill and decode.

    Raises: ValueError when there are too few steps of one of the two kinds.
    """

    def batch(steps: Sequence[MeasuredStep], size: Callable[[StepLoad], tuple[int, int]]) -> BatchFit:
        def columns(load: StepLoad) -> tuple[float, ...]:
            requests, tokens = size(load)
            return (tokens, requests + (load.draft_tokens or 0), tokens / requests, 1.0)

        alpha, beta, gamma, delta = _nnls(steps, columns)
        return BatchFit(alpha_ms=alpha, beta_ms=beta, gamma_ms=gamma, delta_ms=max(delta, _MIN_BASE_MS))

    decode, prefill = _apart(steps, mixed=False)
    return Bilinear(
        prefill=batch(prefill, lambda load: (load.num_prefills, load.prefill_tokens)),
        decode=batch(decode, lambda load: (load.decode_seqs, load.decode_context_tokens)),
    )


def fit_distserve(steps: Sequence[MeasuredStep]) -> DistServe:
    """Return DistServe's fits, from steps that do not mix prefill and decode.

    Raises: ValueError when there are too few steps of one of the two kinds.
    """
    decode, prefill = _apart(steps, mixed=False)
    base, token, attention = _nnls(prefill, lambda x: (1.0, x.prefill_tokens, x.prefill_attention_tokens2))

    def with_threshold(below: int) -> DistServe:
        small = [s for s in decode if _positions(s.load) < below]
        large = [s for s in decode if _positions(s.load) >= below]
        line = _decode_line(large)
        return DistServe(
            prefill_base_ms=max(base, _MIN_BASE_MS),
            prefill_token_ms=token,
            prefill_attention_token2_ms=attention,
            small_batch_below=below,
            decode_small=_decode_line(small) if small else line,
            decode_large=line,
        )

    def usable(below: int) -> bool:
        small = sum(_positions(s.load) < below for s in decode)
        return len(decode) - small >= MIN_STEPS and (small == 0 or small >= MIN_STEPS)

    fits = [with_threshold(below) for below in SMALL_BATCH_BELOW if below == 1 or usable(below)]
    return min(fits, key=lambda form: _relative_error(form, decode))


def _positions(load: StepLoad) -> int:
    """Return the positions of the decodes: a token of each sequence, and its drafts."""
    return load.decode_seqs + (load.draft_tokens or 0)


def _decode_line(steps: Sequence[MeasuredStep]) -> DecodeLine:
    base, context, seq = _nnls(steps, lambda x: (1.0, x.decode_context_tokens, _positions(x)))
    return DecodeLine(base_ms=max(base, _MIN_BASE_MS), context_token_ms=context, seq_ms=seq)


def _apart(steps: Sequence[MeasuredStep], mixed: bool = True) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Return the steps without prefill, and the steps with prefill.

    Args:
        steps: The measured steps.
        mixed: Whether steps with prefill may decode as well.

    Raises: ValueError when there are too few steps of one of the two kinds.
    """
    decode = [s for s in steps if s.load.decode_seqs and not s.load.prefill_tokens]
    prefill = [s for s in steps if s.load.prefill_tokens and (mixed or not s.load.decode_seqs)]
    for kind, found in (("without prefill", decode), ("with prefill", prefill)):
        if len(found) < MIN_STEPS:
            raise ValueError(f"{len(found)} steps {kind}; a fit needs at least {MIN_STEPS}: measure a larger grid")
    return decode, prefill


def _nnls(steps: Sequence[MeasuredStep], columns: Callable[[StepLoad], tuple[float, ...]]) -> list[float]:
    """Return the coefficients in ms, none negative, of the columns that best explain the durations.

    Errors count relative to the durations.
    """
    design = np.array([columns(s.load) for s in steps], np.float64)
    duration_ms = np.array([s.duration_s for s in steps]) * _MS_PER_S
    design /= duration_ms[:, None]
    # Tokens and squared tokens differ by orders of magnitude: columns of equal length keep the solver exact.
    length = np.linalg.norm(design, axis=0)
    length[length == 0.0] = 1.0
    solution, _ = nnls(design / length, np.ones(len(steps)))
    # What is left of a zero, and the last digits, depend on how this CPU's linear algebra adds up; a plan must not.
    solution[solution < 0.1**_DIGITS * solution.max()] = 0.0
    return [float(f"{x:.{_DIGITS}g}") for x in solution / length]


def _relative_error(form: StepLatency, steps: Sequence[MeasuredStep]) -> float:
    return float(sum((form.step_s(s.load) / s.duration_s - 1.0) ** 2 for s in steps))
