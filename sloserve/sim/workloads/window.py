"""The part of a workload that the seeds draw from, so that what is chosen on one part can be judged on another."""

from dataclasses import dataclass

from sloserve.core import numbers
from sloserve.core.errors import ConfigError

_SEEDS = 2**20
"""The number of seeds of a whole generator.

The window ``0.5:1`` begins with half of this number. A window holds far more seeds than are asked for, so windows that
do not overlap never share a draw.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a workload between two shares of its requests, 0 to 1.

    Args:
        start: Share of the requests before the part.
        end: Share of the requests before the end of the part.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.start < self.end <= 1.0:
            raise ConfigError(f"--window: {self} is not a part of 0:1, such as 0:0.5")

    def __str__(self) -> str:
        return f"{self.start:g}:{self.end:g}"

    @property
    def seed_offset(self) -> int:
        """The number that is added to the seeds of a generator; 0 for a window that begins at 0."""
        return round(self.start * _SEEDS)

    def halves(self) -> tuple["Window", "Window"]:
        """Return the earlier and the later half."""
        middle = (self.start + self.end) / 2.0
        return Window(self.start, middle), Window(middle, self.end)


WHOLE = Window(0.0, 1.0)


def parse_window(text: str) -> Window:
    """Return the window that a text ``start:end`` describes. Raises: ConfigError."""
    try:
        start, end = map(numbers.number, text.split(":"))
    except ValueError:
        raise ConfigError(f"--window: {text!r} is not of the form start:end, such as 0:0.5") from None
    return Window(start, end)
