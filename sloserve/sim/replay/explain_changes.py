"""Facts that might have made a request late, each of which a replay can change alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from sloserve.core.slo import SLO
from sloserve.engine.recording.reading import Recording
from sloserve.scheduler.registry import parse_policy
from sloserve.sim.replay.engine_of import FittedSteps
from sloserve.sim.replay.explain_course import BY_PLAN, FOR_BLOCKS, Ahead, Course, steps_within
from sloserve.sim.replay.replay import Replayed
from sloserve.sim.replay.traffic import Traffic
from sloserve.sim.run_name import RunName

LONG: Final = 2.0
"""A step that takes this many times as long as its load lets expect is a long one."""
MORE: Final = 1.25
"""How many times as many places or KV blocks a change gives."""
_ENDLESS: Final = 100
"""How many times as many KV blocks stand for enough of them."""
_FEW_FREE: Final = 0.05
"""Share of the KV blocks below which few are free."""
_MOST_CLASSES: Final = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One fact that is other than it was.

    Args:
        kind: What kind of fact it is, for scripts.
        says: The change, as the end of a sentence that begins with "would have been in time".
        without: Numbers of the requests that do not come.
        policy: The policy that runs; ``None`` for the one that ran.
        max_num_seqs: vLLM's flag; ``None`` as it was.
        kv_blocks: Blocks of the KV cache; ``None`` as it was.
        slo_class: Name of the class in which the request comes; ``None`` as it was.
        usual_steps: Whether steps that took :data:`LONG` times as long as usual, while the request was there, take the
            usual time.
    """

    kind: str
    says: str
    without: frozenset[int] = frozenset()
    policy: str | None = None
    max_num_seqs: int | None = None
    kv_blocks: int | None = None
    slo_class: str | None = None
    usual_steps: bool = False

    def made(self, replayed: Replayed, course: Course) -> Replayed:
        """Return what is replayed, with this change."""
        recording, fitted, asked = replayed.recording, replayed.fitted, replayed.traffic
        if self.kv_blocks is not None:
            engine = {**recording.head.engine, "kv_blocks": self.kv_blocks}
            recording = replace(recording, head=msgspec.structs.replace(recording.head, engine=engine))
        if self.usual_steps:
            fitted = usual(fitted, course.request.at_s, course.ended_s)
        if self.without:
            asked = _without(asked, self.without)
        if self.slo_class is not None:
            asked = _in_class(asked, course.request.number, self.slo_class)
        return replace(replayed, recording=recording, fitted=fitted, traffic=asked)

    def run_name(self, ran: str) -> str:
        """Return the name of the run, where ``ran`` is the policy that ran."""
        name = RunName.parse(ran if self.policy is None else self.policy)
        return str(name if self.max_num_seqs is None else name.with_option("max_num_seqs", self.max_num_seqs))


def usual(fitted: FittedSteps, from_s: float, to_s: float) -> FittedSteps:
    """Return step times of which the long ones between two times, in epoch seconds, are the usual ones."""
    is_long = (fitted.ratio >= LONG) & (fitted.end_s > from_s) & (fitted.end_s - fitted.ratio * fitted.fitted_s < to_s)
    return replace(fitted, ratio=np.where(is_long, float(np.median(fitted.ratio)), fitted.ratio))


def long_steps(fitted: FittedSteps, course: Course) -> tuple[int, float]:
    """Return how many steps took :data:`LONG` times their usual time beside a request, and the seconds lost by them."""
    other = usual(fitted, course.request.at_s, course.ended_s)
    lost = (fitted.ratio - other.ratio) * fitted.fitted_s
    return int(np.count_nonzero(lost)), float(lost.sum())


def _without(asked: Traffic, numbers: frozenset[int]) -> Traffic:
    gone = {f"r{number}" for number in numbers}
    kept = [i for i, one in enumerate(asked.requests) if one.request_id not in gone]
    return replace(
        asked,
        requests=[asked.requests[i] for i in kept],
        reached_s=[asked.reached_s[i] for i in kept],
        left_s={one: at_s for one, at_s in asked.left_s.items() if one not in gone},
    )


def _in_class(asked: Traffic, number: int, name: str) -> Traffic:
    requests = [
        replace(one, slo=SLO(asked.classes[name], one.slo.targets)) if one.request_id == f"r{number}" else one
        for one in asked.requests
    ]
    return replace(asked, requests=requests)


def alone(asked: Traffic, course: Course) -> Change:
    """Return the change that nothing but the request comes, by which a request is known that no order could save."""
    others = frozenset(int(one.request_id[1:]) for one in asked.requests) - {course.request.number}
    return Change("alone", "with the engine to itself", without=others)


