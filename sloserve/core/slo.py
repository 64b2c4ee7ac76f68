"""What a request asks for: latency targets, and the service class that supplies defaults.

Targets are durations from arrival (TTFT, end-to-end) or between tokens (TPOT), in seconds, or a speed in tokens per
second (TDS, token delivery speed: how fast the reader digests). Any subset may be given; an absent one is ``None`` and
promises nothing.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.promises import PromiseWish

MAX_TARGET_S = 7 * 24 * 3600.0
"""Longest duration a target may ask for: a week. Longer ones are typing errors (milliseconds for seconds)."""

MAX_TDS = 10_000.0
"""Fastest delivery speed, tokens/s, that a target may ask for; no engine streams one request faster."""


DUE_NOW_S = 1e-3
"""A TTFT target up to this says that the first token is due already, not that it could come in time."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of one request; ``None`` for each that it does not have.

    Args:
        ttft_s: Seconds from arrival to first token.
        tpot_s: Mean seconds per output token after the first.
        e2e_s: Seconds from arrival to last token.
        tds: Tokens per second that the user digests (Andes, Sec. 3.1).
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    tds: float | None = None

    def __post_init__(self) -> None:
        for name in _TARGETS:
            value = getattr(self, name)
            limit = MAX_TDS if name == "tds" else MAX_TARGET_S
            if value is not None and not (math.isfinite(value) and 0.0 < value <= limit):
                raise ValueError(f"{name}: {value!r} is not a positive number up to {limit:.0f}")

    def __bool__(self) -> bool:
        """Return whether any target is set."""
        return not (self.ttft_s is None and self.tpot_s is None and self.e2e_s is None and self.tds is None)

    @property
    def stated(self) -> tuple[str, ...]:
        """Names of the targets that are set."""
        return tuple(name for name in _TARGETS if getattr(self, name) is not None)

    def as_config(self) -> dict[str, float]:
        """Return the targets that are set, as on the wire and in configuration: milliseconds, and tokens per second."""
        limits_ms = {f"{name[:-2]}_ms": getattr(self, name) * 1e3 for name in self.stated if name != "tds"}
        return limits_ms if self.tds is None else limits_ms | {"tds": self.tds}

    @property
    def pace_s(self) -> float | None:
        """Seconds a token may take after the first: min(TPOT, 1 / TDS); ``None`` where neither is set."""
        paces_s = [pace for pace in (self.tpot_s, 1.0 / self.tds if self.tds else None) if pace is not None]
        return min(paces_s, default=None)

    def next_s(self, *, begun: bool = False) -> float | None:
        """Return the seconds from arrival to the next deadline, which orders the request while it is held back.

        Until the first token that is the earlier of TTFT and e2e; afterwards it is the e2e target alone. The result is
        ``None`` if nothing is promised.

        Args:
            begun: Whether the first token has been emitted.
        """
        binding = (self.e2e_s,) if begun else (self.ttft_s, self.e2e_s)
        return min((limit_s for limit_s in binding if limit_s is not None), default=None)

    def left(self, elapsed_s: float, *, begun: bool) -> "Targets":
        """Return the rest of these targets ``elapsed_s`` seconds after the arrival of a request.

        A duration that has passed is due now. Targets for the pace stay as they are.

        Args:
            elapsed_s: Seconds since the arrival.
            begun: Whether the first token has been emitted, so that the TTFT target is over.
        """

        def rest(limit_s: float | None) -> float | None:
            return None if limit_s is None else max(limit_s - elapsed_s, DUE_NOW_S)

        return Targets(None if begun else rest(self.ttft_s), self.tpot_s, rest(self.e2e_s), self.tds)

    def over(self, default: "Targets") -> "Targets":
        """Return these targets, and for targets that are not set the ones of ``default``."""
        return Targets(*(getattr(self if getattr(self, name) is not None else default, name) for name in _TARGETS))

    def no_tighter_than(self, limit: "Targets") -> "Targets":
        """Return these targets, each at least as lax as in ``limit``, without targets that ``limit`` does not have."""
        own = {name: getattr(self, name) for name in _TARGETS}
        bounded = {}
        for name, value in own.items():
            bound = getattr(limit, name)
            if value is not None and bound is not None:
                bounded[name] = min(value, bound) if name == "tds" else max(value, bound)
        return Targets(**bounded)


