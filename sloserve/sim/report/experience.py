"""The experience of the readers of a run: figures of QoE and of delivery speed, and the outputs one by one.

A request promises a timeline if it states a TTFT or a TDS.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.qoe import expectation
from sloserve.core.runlog import RequestLog
from sloserve.sim.report.statistics import mean_of, percentiles_of
from sloserve.sim.workloads.seeding import stream

GOOD_QOE = 0.9
"""The least QoE of a satisfied user, and least mean QoE of a system within its capacity. Source: Andes, Sec. 6.1."""
ROUNDING = 1e-9
"""The deviation that counts as rounding in the area of a perfect output."""
PERCENTS = (10, 50, 90)
"""The percentiles of QoE and of speeds that are reported. Source: Andes, Table 4."""

TIMELINE_SHARE = 0.033
MAX_TIMELINES = 60
"""The most outputs of a run with timelines that are kept. Source of the share: Andes, Appendix F."""


def qoe_samples(logs: Sequence[RequestLog]) -> FloatArray:
    """Return the QoE of each request that promises a timeline, ``[such requests]``, in the order of ``logs``."""
    return np.array([log.qoe for log in logs if log.qoe is not None], np.float64)


def experience(logs: Sequence[RequestLog], tpot_s: FloatArray) -> dict[str, float | None]:
    """Return the figures of QoE, and of the tokens per second after the first that users saw.

    ``qoe_good_share`` and ``qoe_perfect_share`` are the shares, among the requests that promise a timeline, of requests
    with a QoE >= 0.9 and with a QoE of 1.

    Args:
        logs: The requests of the run.
        tpot_s: Seconds per output token of each completed request of two or more tokens; a request that got all of them
            at once has no speed.
    """
    qoes = qoe_samples(logs)
    return {
        "qoe_mean": mean_of(qoes),
        **percentiles_of("qoe", qoes, PERCENTS),
        "qoe_good_share": mean_of(qoes >= GOOD_QOE - ROUNDING),
        "qoe_perfect_share": mean_of(qoes >= 1.0 - ROUNDING),
        **percentiles_of("tds", 1.0 / tpot_s[tpot_s > 0.0], PERCENTS),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Timelines:
    """The times of the tokens of some outputs that share one expectation.

    Args:
        ttft_s: Expected time to the first token, in seconds.
        tds: Expected digestion speed, in tokens per second.
        replies: Number of requests with this expectation.
        delivered_s: Times of the tokens of each sampled request, ``[its tokens]``, in seconds since its arrival; empty
            for a request that got none.
    """

    ttft_s: float
    tds: float
    replies: int
    delivered_s: list[FloatArray]


@dataclass(frozen=True, slots=True, eq=False)
class TimedOutputs:
    """The requests of one run that promise a timeline.

    Args:
        total_tokens: Tokens of the prompt and the whole output, ``[such requests]``.
        qoe: QoE of each request, ``[such requests]``.
        timelines: Times of the tokens of a sample of the requests.
    """

    total_tokens: FloatArray
    qoe: FloatArray
    timelines: Timelines


def replies_of(logs: Sequence[RequestLog], seed: int) -> TimedOutputs | None:
    """Return the requests of ``logs`` that promise a timeline; ``None`` if none does.

    Timelines are kept of a share of the requests under the commonest expectation. ``seed`` draws the share without
    regard to how the requests fared, so it is the same under every policy.
    """
    told = [(log, expected) for log in logs if (expected := expectation(log.request.slo.targets)) is not None]
    if not told:
        return None
    [(commonest, _)] = Counter(expected for _, expected in told).most_common(1)
    alike = [log for log, expected in told if expected == commonest]
    count = min(int(np.ceil(TIMELINE_SHARE * len(alike))), MAX_TIMELINES)
    picked = np.sort(stream(seed, "timelines").choice(len(alike), count, replace=False))
    return TimedOutputs(
        total_tokens=np.array([log.request.prompt_tokens + log.request.output_tokens for log, _ in told], np.float64),
        qoe=qoe_samples(logs),
        timelines=Timelines(
            *commonest, len(alike), [alike[i].token_times_s - alike[i].request.arrival_s for i in picked]
        ),
    )
