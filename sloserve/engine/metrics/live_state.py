"""States of a class or a tenant that watchers see, by the share of its own requests that are in time.

The error budget is the share of requests that may miss their targets. The burn rate is the share that missed them, in
multiples of the budget. A request that has missed a deadline counts as soon as it has, even while it is served: its end
may be minutes away. Requests without targets have no budget; the ones that were not served are counted apart.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sloserve.core.attainment_window import SHOWN_SPANS_S
from sloserve.core.in_words import duration

GOOD_SHARE: Final = 0.95
"""Share of requests in time below which a class or a tenant is shown as bad; the rest is its error budget.
The alerts of deploy/prometheus have the same objective by default."""
LEAST_REQUESTS: Final = 3
"""Requests in a span below which it has no burn rate: one late request alone raises no alarm."""
FAST_BURN: Final = 3.0
"""Burn rate of the last minute from which on a state is bad although the ten minutes before were good."""
BAD, LATE, FINE = "bad", "late", "fine"
"""States of a class or a tenant.

It is bad if it burns more than its budget in the last minute as well as in the last ten, or in the last minute at
:data:`FAST_BURN`. It is late if some of its requests are late or have missed a deadline, or if :data:`LEAST_REQUESTS`
without targets were not served within the last minute, and fine otherwise.
"""

_LONGEST: Final = duration(SHOWN_SPANS_S[-1])
_MOST_CLASSES: Final = 3
"""Most classes that :func:`calm` names."""

Attained = Sequence[Sequence[float | int | None]]
"""Share of requests in time and number of requests, for each of the spans, the shortest first."""


def burn_rates(attained: Attained, missed: int = 0) -> list[float | None]:
    """Return the burn rate for each span, ``None`` where fewer than :data:`LEAST_REQUESTS` count.

    Args:
        attained: Requests that ended.
        missed: Requests that have not ended and have missed a deadline.
    """
    found: list[float | None] = []
    for share, ended in attained:
        total = (ended or 0) + missed
        failed = (1.0 - (share or 0.0)) * (ended or 0) + missed
        found.append(round(failed / total / (1.0 - GOOD_SHARE), 2) if total >= LEAST_REQUESTS else None)
    return found


def state_of(late: int, burning: Sequence[float | None], not_served: Sequence[int], missed: int = 0) -> str:
    """Return the state of a class or a tenant.

    Args:
        late: Number of its requests that are late now.
        burning: Burn rates, see :func:`burn_rates`.
        not_served: Number of its requests without targets that were not served, for each of the spans.
        missed: Number of its requests that have not ended and have missed a deadline.
    """
    short, *longer = burning
    if short is not None and short > 1.0 and (short >= FAST_BURN or all(rate and rate > 1.0 for rate in longer)):
        return BAD
    return LATE if late or missed or not_served[0] >= LEAST_REQUESTS else FINE


def calm(by_class: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what watchers read where no class is bad or late.

    A class with fewer than :data:`LEAST_REQUESTS`, or within its budget, raises no alarm, but its requests that missed
    their targets are named, and the ones without targets that were not served: a single request that was refused is all
    that an operator of a quiet server can see.

    Args:
        by_class: Figures of each class by its name: what is ``attained`` and how many were ``not_served``, over each of
            the spans.
    """
    shown = {name: one["attained"][-1] for name, one in by_class.items()}
    ended = {name: (share or 0.0, total or 0) for name, (share, total) in shown.items()}
    missed = {name: round((1.0 - share) * total) for name, (share, total) in ended.items()}
    worst = sorted((name for name in missed if missed[name]), key=lambda name: -missed[name] / ended[name][1])
    lost = {name: one["not_served"][-1] for name, one in by_class.items() if one["not_served"][-1]}
    said = [_missed(missed, ended, worst)] if worst else []
    if lost:
        said.append(f"Without targets and not served within {_LONGEST}: {_most_of(lost)}.")
    return " ".join(("No alarm.", *said)) if said else "Every class is in time."


def _missed(missed: Mapping[str, int], ended: Mapping[str, tuple[float, int]], worst: Sequence[str]) -> str:
    named = [f"{name} {missed[name]:,} of {ended[name][1]:,}" for name in worst[:_MOST_CLASSES]]
    if others := worst[_MOST_CLASSES:]:
        named.append(
            f"other classes {sum(missed[name] for name in others):,} of {sum(ended[name][1] for name in others):,}"
        )
    return f"Missed targets within {_LONGEST}: {', '.join(named)}."


def _most_of(counts: Mapping[str, int]) -> str:
    """Return the classes with the largest counts, and the sum of the others."""
    first = sorted(counts, key=lambda name: -counts[name])
    named = [f"{name} {counts[name]:,}" for name in first[:_MOST_CLASSES]]
    if others := first[_MOST_CLASSES:]:
        named.append(f"other classes {sum(counts[name] for name in others):,}")
    return ", ".join(named)


def how_it_fares(figures: Mapping[str, Any]) -> str:
    """Return how a class fares as a sentence without its subject; empty if no request ended.

    It has the shares of requests in time, and of the last minute the number without targets that were not served.

    Args:
        figures: What is ``attained`` and how many were ``not_served``, for each of the spans.
    """
    said = [
        f"{share:.0%} of {ended:,} in time within {duration(span_s)}"
        for span_s, (share, ended) in zip(SHOWN_SPANS_S, figures["attained"], strict=True)
        if share is not None
    ]
    lost = figures["not_served"][0]
    counted = f"{lost:,} without targets not served within {duration(SHOWN_SPANS_S[0])}" if lost else ""
    return "; ".join(filter(None, (", ".join(said), counted)))
