"""Quality of experience of a streamed output: how much of the expected reading was possible.

Two curves (Andes, Sec. 3.1, Eq. 1) over the time since arrival describe an output of ``l`` tokens and a reader that
digests ``tds`` tokens per second:

* expected, ``min(T(t), l)`` with ``T(t) = tds * max(0, t - ttft)``;
* actual, ``A(t)``, tokens digested: slope ``tds`` while delivered tokens are undigested, else 0. Tokens that come
  faster than they are read wait in the reader's buffer and add nothing.

QoE is the ratio of the areas under both from arrival to the delivery of the last token (the paper's TTLT), clamped to
[0, 1]. Both areas are exact, in closed form. Three consequences of that upper limit are intended:

* an output that ended no later than the expected TTFT kept no reader waiting: expected area 0, QoE 1;
* what is read after the last token's delivery does not count, for either curve. A late output that comes all at once
  therefore scores 0, however short; between that and 1 there is no continuous passage for an output of one token;
* early tokens earn credit against later stalls, as areas do; the clamp keeps the credit from exceeding 1.

A request that was not completed has QoE 0; a request that promises neither TTFT nor TDS has no QoE.
"""

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.slo import Targets

DEFAULT_TTFT_S = 1.0
"""Expected TTFT where a request states a TDS alone. Source: Andes, Sec. 2.2 and 6.1, for web applications."""

DEFAULT_TDS = 4.8
"""Expected tokens/s where a request states a TTFT alone. Source: Andes, Sec. 2.2: average reading speed."""


def digest_start_s(token_times_s: FloatArray, tds: float) -> FloatArray:
    """Return when the reader takes up each token, ``[tokens]``: once it has arrived and the one before it is digested.

    The recurrence ``s[i] = max(d[i], s[i-1] + 1/tds)`` is computed as a running maximum of ``d[i] - i/tds``.
    """
    reading_s = np.arange(token_times_s.size) / tds
    starts: FloatArray = np.maximum.accumulate(token_times_s - reading_s) + reading_s
    return starts


def digested_area(token_times_s: FloatArray, tds: float, until_s: float) -> float:
    """Return the area under ``A(t)`` from 0 to ``until_s``, in token seconds.

    Each token is a ramp from 0 to 1 that lasts ``1/tds`` from the moment the reader takes it up.
    """
    reading_s = 1.0 / tds
    since_s = np.maximum(until_s - digest_start_s(token_times_s, tds), 0.0)
    ramp = 0.5 * tds * np.minimum(since_s, reading_s) ** 2
    return float((ramp + np.maximum(since_s - reading_s, 0.0)).sum())


def expected_area(tokens: int, ttft_s: float, tds: float, until_s: float) -> float:
    """Return the area under ``min(T(t), tokens)`` from 0 to ``until_s``, in token seconds."""
    since_s = max(until_s - ttft_s, 0.0)
    reading_s = tokens / tds
    return 0.5 * tds * min(since_s, reading_s) ** 2 + tokens * max(since_s - reading_s, 0.0)


def qoe(token_times_s: FloatArray, *, ttft_s: float, tds: float, alpha: float | None = None) -> float:
    """Return the QoE in [0, 1] of an output that was delivered to its end.

    Args:
        token_times_s: Seconds from arrival to each token's delivery, ``[tokens]``, at least one, ascending, ties
            allowed.
        ttft_s: Expected seconds to the first token.
        tds: Expected tokens per second.
        alpha: A number in [0, 1], or ``None``; if given, the ratio is multiplied by ``alpha`` to the power of the first
            token's lateness in seconds.

    Raises: ValueError for a timeline that is empty, descends or begins before arrival, and for an alpha out of range.
    Source: Andes, Eq. 1, and the paragraph behind it for alpha.
    Differs: an early first token earns no bonus from alpha, which the paper calls a penalty.
    """
    if token_times_s.size == 0:
        raise ValueError("an output without tokens has no QoE")
    if token_times_s[0] < 0.0 or (token_times_s[1:] < token_times_s[:-1]).any():
        raise ValueError("token times must ascend from the arrival on")
    if alpha is not None and not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha: {alpha!r} is not between 0 and 1")
    last_s = float(token_times_s[-1])
    expected = expected_area(token_times_s.size, ttft_s, tds, last_s)
    if expected == 0.0:
        return 1.0
    ratio = digested_area(token_times_s, tds, last_s) / expected
    if alpha is not None:
        ratio *= alpha ** max(0.0, float(token_times_s[0]) - ttft_s)
    return min(1.0, ratio)


def expectation(targets: Targets) -> tuple[float, float] | None:
    """Return the expected TTFT in seconds and TDS in tokens/s of a request; ``None`` if it promises neither.

    Of the two, a target that is not stated takes its default; TPOT and e2e targets say nothing about a reader.
    """
    if targets.ttft_s is None and targets.tds is None:
        return None
    return (
        DEFAULT_TTFT_S if targets.ttft_s is None else targets.ttft_s,
        DEFAULT_TDS if targets.tds is None else targets.tds,
    )
