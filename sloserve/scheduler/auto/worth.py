"""The gain of serving each request now, and what serving it takes of the engine, in one unit each.

**Worth** is counted in good requests, in three parts:

- *good*, weight 1: the chance that the request meets all its targets. A target for the first token or the pace leaves a
  slack; a whole output ends in time with the chance that what is left is no longer than the time allows, 1 where
  ``max_tokens`` fits.
- *experience*, weight 0.5: the experience of its reader, if it has one: Andes' QoE of an output that is ``late``
  seconds late and comes at the engine's pace, (gen / (gen + late))^2.
- *stretch*, weight 0.1: target / (target + latency), for every request; one without any target has 600 s.

**Gain** is the worth of a request now less its expected worth later, times the weight of its class. A request that is
not served now is served after a delay T, exponentially distributed. The mean of T follows from the queue: it is a share
of the cost of all requests that wait and have a chance. The share grows with the share of the requests with targets
that have no chance any more: where nearly all can be served in time, a request that is not next will be next soon, and
the least slack decides; where the queue does not drain, it may never be next, and the least cost decides. How much of
that growth counts is the square root of the time for which steps are needed, over the time for which the scarcest
machine is needed: where KV is short, a request that is ahead of its reader can give its KV to another and come back, so
that a queue may drain in which many are late. A running request that gives way is later, in addition, by the time until
its KV is back.

A request with a prompt to compute has its next token after the step in flight and, in the mean, one step more than its
prompt takes by itself (``engine_pace.py``). A request that has less time than this is late, since computing its prompt
would take the time of one that can still be in time.

**Urgency**, by which requests are ordered, is gain over cost. Alone it would serve requests without targets by least
work, which has nearly the lowest mean latency and lets long requests wait for as long as short ones arrive. Waiting
requests without targets therefore share out the urgency that they have among themselves, so that they go by boosted
arrival: each counts as if it had arrived -ln(1 - exp(-r * cost)) / r seconds earlier than it did, where 1 / r is the
cost of all waiting requests over the policy's option ``tail``. This is gamma-Boost (Yu and Scully 2024), which
minimises the tail of latency for light-tailed work if r is the rate at which the tail decays; in heavy traffic this
rate is the inverse of the mean work that waits. The scale comes from the queue itself: requests that arrived together
go by least cost, and requests with ages many queues apart go in order of arrival. With ``tail`` at 0 the least cost
goes first, and a large ``tail`` leads to order of arrival. Neither gains nor what other requests compete with change by
that: requests without targets preempt none, since their gain is at most the weight of the stretch, which is less than
``hysteresis`` by default.

**Cost** is counted in engine seconds. A step's time, the KV cache and the seats (``max_num_seqs``) are machines that
all requests share. Each request occupies each of them for some seconds, as if it had the machine for itself: of the
steps, its prompt at the rate of full steps and what its tokens add to the steps; of the cache, its KV tokens x seconds
over the tokens of the cache; of the seats, its seconds over the number of seats. The machine that all requests together
need longest is the scarcest, and its price is 1; the others are priced by the square of how near they come to it, so
that no price jumps when another machine becomes the scarcest.

Some limits hold exactly, for requests that arrived together. With first-token targets alone and equal costs the order
by gain is the order of least slack, whatever T, since the chance that T exceeds a slack falls with it. Without targets
the order is the order of least cost, Smith's rule. With readers alone the form is
the one of Andes, QoE served less QoE not served, per unit of the scarcest machine.

The arithmetic is compiled (csrc/include/sloserve/worth.h).
"""

import functools
from typing import Final, NamedTuple

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import WorthColumns, WorthEngine, worth
from sloserve.core.kernels.survival import Chances
from sloserve.core.qoe import DEFAULT_TDS, DEFAULT_TTFT_S
from sloserve.core.rows import Rows
from sloserve.lso.drafted import DRAFT_COLUMNS
from sloserve.lso.engine_pace import EnginePace
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.lso.pace import PACE_COLUMNS
from sloserve.scheduler.auto import constants
from sloserve.scheduler.policy import EngineFacts

WORTH_COLUMNS: Final = (
    PACE_COLUMNS
    | LENGTH_COLUMNS
    | DRAFT_COLUMNS
    | {"arrival_s", "class_rank", "e2e_s", "first_token_s", "prompt_tokens", "ttft_s"}
)
"""Columns that :func:`worth_of` reads."""
_MOST_RANKS: Final = 31
"""Class ranks that weigh less each; those beyond weigh like the last."""


class Worth(NamedTuple):
    """Gain, cost and urgency of requests.

    Args:
        gain: Gain of each request in good requests, ``[n]``.
        cost: Cost of each request in engine seconds, ``[n]``.
        urgency: Gain per cost by which requests are ordered, ``[n]``.
        wait_s: Mean delay of a request that is not served now, in seconds.
    """

    gain: FloatArray
    cost: FloatArray
    urgency: FloatArray
    wait_s: float


def worth_of(
    rows: Rows,
    engine: EngineFacts,
    pace: EnginePace,
    runs: Chances,
    *,
    queued: int,
    left: FloatArray,
    per_step: FloatArray,
    prefill_tokens: IntArray,
    again_s: FloatArray,
    tail: float,
    now_s: float,
) -> Worth:
    """Return what n requests gain and cost, of which the first ``queued`` wait.

    Args:
        rows: The request table.
        engine: What the engine can hold.
        pace: How fast the engine is.
        runs: The chances of these n requests that more tokens than AHEAD are still to come.
        queued: How many of the first of the n wait.
        left: ``[n]``, the expected tokens still to come.
        per_step: ``[n]``, the tokens that a step brings each request, at least 1.
        prefill_tokens: ``[n]``, the tokens to compute before the next one.
        again_s: ``[n - queued]``, the delay beside T of each running request until it has its KV back.
        tail: How much the longest waits of requests without targets count, see the text of the module.
        now_s: The time in epoch seconds.
    """
    chosen = constants.CONSTANTS
    facts = WorthEngine(
        step_s=pace.step_s,
        full_s=pace.full_s,
        prompt_token_s=pace.prompt_token_s,
        token_s=pace.token_s,
        step_wait_s=pace.step_wait_s,
        kv_blocks=engine.total_blocks,
        seats=engine.max_num_seqs,
        wait_share=chosen.wait_share,
        late_wait_share=chosen.late_wait_share,
        late_at=chosen.late_at,
        reader_ttft_s=DEFAULT_TTFT_S,
        reader_tds=DEFAULT_TDS,
        experience=chosen.experience,
        stretch=chosen.stretch,
        unhurried_s=chosen.unhurried_s,
        price_power=chosen.price_power,
        tail=tail,
    )
    columns = WorthColumns(
        arrival_s=rows.arrival_s,
        ttft_s=rows.ttft_s,
        tpot_s=rows.tpot_s,
        tds=rows.tds,
        e2e_s=rows.e2e_s,
        first_token_s=rows.first_token_s,
        class_rank=rows.class_rank,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        max_tokens=rows.max_tokens,
    )
    gain, cost, urgency, wait_s = worth(
        runs,
        engine.layout,
        facts,
        columns,
        queued=queued,
        left=left,
        per_step=per_step,
        prefill=prefill_tokens,
        again_s=again_s,
        weights=_weights(chosen.class_weight),
        now_s=now_s,
    )
    return Worth(gain, cost, urgency, wait_s)


@functools.lru_cache(maxsize=8)
def _weights(class_weight: float) -> FloatArray:
    return np.array(class_weight ** np.arange(_MOST_RANKS), np.float64)