def changes(recording: Recording, fitted: FittedSteps, asked: Traffic, course: Course, ahead: Ahead) -> list[Change]:
    """Return the facts to change, each of which could have a part in why a request was late."""
    return [
        *_fewer(recording, course, ahead),
        *_larger(recording, course),
        *_usual_steps(fitted, course),
        *_not_preempted(recording, course),
        *_other_class(asked, course),
        *_policies(asked),
    ]


def _fewer(recording: Recording, course: Course, ahead: Ahead) -> Iterator[Change]:
    """Yield changes without requests that were served before or beside it: each set once, the smallest first."""
    seen = set[frozenset[int]]()
    for kind, which, numbers in sorted(_sets(recording, course, ahead), key=lambda one: ahead.tokens_of(one[2])):
        if numbers and numbers not in seen:
            seen.add(numbers)
            tokens = f"{ahead.tokens_of(numbers):,} tokens"
            size = f"of {tokens}" if len(numbers) == 1 else f"{len(numbers)} with {tokens}"
            yield Change(kind, f"without {which}, {size}", without=numbers)


def _sets(recording: Recording, course: Course, ahead: Ahead) -> Iterator[tuple[str, str, frozenset[int]]]:
    """Yield sets of requests that were served beside a request: kind, words, and their numbers."""
    if ahead.requests:
        largest = ahead.requests[int(np.argmax(ahead.tokens))]
        yield "without_largest", "the largest request beside it", frozenset({largest.number})
    tenants = {one.tenant for one in ahead.requests if one.tenant}
    if len(tenants) > 1:
        most = max(sorted(tenants), key=lambda tenant: ahead.tokens_of(ahead.numbers(tenant=tenant)))
        own = most == course.request.tenant
        which = "the other requests of its own tenant" if own else f"the requests of tenant {most:016x}"
        yield "without_tenant", which, ahead.numbers(tenant=most)
    arrived_s = course.request.at_s
    free_s = [step.end_s for step in recording.steps if not step.waiting and step.end_s <= arrived_s]
    if free_s:
        burst = frozenset(one.number for one in ahead.requests if free_s[-1] < one.at_s <= arrived_s)
        yield "without_burst", f"the requests of the {arrived_s - free_s[-1]:.1f} s before it, with a queue", burst
    for name in list(ahead.by_class())[:_MOST_CLASSES]:
        yield "without_class", f"the {name} requests beside it", ahead.numbers(name)


def _larger(recording: Recording, course: Course) -> Iterator[Change]:
    facts = recording.head.engine
    places, blocks = int(facts["max_num_seqs"]), int(facts["kv_blocks"])
    held = steps_within(recording, course.request.at_s, course.held_until_s)
    if any(step.running >= places and step.waiting for step in held):
        more = max(int(MORE * places), places + 1)
        yield Change("places", f"with --max-num-seqs {more} in place of {places}", max_num_seqs=more)
    if any(step.free_blocks < _FEW_FREE * blocks and step.waiting for step in held) or any(
        gap.kind == FOR_BLOCKS for gap in course.gaps
    ):
        more = int(MORE * blocks)
        yield Change("kv_blocks", f"with {more:,} KV blocks in place of {blocks:,}", kv_blocks=more)


def _usual_steps(fitted: FittedSteps, course: Course) -> Iterator[Change]:
    count, lost_s = long_steps(fitted, course)
    if count:
        steps = "the step that was" if count == 1 else f"the {count} steps that were"
        says = f"if {steps} {LONG:g} or more times as long as usual, {lost_s:.2f} s in sum, had been as usual"
        yield Change("usual_steps", says, usual_steps=True)


def _not_preempted(recording: Recording, course: Course) -> Iterator[Change]:
    kinds = {gap.kind for gap in course.gaps}
    if FOR_BLOCKS in kinds:
        blocks = _ENDLESS * int(recording.head.engine["kv_blocks"])
        yield Change("not_preempted", "if it had not been preempted, with KV blocks for all", kv_blocks=blocks)
    if BY_PLAN in kinds:
        spans = [(gap.from_s, gap.to_s) for gap in course.gaps if gap.kind == BY_PLAN]
        served = frozenset(
            number
            for number, one in recording.admitted.items()
            if number != course.request.number and any(from_s <= one.at_s < to_s for from_s, to_s in spans)
        )
        if served:
            says = f"if it had not been preempted, without the {len(served)} served in its place"
            yield Change("not_preempted", says, without=served)


def _other_class(asked: Traffic, course: Course) -> Iterator[Change]:
    names = [one.name for one in asked.classes if one.rank < asked.classes[course.slo_class].rank]
    if names:
        yield Change("class", f"in class {names[-1]} in place of {course.slo_class}", slo_class=names[-1])


def _policies(asked: Traffic) -> Iterator[Change]:
    ran = parse_policy(asked.policy)[0]
    for name in ("edf", "auto"):
        if name != ran:
            yield Change("policy", f"under {name} in place of {asked.policy}", policy=name)
