"""Settings of EconoServe in the form of its paper, and its variants by one word."""

from dataclasses import dataclass, replace

from sloserve.estimator.length.choice import check_lengths
from sloserve.scheduler.papers.shares import Shares, Tuning
from sloserve.scheduler.policy import Policy

ORDERS = ("fcfs", "paper")
PIPELINES = ("none", "hosting", "future")
REMEDIES = ("reserve", "pause", "preempt")
AUTO = "auto"
PAPER = Shares(padding=0.15, reserve=0.03, buffer=0.15)
"""The paper's for ShareGPT (Sec. 4). A tuned reserve measured worse and a tuned buffer no better than these, so only
padding is tuned by default (experiment ``econo-padding``).
"""
_RANGES = {
    "sync_tokens": (0, 4096),
    "padding": (-0.9, 4),
    "reserve": (0, 0.5),
    "buffer": (0, 4),
    "tfs_tokens": (0, 2**20),
}


@dataclass(frozen=True, slots=True)
class PaperParts:
    """The parts of EconoServe that work beside the two queues and exact allocation; see :class:`PaperSettings`."""

    sync_tokens: int
    order: str
    pipeline: str


VARIANTS = {
    "d": PaperParts(0, "fcfs", "none"),
    "sd": PaperParts(32, "fcfs", "none"),
    "sdo": PaperParts(32, "paper", "none"),
    "full": PaperParts(32, "paper", "hosting"),
}
"""EconoServe-D, -SD, -SDO and EconoServe (Sec. 4). 32 tokens are one of the paper's blocks; the paper groups by equal
predictions, which a classifier makes and an estimate of a mean or a length in tokens does not.
"""


@dataclass(frozen=True)
class PaperSettings(Policy.Settings):
    parts: str = "full"
    """``d``, ``sd``, ``sdo`` or ``full``; ``sync_tokens``, ``order`` and ``pipeline``, where given, take the place of
    what it says"""
    sync_tokens: int | None = None
    """predicted lengths are rounded up to a multiple of this, and synced; 0 for neither"""
    order: str | None = None
    """``fcfs`` or ``paper``"""
    pipeline: str | None = None
    """``none``, ``hosting`` or ``future``"""
    length: str = "predicted"
    """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
    length_error: float = 0.0
    """relative error of the oracle's lengths"""
    padding: float | str = AUTO
    """share of the predicted length that is added to it; ``auto``: by how far predictions have been off, see
    ``shares``, at first the paper's, or 0 for an oracle without error"""
    reserve: float | str = PAPER.reserve
    """share of the KV blocks that grants leave free, or ``auto``, as for ``padding``"""
    buffer: float | str = PAPER.buffer
    """share of its predicted length by which a guest should end before its host needs the span, or ``auto``, as for
    ``padding``"""
    remedy: str = "reserve"
    """for a request that outlives its grant, ``reserve`` (then pause), ``pause``, or ``preempt``: preempt it at once"""
    tfs_tokens: int = 0
    """target size of a step, 0 for the engine's token budget"""

    def __post_init__(self) -> None:
        check_lengths(self.length, self.length_error)
        for name, allowed in (
            ("parts", tuple(VARIANTS)),
            ("order", ORDERS),
            ("pipeline", PIPELINES),
            ("remedy", REMEDIES),
        ):
            word = getattr(self, name)
            if word is not None and word not in allowed:
                raise ValueError(f"{name}: {word!r} is not one of {', '.join(allowed)}")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, str):
                if value != AUTO:
                    raise ValueError(f"{name}: {value!r} is not a number or {AUTO}")
            elif value is not None and not least <= value <= most:
                raise ValueError(f"{name}: {value} is not within {least}..{most}")

    @property
    def chosen(self) -> PaperParts:
        """The parts at work."""
        single = {name: getattr(self, name) for name in ("sync_tokens", "order", "pipeline")}
        return replace(VARIANTS[self.parts], **{name: one for name, one in single.items() if one is not None})

    def tuning(self) -> Tuning:
        """Return the three shares, at their first values."""
        exact = self.length == "oracle" and self.length_error == 0.0
        first = replace(PAPER, padding=0.0) if exact else PAPER
        given = {name: getattr(self, name) for name in Shares.__slots__}
        fixed = {name: share for name, share in given.items() if share != AUTO}
        return Tuning(replace(first, **fixed), frozenset(given) - fixed.keys())