_TARGETS = tuple(f.name for f in fields(Targets))
"""Names of the targets, looked up once: a simulation makes targets by the hundred thousand."""


@dataclass(frozen=True, slots=True)
class SLOClass:
    """A service class: default targets, rank among classes, and the age from which overtaking a request is bounded.

    Args:
        rank: Rank of the class; a lower rank is more urgent.
        aged_after_s: Seconds of waiting after which the adapter's ageing guard counts a request as aged.
        promise: Promise that requests of the class ask for unless they state otherwise; ``None`` for no promise.
    """

    name: str
    rank: int
    targets: Targets = field(default_factory=Targets)
    aged_after_s: float = 60.0
    promise: PromiseWish | None = None

    def as_config(self) -> dict[str, Any]:
        """Return the plain values of one entry of the setting ``classes``."""
        asked = {} if self.promise is None else {"promise": self.promise.level}
        if self.promise is not None and self.promise.falls_back:
            asked["promise_fallback"] = True
        return {"rank": self.rank, "aged_after_s": self.aged_after_s, **self.targets.as_config(), **asked}


@dataclass(frozen=True, slots=True)
class SLO:
    """What one request asks for.

    Args:
        slo_class: Class of the request.
        targets: Targets of the request after the class's defaults were filled in.
        promise: Promise that it asks for, if it has targets; ``None`` for none.
    """

    slo_class: SLOClass
    targets: Targets
    promise: PromiseWish | None = None


class ClassTable:
    """The service classes of one deployment, most urgent first, and the class of a request that names none."""

    def __init__(self, classes: Mapping[str, SLOClass], default: str) -> None:
        """Create a table.

        Args:
            classes: The classes by name; classes of equal rank keep their order.
            default: Name of the class of requests that name none.
        """
        if default not in classes:
            raise ConfigError(f"default class {default!r} is not one of {', '.join(classes)}")
        self._classes = dict(sorted(classes.items(), key=lambda item: item[1].rank))
        self.default = self._classes[default]

    def __iter__(self) -> Iterator[SLOClass]:
        return iter(self._classes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._classes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassTable) and (tuple(self), self.default) == (tuple(other), other.default)

    def __hash__(self) -> int:
        return hash((tuple(self), self.default))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all classes, the most urgent first."""
        return tuple(self._classes)

    def __getitem__(self, name: str) -> SLOClass:
        """Return the class of a name.

        Raises: KeyError for an unknown class; callers turn it into their own message.
        """
        return self._classes[name]

    def slo(self, name: str | None, targets: Targets, promise: PromiseWish | None = None) -> SLO:
        """Return the SLO of a request that states ``targets`` of its own.

        Args:
            name: Name of the request's class; ``None`` for the default class.
            targets: The targets that the request states; the class supplies the others.
            promise: The promise that the request asks for; ``None`` for the promise of its class.
        """
        slo_class = self.default if name is None else self._classes[name]
        wish = promise or slo_class.promise
        return SLO(slo_class, targets.over(slo_class.targets), None if wish is None or not wish.level else wish)

    def as_config(self) -> dict[str, Any]:
        """Return plain values, as the settings ``classes`` and ``default_class`` have them; they travel as JSON.

        A built-in class that is not in the table has the value ``None``, which removes it.
        """
        removed = {name: None for name in DEFAULT_CLASSES.names if name not in self}
        return {"classes": {c.name: c.as_config() for c in self} | removed, "default_class": self.default.name}


def is_late(targets: Targets, age_s: float, *, begun: bool) -> bool:
    """Return whether a request of this age that has not ended has missed a target for its first or last token.

    Args:
        targets: Targets of the request.
        age_s: Seconds since its arrival.
        begun: Whether its first token has been emitted.
    """
    limit_s = targets.next_s(begun=begun)
    return limit_s is not None and age_s > limit_s


def _default_classes() -> dict[str, SLOClass]:
    return {
        c.name: c
        for c in (
            SLOClass("priority", rank=0, aged_after_s=30.0),
            SLOClass("interactive", rank=1, aged_after_s=60.0),
            SLOClass("batch", rank=2, aged_after_s=600.0),
            SLOClass("background", rank=3, aged_after_s=3600.0),
        )
    }


DEFAULT_CLASSES = ClassTable(_default_classes(), default="interactive")
"""The built-in classes, over which settings lay theirs; none of them has targets of its own."""
