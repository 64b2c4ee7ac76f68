"""What each request gains by being served now, and what serving it takes of the engine, in one unit each.

**Worth** is counted in good requests, in three parts:

- *good*, weight 1: the chance that the request meets all its targets. A first token or a pace leaves a slack; a whole
  reply ends in time with the chance that what is left is no longer than the time allows, 1 where ``max_tokens`` fits.
- *experience*, weight 0.5: what its reader has of it, if it has one: Andes' QoE of a reply that is late by so much and
  comes at the engine's pace, (gen / (gen + late))^2.
- *stretch*, weight 0.1: target / (target + latency), for every request; one without any target has 600 s.

**Gain.** A request that is not served now is served after a delay T, exponentially distributed. Its worth now less its
expected worth then, times the weight of its class, is its gain. The mean of T follows from the queue: a share of the
cost of all that wait and have a chance. The share grows with how many of the requests with targets have none any more:
where nearly all can be served in time, who is not next is soon, and the least slack decides; where the queue does not
drain, who is not next may never be, and the least cost does. How much of that growth counts is the square root of the
time that steps are needed for, over that of what is short: where KV is short, a reply that is ahead of its reader can
give its KV to another and come back, so that a queue may drain in which many are late. A running request that gives way
is besides later by what its KV takes to come back.

**Cost**, in engine seconds. A step's time, the KV cache and the seats (``max_num_seqs``) are machines that all requests
share. Each request occupies each of them for so many seconds, as if it had the machine for itself: its prompt at the
rate of full steps, and what its tokens add to the steps; its KV tokens x seconds over those of the cache; its seconds
over the number of seats. The machine that all requests together need longest is what is short, and its price is 1; the
others are priced by the square of how near they come to it, so that no price jumps when another machine becomes the one
that is short.

Limits that hold exactly, for requests that arrived together: with first-token targets alone and equal costs the order
by gain is that of least slack, whatever T, since the chance that T exceeds a slack falls with it. Without targets gains
are equal, and the order by gain / cost is that of least cost, Smith's rule. With readers alone the form is that of
Andes, QoE served less QoE not served, per unit of what is short.

The arithmetic is compiled (csrc/include/sloserve/worth.h).
"""

import functools
from typing import Final, NamedTuple

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.survival import Chances
from sloserve.core.kernels.worth import worth
from sloserve.core.qoe import DEFAULT_TDS, DEFAULT_TTFT_S
from sloserve.core.rows import Rows
from sloserve.lso.drafted import DRAFT_COLUMNS
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.lso.pace import PACE_COLUMNS
from sloserve.scheduler.auto import constants
from sloserve.scheduler.auto.engine_pace import EnginePace
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
    """gain, cost: ``[n]``, in good requests and in engine seconds. wait_s: the mean delay."""

    gain: FloatArray
    cost: FloatArray
    wait_s: float


def worth_of(
    rows: Rows,
    queued: int,
    engine: EngineFacts,
    pace: EnginePace,
    left: FloatArray,
    per_step: FloatArray,
    runs: Chances,
    prefill_tokens: IntArray,
    again_s: FloatArray,
    now_s: float,
) -> Worth:
    """What n requests gain and cost, of which the first ``queued`` wait.

    Args:
        pace: of the engine.
        left: ``[n]``, tokens to come, expected.
        per_step: ``[n]``, tokens that a step brings each, at least 1.
        runs: of these n, the chances that more tokens than AHEAD are still to come.
        prefill_tokens: ``[n]``, to compute before the next token.
        again_s: ``[n - queued]``, delay beside T of those that run, until they have their KV back.
        now_s: epoch seconds.
    """
    chosen = constants.CONSTANTS
    facts = (
        *(pace.step_s, pace.full_s, pace.prompt_token_s, pace.token_s),
        *(engine.total_blocks, engine.max_num_seqs),
        *(chosen.wait_share, chosen.late_wait_share, chosen.late_at),
        *(DEFAULT_TTFT_S, DEFAULT_TDS),
        *(chosen.experience, chosen.stretch, chosen.unhurried_s, chosen.price_power),
    )
    return Worth(
        *worth(
            runs,
            engine.layout,
            (rows.arrival_s, rows.ttft_s, rows.tpot_s, rows.tds, rows.e2e_s, rows.first_token_s),
            (rows.class_rank, rows.prompt_tokens, rows.output_tokens, rows.max_tokens),
            queued,
            left,
            per_step,
            prefill_tokens,
            again_s,
            _weights(chosen.class_weight),
            now_s,
            np.array(facts, np.float64),
        )
    )


@functools.lru_cache(maxsize=8)
def _weights(class_weight: float) -> FloatArray:
    return np.array(class_weight ** np.arange(_MOST_RANKS), np.float64)
