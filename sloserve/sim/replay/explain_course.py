"""What a recording says of one request: when what happened to it, by how much it was late, what ran beside it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sloserve.core.errors import ConfigError
from sloserve.core.finished import Latency
from sloserve.core.slo import Targets
from sloserve.engine.recording.events import Arrived, Stepped
from sloserve.engine.recording.reading import Recording
from sloserve.sim.recorded_run import class_names, in_time, latency, targets_of

BY_PLAN: Final = "preempted by the plan"
FOR_BLOCKS: Final = "preempted for lack of KV blocks"
PAUSED: Final = "paused by the plan"


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a request that had been admitted was not served, in epoch seconds."""

    kind: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Course:
    """The course of one request that ended, as recorded; times are epoch seconds.

    Args:
        request: The request as it arrived.
        slo_class: Name of the class of the request.
        targets: Targets of the request.
        admitted_s: When a step first served it; ``None`` where none did.
        first_s: When its first token was there; ``None`` where it had none.
        ended_s: When it left the engine.
        output_tokens: Tokens of its output.
        gaps: Times in which it was preempted or paused.
        late: Names of the missed targets, each with the limit and the measured value in seconds.
    """

    request: Arrived
    slo_class: str
    targets: Targets
    admitted_s: float | None
    first_s: float | None
    ended_s: float
    output_tokens: int
    gaps: tuple[Gap, ...]
    late: dict[str, tuple[float, float]]

    @property
    def late_by_s(self) -> float:
        """Seconds by which it missed its targets, the most of them; 0 for a request in time."""
        tokens = {name: max(self.output_tokens - 1, 1) for name in ("tpot", "tds")}
        return max((tokens.get(name, 1) * (had - limit) for name, (limit, had) in self.late.items()), default=0.0)

    @property
    def held_until_s(self) -> float:
        """Time up to which others held it up: its first token if that was late, else its end."""
        return self.first_s if "ttft" in self.late and self.first_s is not None else self.ended_s

    def figures(self) -> dict[str, Any]:
        """Return plain values for a report; times are seconds since its arrival."""
        began_s = self.request.at_s

        def since(at_s: float | None) -> float | None:
            return None if at_s is None else round(at_s - began_s, 6)

        return {
            "number": self.request.number,
            "class": self.slo_class,
            "prompt_tokens": self.request.prompt_tokens,
            "output_tokens": self.output_tokens,
            "arrived_at": self.request.at_s,
            "targets": self.targets.as_config(),
            "admitted_s": since(self.admitted_s),
            "first_token_s": since(self.first_s),
            "ended_s": since(self.ended_s),
            "gaps": [{"kind": one.kind, "from_s": since(one.from_s), "to_s": since(one.to_s)} for one in self.gaps],
            "missed": {name: {"limit_s": limit, "was_s": round(had, 6)} for name, (limit, had) in self.late.items()},
            "late_by_s": round(self.late_by_s, 6),
        }


def course_of(recording: Recording, number: int) -> Course:
    """Return the course of a request.

    Raises: ConfigError for a request that the recording does not have, or that has not ended in it.
    """
    request, end = recording.arrived.get(number), recording.ended.get(number)
    if request is None:
        known = f"{min(recording.arrived)} to {max(recording.arrived)}" if recording.arrived else "none"
        raise ConfigError(f"request {number}: is not in the recording, which has {known}; --late lists the late ones")
    if end is None:
        raise ConfigError(f"request {number}: had not ended when the recording was read; try again when it has")
    admitted, targets = recording.admitted.get(number), targets_of(request)
    first_s = recording.first_token_s.get(number)
    return Course(
        request,
        class_names(recording)[request.class_id],
        targets,
        first_s if admitted is None else admitted.at_s,
        first_s,
        end.at_s,
        end.output_tokens,
        tuple(sorted(_gaps(recording, number, end.at_s), key=lambda gap: gap.from_s)),
        _late(targets, latency(recording, number), end.at_s - request.at_s),
    )


def late_courses(recording: Recording) -> list[Course]:
    """Return the requests that missed a target, in order of arrival."""
    found = (course_of(recording, number) for number in recording.arrived if number in recording.ended)
    return [one for one in found if one.late]


