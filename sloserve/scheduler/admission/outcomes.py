"""What predictions learn from the outcomes of the requests of one class, by their urgency."""

from collections.abc import Iterator
from enum import Enum, auto

from sloserve.estimator.conformal import ConformalQuantiles
from sloserve.scheduler.admission.decode_pace import DecodePace
from sloserve.scheduler.admission.urgency import Urgency

MAX_STALE = 64
"""Most outputs of a class by which its median length may be out of date."""


class LengthKnown(Enum):
    """The source of an output's length, by which quantiles of e2e are kept: a stated length is far surer."""

    STATED = auto()
    PREDICTED = auto()
    OF_CLASS = auto()


class Calibrations:
    """The pace of requests of one class and urgency, and the calibrations of their predictions."""

    def __init__(self, levels: tuple[float, ...]) -> None:
        """Create calibrations that have seen no outcome.

        Args:
            levels: Levels of the quantiles.
        """
        self.pace = DecodePace()
        # The prediction of TPOT is a running median already.
        self.ttft, self.tpot = ConformalQuantiles(levels), ConformalQuantiles(levels, centred=False)
        self.e2e = {known: ConformalQuantiles(levels) for known in LengthKnown}

    def set_levels(self, levels: tuple[float, ...]) -> None:
        """Give the quantiles of other levels to later requests."""
        for quantiles in (self.ttft, self.tpot, *self.e2e.values()):
            quantiles.set_levels(levels)


class ClassOutcomes:
    """What is known of one class.

    Attributes:
        id: Place of the class in the table.
        length: Median length of its outputs in tokens, as of up to ``MAX_STALE`` outputs ago, since it costs 100 us;
            ``None`` once it has to be computed again.
    """

    def __init__(self, class_id: int, levels: tuple[float, ...]) -> None:
        """Create the record of a class without outcomes.

        Args:
            class_id: Place of the class in the table.
            levels: Levels of the quantiles.
        """
        self.id = class_id
        self.length: float | None = None
        self._levels = levels
        self._seen = self._seen_since = 0
        self._kinds: dict[Urgency, Calibrations] = {}

    def set_levels(self, levels: tuple[float, ...]) -> None:
        """Give the quantiles of other levels to later requests."""
        self._levels = levels
        for kind in self._kinds.values():
            kind.set_levels(levels)

    def of(self, urgency: Urgency) -> Calibrations:
        """Return the calibrations of the requests of one urgency."""
        found = self._kinds.get(urgency)
        if found is None:
            found = self._kinds[urgency] = Calibrations(self._levels)
        return found

    def others(self, urgency: Urgency) -> Iterator[Calibrations]:
        """Yield the calibrations of the other urgencies, which stand in while one has too few outcomes."""
        return (kind for other, kind in self._kinds.items() if other is not urgency)

    def tpot_s(self, urgency: Urgency, in_flight: int) -> float | None:
        """Return the expected seconds per token while ``in_flight`` other requests are served; ``None`` if unknown."""
        own = self.of(urgency).pace.tpot_s(in_flight)
        if own is not None:
            return own
        known = [pace for kind in self.others(urgency) if (pace := kind.pace.tpot_s(in_flight)) is not None]
        return max(known, default=None)

    def saw_length(self, *, changed: bool) -> None:
        """Forget the median once enough further outputs have come to change it."""
        self._seen += 1
        self._seen_since += 1
        if changed or self._seen_since >= min(1 + self._seen // 16, MAX_STALE):
            self._seen_since = 0
            self.length = None
