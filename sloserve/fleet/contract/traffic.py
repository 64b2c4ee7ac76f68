"""The recent requests of one gateway, as a value that becomes text and back.

The planner replays them with other numbers of instances. A report says how old each request is, since no two clocks are
compared, and covers as much of the window as fits MOST_REQUESTS.
"""

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from sloserve.core.slo import Targets

WINDOW_S: Final = 600.0
"""Seconds of traffic that are kept."""
MOST_REQUESTS: Final = 4096
"""Most requests of a report; a gateway that has more in the window reports the newest."""
_MOST_BYTES: Final = 1 << 21
_LEVEL: Final = 6


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request that arrived.

    Args:
        age_s: Seconds since its arrival.
        model: Model that it asks for.
        slo_class: Name of its class.
        prompt_tokens: Tokens of its prompt.
        max_tokens: Limit of its output tokens; ``None`` for no limit.
        output_tokens: Tokens of its output; fewer if it has not ended, or was cut.
        ended: Whether the output came to its end.
        targets: Targets that it has.
        is_line: Whether it is a line of a batch; else it is streamed through a gateway.
    """

    age_s: float
    model: str
    slo_class: str
    prompt_tokens: int
    max_tokens: int | None = None
    output_tokens: int = 0
    ended: bool = False
    targets: Targets = Targets()
    is_line: bool = False


@dataclass(frozen=True, slots=True)
class RecentTraffic:
    """The requests that arrived in the last seconds, the oldest first.

    Args:
        covers_s: Seconds that the requests cover; no request within them is missing.
        requests: The requests, the oldest first.
    """

    covers_s: float = 0.0
    requests: tuple[SeenRequest, ...] = ()


_Row = tuple[float, str, str, int, int | None, int, bool, float | None, float | None, float | None, float | None]
_decoder: Final = msgspec.json.Decoder(tuple[float, list[_Row]])


def to_text(traffic: RecentTraffic) -> str:
    """Return the traffic as compressed text: about 8 bytes a request."""
    rows = [
        (
            round(one.age_s, 3),
            one.model,
            one.slo_class,
            one.prompt_tokens,
            one.max_tokens,
            one.output_tokens,
            one.ended,
            one.targets.ttft_s,
            one.targets.tpot_s,
            one.targets.e2e_s,
            one.targets.tds,
        )
        for one in traffic.requests[-MOST_REQUESTS:]
    ]
    packed = zlib.compress(msgspec.json.encode((round(traffic.covers_s, 3), rows)), _LEVEL)
    return base64.b64encode(packed).decode("ascii")


def traffic_of(text: str) -> RecentTraffic | None:
    """Read a traffic report; return ``None`` if another version wrote it and this one cannot read it."""
    try:
        opener = zlib.decompressobj()
        raw = opener.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        covers_s, rows = _decoder.decode(raw)
        requests = tuple(SeenRequest(*row[:7], targets=Targets(*row[7:])) for row in rows[-MOST_REQUESTS:])
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return None
    return RecentTraffic(covers_s, requests)


def together(reports: Sequence[tuple[RecentTraffic, float]]) -> RecentTraffic:
    """Return the traffic of several gateways as one; it covers the seconds that all of the reports cover.

    Args:
        reports: The report of each gateway, with its age in seconds.
    """
    if not reports:
        return RecentTraffic()
    covers_s = min(traffic.covers_s + age_s for traffic, age_s in reports)
    requests = [replace(one, age_s=one.age_s + age_s) for traffic, age_s in reports for one in traffic.requests]
    kept = sorted((one for one in requests if one.age_s <= covers_s), key=lambda one: -one.age_s)
    return RecentTraffic(covers_s, tuple(kept))