def _late(targets: Targets, measured: Latency | None, stayed_s: float) -> dict[str, tuple[float, float]]:
    """Return the missed targets; a request without a token misses the ones that passed before its client left."""
    limits = {
        "ttft": targets.ttft_s,
        "tpot": targets.tpot_s,
        "e2e": targets.e2e_s,
        "tds": None if targets.tds is None else 1.0 / targets.tds,
    }
    if measured is None:
        waited = {name: limit for name, limit in limits.items() if limit is not None and name in ("ttft", "e2e")}
        return {name: (limit, stayed_s) for name, limit in waited.items() if stayed_s > limit}
    had = {"ttft": measured.ttft_s, "tpot": measured.tpot_s, "e2e": measured.e2e_s, "tds": measured.tpot_s}
    each = {name.removesuffix("_s"): Targets(**{name: getattr(targets, name)}) for name in targets.stated}
    missed = [name for name, one in each.items() if not in_time(one, measured)]
    return {name: (limit, had[name]) for name in missed if (limit := limits[name]) is not None}


def _gaps(recording: Recording, number: int, ended_s: float) -> Iterator[Gap]:
    again_s = [one.at_s for one in recording.admitted_again if one.number == number]
    for lost in recording.preempted:
        if lost.number == number:
            to_s = next((at_s for at_s in again_s if at_s > lost.at_s), ended_s)
            yield Gap(BY_PLAN if lost.planned else FOR_BLOCKS, lost.at_s, to_s)
    turns = [one for one in recording.paused if one.number == number]
    for place, turn in enumerate(turns):
        if turn.on:
            yield Gap(PAUSED, turn.at_s, turns[place + 1].at_s if place + 1 < len(turns) else ended_s)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Requests that the engine served while one was held up.

    Args:
        requests: The requests, in order of arrival.
        classes: Name of the class of each.
        tokens: Tokens of prompt and output of each; an output that had not ended counts as nothing.
    """

    requests: Sequence[Arrived]
    classes: Sequence[str]
    tokens: Sequence[int]

    def numbers(self, slo_class: str | None = None, tenant: int | None = None) -> frozenset[int]:
        """Return the numbers of the requests of a class and of a tenant; ``None`` for every class or tenant."""
        pairs = zip(self.requests, self.classes, strict=True)
        return frozenset(
            one.number
            for one, name in pairs
            if (slo_class is None or name == slo_class) and (tenant is None or one.tenant == tenant)
        )

    def by_class(self) -> dict[str, dict[str, int]]:
        """Return requests and tokens by class, the class with the most tokens first."""
        counts, tokens = Counter(self.classes), Counter[str]()
        for name, size in zip(self.classes, self.tokens, strict=True):
            tokens[name] += size
        return {name: {"requests": counts[name], "tokens": size} for name, size in tokens.most_common()}

    def tokens_of(self, numbers: frozenset[int]) -> int:
        """Return the tokens of some of the requests."""
        pairs = zip(self.requests, self.tokens, strict=True)
        return sum(size for one, size in pairs if one.number in numbers)


def ahead_of(recording: Recording, course: Course) -> Ahead:
    """Return the requests that the engine served at some time while a request was held up."""
    names, rows = class_names(recording), []
    from_s, to_s = course.request.at_s, course.held_until_s
    for number, one in recording.arrived.items():
        admitted = recording.admitted.get(number)
        end = recording.ended.get(number)
        if number == course.request.number or admitted is None or admitted.at_s >= to_s:
            continue
        if end is None or end.at_s > from_s:
            output = 0 if end is None else end.output_tokens
            rows.append((one, names[one.class_id], one.prompt_tokens + output))
    rows.sort(key=lambda row: row[0].at_s)
    return Ahead([one for one, _, _ in rows], [name for _, name, _ in rows], [size for _, _, size in rows])


def steps_within(recording: Recording, from_s: float, to_s: float) -> list[Stepped]:
    """Return the steps that ran at some time between two times."""
    return [step for step in recording.steps if step.end_s > from_s and step.start_s < to_s]
