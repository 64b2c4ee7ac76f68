"""How far a request has come that is not complete yet, as its client sees it: in comments of its stream, and as JSON.

Servers and the gateways of fleets use the same words. A comment is a line that readers of event streams pass over
(HTML Living Standard, Sec. 9.2.6), so it changes nothing for a client that does not look for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sloserve.core.predicted import LEVELS, Predicted, Quantiles, worst
from sloserve.core.promises import Promised
from sloserve.wire.headers import QUEUE_POSITION

COMMENT: Final = "slo-queue"
"""First word of a comment."""


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """How far one request has come.

    Args:
        slo_class: Name of its class.
        is_waiting: Whether it has no token yet.
        waited_s: Seconds from its arrival to its first token, or until now if it has none; ``None`` where the first
            token of a running request was not seen.
        position: Place among the waiting requests of its class, 1 for the next; ``None`` if it does not wait.
        remaining: Seconds from now to the first token; ``None`` where too little was observed.
        predicted: Latency that was predicted at its admission; ``None`` where too little was observed.
        promised: Promise that was given at its admission; ``None`` for none.
    """

    slo_class: str
    is_waiting: bool
    waited_s: float | None
    position: int | None = None
    remaining: Quantiles | None = None
    predicted: Predicted | None = None
    promised: Promised | None = None


def slowest(each: Iterable[RequestProgress]) -> RequestProgress | None:
    """Return the progress of a client that waits for all of these requests: the last place and the longest times.

    The client waits while none of the requests has a token. The result is ``None`` if there are no requests.
    """
    known = list(each)
    if len(known) < 2:
        return known[0] if known else None
    last = max(known, key=lambda one: one.position or 0)
    predictions = [one.predicted for one in known if one.predicted is not None]
    return RequestProgress(
        slo_class=last.slo_class,
        is_waiting=all(one.is_waiting for one in known),
        waited_s=max((one.waited_s for one in known if one.waited_s is not None), default=None),
        position=last.position,
        remaining=last.remaining,
        predicted=worst(predictions) if predictions else None,
        promised=last.promised,
    )


def comment(progress: RequestProgress) -> bytes:
    """Return a comment of an event stream that states the place and the rest of the wait, with the blank line after."""
    words = [f"position={progress.position}"] if progress.position is not None else []
    if progress.remaining is not None:
        words += [f"p50_ms={_ms(progress.remaining.median_s)}", f"p90_ms={_ms(progress.remaining.p90_s)}"]
    return f": {' '.join((COMMENT, *words))}\n\n".encode()


def as_json(request_id: str, progress: RequestProgress) -> dict[str, Any]:
    """Return the progress as the body of a response; what is not known is ``None``."""
    predicted, promised = progress.predicted, progress.promised
    return {
        "id": request_id,
        "object": "slo.request",
        "state": "waiting" if progress.is_waiting else "running",
        "class": progress.slo_class,
        "position": progress.position,
        "waited_ms": None if progress.waited_s is None else _ms(progress.waited_s),
        "remaining_ttft_ms": _quantiles(progress.remaining),
        "predicted_e2e_ms": _quantiles(None if predicted is None else predicted.e2e),
        "promised": None if promised is None else promised.level,
    }


def place_at_admission(ahead: int) -> int:
    """Return the place of a request by the number of waiting requests that it found; 0 where it found none."""
    return ahead + 1 if ahead else 0


def place_header(places: Iterable[int]) -> list[tuple[str, str]]:
    """Return the header with the last of the places of an HTTP request's requests; empty if there are none."""
    known = list(places)
    return [(QUEUE_POSITION, str(max(known)))] if known else []


def _ms(seconds: float) -> int:
    return max(round(seconds * 1e3), 0)


def _quantiles(found: Quantiles | None) -> dict[str, int] | None:
    if found is None:
        return None
    return {f"p{level * 100:g}": _ms(value) for level, value in zip(LEVELS, found.each, strict=True)}
