"""Make the plans of a recording again, and compare them bit for bit.

A policy may hold what it learned from earlier events and plans, so it is given all of them from the beginning. Where
the oldest segments of a recording are gone, it begins with the first whole set of rows, and gets the requests that are
there then as new ones: what the policy knew besides is missing, and plans of policies that learn may differ for that
reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVGroups, KVLayout
from sloserve.core.rows import ALWAYS_KEPT, COLUMNS, Rows, State
from sloserve.engine.recording.events import Event, Lost, PlanMade, PolicyBegan, PolicyCalled, RowsSeen
from sloserve.engine.recording.folder import is_of_front_end, stem_of
from sloserve.engine.recording.plan_log import plan_fields
from sloserve.engine.recording.segments import read_segment
from sloserve.estimator.drafting import DraftFacts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.aged_turns import AgedTurns
from sloserve.lso.plan import EngineFacts, Snapshot, SwapFacts
from sloserve.lso.preemption import Holding
from sloserve.lso.standing import Standing
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import make_policy, parse_policy

_MOST_SHOWN: Final = 10
_MOST_CAPACITY: Final = 1 << 22
"""Most slots of a table that is read; no engine has as many requests."""


class AnotherQuestion(Exception):
    """The policy asked for more than it did when it was recorded."""


@dataclass
class Checked:
    """What the check of a recording found.

    Args:
        plans: Number of plans that were made again.
        repeated: Number of plans that came out the same.
        differing: Number and time of the first plans that did not, in epoch seconds.
        is_from_beginning: Whether the recording has the policy's beginning.
        lost: Whether events are missing, after which nothing can be checked.
        seconds: Time that planning took when it was recorded, of each plan.
    """

    plans: int = 0
    repeated: int = 0
    differing: list[tuple[int, float]] = field(default_factory=list)
    is_from_beginning: bool = True
    lost: bool = False
    seconds: list[float] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return what was found, in plain values."""
        quantiles = [round(1e3 * float(q), 3) for q in np.quantile(self.seconds, (0.5, 0.99))]
        return {
            "plans": self.plans,
            "repeated": self.repeated,
            "plan_ms_p50_p99": quantiles,
            "is_from_beginning": self.is_from_beginning,
            "lost": self.lost,
            "differing": [{"plan": number, "at_s": at_s} for number, at_s in self.differing],
        }

    def lines(self) -> list[str]:
        """Return what was found, for people."""
        p50_ms, p99_ms = self.plain()["plan_ms_p50_p99"]
        found = [f"plans: {self.plans}, of which {self.repeated} repeat", f"plan ms, p50 and p99: {p50_ms}, {p99_ms}"]
        found += [f"plan {number} at {at_s:.3f} s differs" for number, at_s in self.differing]
        if not self.is_from_beginning:
            found.append("the beginning is gone: a policy that learns may plan otherwise; record more MiB")
        if self.lost:
            found.append("events were lost: what follows them is not checked")
        return found


class RecordedRows(Rows):
    """Rows of a policy's table, as they were recorded."""

    def __init__(self, needs: frozenset[str], capacity: int) -> None:
        super().__init__(needs, capacity)
        self._recorded_last_seq = -1
        self._names: dict[int, list[str]] = {}

    @property
    def last_seq(self) -> int:
        return self._recorded_last_seq

    def follow(self, seen: RowsSeen) -> None:
        """Take in changes."""
        self._recorded_last_seq = seen.last_seq
        for number, names, places, values in seen.blocks:
            if seen.is_whole:
                self._names[number] = names
                whole = _array(values, names[0]).reshape(len(names), self.capacity)
                for name, column in zip(names, whole, strict=True):
                    getattr(self, name)[:] = column
                continue
            names = self._names[number]
            new = _array(values, names[0])
            of_column, slots = np.divmod(np.frombuffer(places, np.int32), self.capacity)
            for place in np.unique(of_column).tolist():
                changed = of_column == place
                getattr(self, names[place])[slots[changed]] = new[changed]


def _array(values: bytes, name: str) -> NDArray[Any]:
    """Return values of the type of a column."""
    return np.frombuffer(values, np.dtype(COLUMNS[name][0]))


class RecordedLatency:
    """Returns what the engine's latency returned, in the order of the calls."""

    def __init__(self) -> None:
        self.results: list[float | int] = []

    def step_s(self, load: StepLoad) -> float:
        return float(self._next())

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        return int(self._next())

    def _next(self) -> float | int:
        if not self.results:
            raise AnotherQuestion
        return self.results.pop(0)


