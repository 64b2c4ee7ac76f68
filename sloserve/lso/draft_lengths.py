"""Choice of how many of its draft tokens each decode verifies in the next step.

A draft that is rejected takes compute from all requests of the step, once the step has more positions than the reading
of the weights hides. So its worth depends on the load, and on who would gain the token: a request with a tight pace
needs all its drafts, one that is far ahead of its reader needs none.

Each draft has a chance to be accepted, which depends on its place and on its request. Two rules use it, for one step
each:

- *load*: drafts are ranked by their chances, and taken from the top as long as they raise the tokens of the step per
  second. Targets do not count.
- *slack*: as many as there are, unless the step then takes longer than some request can bear that could be kept. Then
  no request has more than that number with which the most requests keep their pace; and of what is left, drafts of
  requests that can do without are left out, beginning with the least chance, until the step is as short as these
  requests need it. A request can do without the drafts that its own targets do not need; and only such drafts are left
  out as cost more now than the token that they would bring costs later, as a row of another step.

No paper has it: SmartSpec and vLLM's ``num_speculative_tokens_per_batch_size`` choose one number of drafts for all
requests, by the load.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.lso.drafted import DRAFT_COLUMNS, draft_luck, tokens_per_step
from sloserve.lso.pace import PACE_COLUMNS, pace_s
from sloserve.lso.plan import EngineFacts
from sloserve.lso.prompts_beside_decodes import HEADROOM
from sloserve.lso.step_budget import SPEND_TOKENS

LENGTH_OF_DRAFTS: Final = ("all", "load", "slack")
"""Values of the option ``drafts``: as many as vLLM schedules, or fewer by load, or by load and slack."""
DRAFT_LENGTH_COLUMNS: Final = (
    PACE_COLUMNS | DRAFT_COLUMNS | {"arrival_s", "e2e_s", "first_token_s", "in_flight_tokens", "output_tokens"}
)
"""Columns that :func:`draft_lengths` reads."""
NEARLY_FREE: Final = 1.01
"""Lengthening of the step, as a factor, below which no draft is left out."""
_MORE: Final = 16
"""Decodes by which a step is made larger to see what one more takes."""
_CUTS: Final = 12
"""Numbers of drafts for which the step's time is computed: the best is within some percent of the best of all."""


def draft_lengths(
    rows: Rows,
    decodes: IntArray,
    own: IntArray,
    left: FloatArray,
    engine: EngineFacts,
    beside: StepLoad,
    now_s: float,
    *,
    by_slack: bool = True,
) -> IntArray | None:
    """Return the most drafts of each of ``decodes`` in the next step, ``[n]``; ``None`` for as many as there are.

    Args:
        rows: The request table, up to date for ``decodes``.
        decodes: Slots of the requests that decode in the step.
        own: ``[n]``, drafts that each has for the step: n-grams may find none, an engine may draft fewer under load.
        left: ``[n]``, tokens to come, expected.
        engine: What the engine can do now.
        beside: The step without drafts: the decodes, and the prompts that it computes.
        now_s: Epoch seconds.
        by_slack: Whether targets count.
    """
    drafts = engine.drafts
    if drafts is None or not decodes.size:
        return None
    own = np.minimum(own, drafts.accepted.size)
    every = int(own.sum())
    chances = np.where(np.arange(drafts.accepted.size) < own[:, None], _chances(rows, decodes, engine), 0.0)

    def step_s(count: int) -> float:
        return engine.step_latency.step_s(replace(beside, draft_tokens=count))

    if not every or step_s(every) <= NEARLY_FREE * step_s(0):
        return None
    if by_slack:
        token_s = HEADROOM * bearable_token_s(rows, decodes, left, engine, now_s + engine.busy_s)
        kept = np.minimum(own, _most_kept(chances, own, token_s, step_s))
        lengths = kept
        if kept.any():
            pays_from = _pays_from(engine.step_latency, replace(beside, draft_tokens=int(kept.sum())))
            found = _by_slack(chances[:, : int(kept.max())], kept, token_s, step_s, pays_from)
            lengths = kept if found is None else found
    else:
        lengths = _by_load(chances, own, step_s)
    return lengths if (lengths < own).any() else None