class PlanCheck:
    """Gives a policy what it was given, and compares its plans."""

    def __init__(self) -> None:
        self.found = Checked()
        self._policy: Policy | None = None
        self._rows: RecordedRows | None = None
        self._layout: KVLayout | None = None
        self._latency = RecordedLatency()
        self._is_begun = False

    def take(self, event: Event) -> None:
        """Take in an event; events are given in order.

        Raises: ConfigError for a policy that is not installed, and for events that do not fit one another.
        """
        match event:
            case PolicyBegan():
                self._begin(event)
            case PolicyCalled() if self._follow(event.rows, event.at_s):
                self._call(event)
            case PlanMade() if self._follow(event.rows, event.at_s):
                self._plan(event)
            case Lost():
                self.found.lost |= self._policy is not None

    def _begin(self, event: PolicyBegan) -> None:
        """Begin with a policy, unless it is at work already."""
        before = self._policy
        if event.goes_on and before is not None:
            return
        self._policy = make_policy(*parse_policy(event.policy), seed=event.seed)
        if event.learns and before is not None:
            self._policy.learn_from(before)
        groups = tuple(KVGroups(*group) for group in event.groups)
        self._layout = KVLayout(groups, event.lookahead_tokens, event.layout_tokens)
        self._rows, self._is_begun = None, not event.goes_on
        self.found.is_from_beginning &= not event.goes_on

    def _follow(self, seen: RowsSeen, now_s: float) -> bool:
        """Take in changes of the rows; return whether all rows and the policy are known, and nothing was lost."""
        if self._policy is None or self.found.lost:
            return False
        if seen.is_whole:
            if not 0 < seen.capacity <= _MOST_CAPACITY:
                raise ConfigError(f"rows of {seen.capacity} slots; the recording is damaged")
            needs = frozenset(name for _, names, _, _ in seen.blocks for name in names)
            self._rows = RecordedRows(needs - ALWAYS_KEPT, seen.capacity)
        if self._rows is None:
            return False
        self._rows.follow(seen)
        if not self._is_begun:
            self._is_begun = True
            for slot in np.flatnonzero(self._rows.state != State.FREE).tolist():
                self._policy.arrived(self._rows, slot, now_s)
        return True

    def _call(self, event: PolicyCalled) -> None:
        self._latency.results = list(event.results)
        slots = np.frombuffer(event.slots, np.int64)
        given: list[Any] = [slots, np.frombuffer(event.tokens, np.int64)]
        if event.name != "progressed":
            given = [int(slots[0])]
        if event.name not in ("arrived", "finished", "progressed"):
            raise ConfigError(f"an event {event.name!r} of a policy is not known; record and read with one version")
        try:
            getattr(self._policy, event.name)(self._rows, *given, event.at_s)
        except Exception:  # as it did when it was recorded, or not: its plans show
            pass

    def _plan(self, event: PlanMade) -> None:
        assert self._policy is not None
        self._latency.results = list(event.results)
        try:
            made: Any = plan_fields(self._policy.plan(self._snapshot(event), event.at_s))
        except Exception:
            made = None
        found = self.found
        found.plans += 1
        found.seconds.append(event.seconds)
        if made == event.plan and not self._latency.results:
            found.repeated += 1
        elif len(found.differing) < _MOST_SHOWN:
            found.differing.append((found.plans, event.at_s))

    def _snapshot(self, event: PlanMade) -> Snapshot:
        rows, holdings = self._rows, list(event.holdings or ())
        assert rows is not None and self._layout is not None
        drafts = event.drafts
        engine = EngineFacts(
            layout=self._layout,
            step_latency=self._latency,
            swap=None if event.swap is None else SwapFacts(**event.swap),  # type: ignore[arg-type]
            drafts=None
            if drafts is None
            else DraftFacts(*drafts[:3], np.frombuffer(drafts[3]), np.frombuffer(drafts[4])),
            **event.engine,  # type: ignore[arg-type]
        )
        standing = event.standing
        shared, awaited, on_host = event.blocks
        aged, period, before_next = event.aged
        return Snapshot(
            rows,
            rows.slots_in(State.WAITING, State.PREEMPTED),
            rows.slots_in(State.RUNNING),
            engine,
            None if event.holdings is None else lambda slot: Holding(*holdings.pop(0)),
            AgedTurns(np.frombuffer(aged, np.int64), period, before_next),
            shared,
            awaited,
            on_host,
            None
            if standing is None
            else Standing(np.frombuffer(standing[0], np.int64), *(np.frombuffer(one) for one in standing[1:])),
        )


def check_plans(paths: Iterable[Path]) -> Checked:
    """Make the plans of a recording again.

    Args:
        paths: Segments of one engine, the oldest first; segments of its server's front end are passed over.

    Raises: ConfigError for files that are no segments, and for a recording without plans.
    """
    check = PlanCheck()
    for path in paths:
        if is_of_front_end(stem_of(path)):
            continue
        try:
            for event in read_segment(path):
                check.take(event)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not check.found.plans:
        raise ConfigError("the recording has no plans; sloserve serve --record plans --record-mib 256 records them")
    return check.found