def _by_load(chances: FloatArray, own: IntArray, step_s: Callable[[int], float]) -> IntArray:
    """Return the drafts of each request, ``[n]``, that bring the most tokens per second."""
    decodes = len(chances)
    is_there = np.flatnonzero((np.arange(chances.shape[1]) < own[:, None]).ravel())
    order = is_there[np.argsort(-chances.ravel()[is_there], kind="stable")]
    ranked = chances.ravel()[order]
    gained = np.concatenate(([0.0], np.cumsum(ranked))) + decodes
    cuts = np.unique(np.linspace(0, ranked.size, _CUTS).astype(np.int64))
    cut = int(cuts[int(np.argmax([gained[cut] / step_s(int(cut)) for cut in cuts]))])
    return np.bincount(order[:cut] // chances.shape[1], minlength=decodes)


def _most_kept(chances: FloatArray, own: IntArray, token_s: FloatArray, step_s: Callable[[int], float]) -> int:
    """Return the number of drafts of each request with which the most keep their pace, the largest of equals.

    The arguments are the same as for :func:`_by_slack`.
    """
    decodes, most = chances.shape
    gains = np.ones(decodes)
    best, fewest_lost = 0, decodes + 1
    for number in range(most + 1):
        if number:
            gains = gains + chances[:, number - 1]
        lost = int(np.count_nonzero(gains * token_s < step_s(int(np.minimum(own, number).sum()))))
        if lost <= fewest_lost:
            best, fewest_lost = number, lost
    return best


def _pays_from(latency: StepLatency, every: StepLoad) -> float:
    """Return the chance from which on a draft is worth its cost.

    Such a draft costs no more than a row of a later step for the token that it may bring.

    Args:
        latency: Seconds that a step takes.
        every: The step with all drafts.
    """
    seqs, drafts = every.decode_seqs, every.draft_tokens or 0
    mean = every.decode_context_tokens // seqs
    more = replace(every, decode_seqs=seqs + _MORE, decode_context_tokens=every.decode_context_tokens + _MORE * mean)
    every_s = latency.step_s(every)
    row_s = (latency.step_s(more) - every_s) / _MORE
    fewer = min(seqs, drafts)
    draft_s = (every_s - latency.step_s(replace(every, draft_tokens=drafts - fewer))) / fewer
    return draft_s / max(row_s, 1e-9)


def _by_slack(
    chances: FloatArray, own: IntArray, token_s: FloatArray, step_s: Callable[[int], float], pays_from: float
) -> IntArray | None:
    """Return the drafts of each request, ``[n]``, with which the most keep their pace.

    The result is ``None`` if no request is at risk that can be saved.

    Args:
        chances: ``[n, num_drafts]``, that each draft brings a token; 0 where a request has none at that place.
        own: ``[n]``, drafts of each request, at least 1 of some.
        token_s: ``[n]``, seconds that each request can bear for a token.
        step_s: Function that returns the seconds of the step by its number of drafts.
        pays_from: Chance from which on a draft is never left out.
    """
    decodes, most = chances.shape
    every = int(own.sum())
    all_s = step_s(every)
    gains = 1.0 + np.concatenate((np.zeros((decodes, 1)), np.cumsum(chances, axis=1)), axis=1)
    bears_s = gains * token_s[:, None]
    at_risk = (bears_s[:, most] < all_s) & (bears_s[:, most] >= step_s(0))
    needs: IntArray = np.where(at_risk, own, (bears_s < all_s).sum(axis=1))
    needs[bears_s[:, most] < step_s(0)] = 0  # lost whatever is done
    needs = np.minimum(np.maximum(needs, (chances >= pays_from).sum(axis=1)), own)
    least = int(needs.sum())
    saved_s = bears_s[at_risk & (bears_s[:, most] >= step_s(least)), most]
    if not saved_s.size:
        return None
    # The drafts that can be left out, the least chance first.
    places = np.arange(1, most + 1)
    spare = (places > needs[:, None]) & (places <= own[:, None])
    order = np.argsort(chances[spare], kind="stable")
    left_out = bisect_left(range(order.size), True, key=lambda count: step_s(every - count) <= saved_s.min())
    if left_out >= order.size:
        return needs
    lengths: IntArray = own - np.bincount(np.nonzero(spare)[0][order[:left_out]], minlength=decodes)
    return lengths


def _chances(rows: Rows, decodes: IntArray, engine: EngineFacts) -> FloatArray:
    """Return the chance that each draft brings a token, ``[n, num_drafts]``, never rising along a request's drafts."""
    drafts = engine.drafts
    assert drafts is not None
    usual = np.cumprod(drafts.accepted)
    own = draft_luck(rows, decodes, engine)
    # A request that accepts more does so at each place: the second draft comes after the first.
    places = np.arange(1, usual.size + 1)
    chances: FloatArray = np.minimum(usual * np.clip(own, 0.0, 4.0)[:, None] ** np.sqrt(places), 0.99**places)
    return np.minimum.accumulate(chances, axis=1)


def bearable_token_s(
    rows: Rows, decodes: IntArray, left: FloatArray, engine: EngineFacts, starts_s: float
) -> FloatArray:
    """Return the seconds that each may take for a token from ``starts_s`` on, ``[n]``; inf without a target.

    The result is zero or less for a request with a lost target. The step budget has the same rule
    (csrc/include/sloserve/step_budget.h), but keeps only the requests that can bear a step of decodes, and leaves a
    task's deadline out before the last call: here, a decode without any target is the first to do without its drafts.
    """
    pace = pace_s(rows, decodes)
    first_s = np.where(np.isnan(rows.first_token_s[decodes]), starts_s, rows.first_token_s[decodes])
    in_flight = tokens_per_step(rows, decodes, engine) * (rows.in_flight_tokens[decodes] > 0)
    to_come = np.maximum(left - in_flight, 1.0)
    lead_s = first_s + pace * (rows.output_tokens[decodes] + in_flight - 1) - starts_s
    by_pace = pace + lead_s / np.where(lead_s > 0.0, np.minimum(to_come, SPEND_TOKENS), to_come)
    by_end = (rows.arrival_s[decodes] + rows.e2e_s[decodes] - starts_s) / to_come
    bearable = np.fmin(by_pace, by_end)
    return np.where(np.isnan(bearable), np.inf, bearable)
