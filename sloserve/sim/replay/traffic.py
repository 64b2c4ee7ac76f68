"""The requests of a recording as a workload, of which a policy sees what it could know when it ran."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError
from sloserve.core.promises import MOST_LEVEL, PromiseWish
from sloserve.core.request import OUTPUT_ID, WorkloadRequest
from sloserve.core.slo import SLO, ClassTable, Targets
from sloserve.core.tasks import TaskCall
from sloserve.engine.recording.events import ABORTED, HASH_BYTES, Arrived
from sloserve.engine.recording.reading import Recording
from sloserve.estimator.length.kaplan_meier import SurvivalCurve, survival_curve
from sloserve.estimator.length.remaining import PRIOR_MEAN_TOKENS, PRIOR_WEIGHT
from sloserve.scheduler.settings import KEY, plugin_settings
from sloserve.sim.recorded_run import stretch_hashes, targets_of
from sloserve.sim.workloads.seeding import stream

WARM_UP_S: Final = 600.0
"""Most seconds before the window that are replayed as well, so that it begins with an engine at work."""
_BETWEEN_STEPS_S: Final = 2e-3
"""Seconds within which requests are taken in after a step; a request that came later found the engine idle."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in epoch seconds of the engine's clock, from ``begin_s`` on and before ``end_s``."""

    begin_s: float
    end_s: float

    def __contains__(self, at_s: float) -> bool:
        return self.begin_s <= at_s < self.end_s


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What an engine was asked within a span, and before it to warm up.

    Times of requests are seconds from ``epoch_s``.

    Args:
        requests: Requests in the order in which they reached the engine.
        reached_s: When each of them reached the engine, in the same order.
        left_s: When clients left before their output was complete, by the id of the request.
        judged: Ids of the requests by which a replay is judged: they arrived within the span.
        unfinished: Number of requests that had not ended; the rest of their outputs is drawn.
        refused: Number of requests that the front end refused within the span; they are not replayed.
        epoch_s: Epoch seconds at which a replay begins.
        classes: Classes of the requests.
        policy: The policy that ran.
    """

    requests: Sequence[WorkloadRequest]
    reached_s: Sequence[float]
    left_s: dict[str, float]
    judged: frozenset[str]
    unfinished: int
    refused: int
    epoch_s: float
    classes: ClassTable
    policy: str


def span_of(recording: Recording, last_s: float | None) -> Span:
    """Return the last ``last_s`` seconds of a recording in which one policy was at work; ``None`` for all of them.

    The result begins once the requests have ended that were there before the oldest segment, since it is not known how
    long they are.

    Raises: ConfigError for a recording without requests or steps.
    """
    if not recording.arrived or not recording.steps:
        raise ConfigError("the recording has no requests or no steps yet; there is nothing to replay")
    end_s = max(recording.steps[-1].end_s, max(one.at_s for one in recording.arrived.values()))
    begin_s = min(one.at_s for one in recording.arrived.values())
    if last_s is not None:
        begin_s = max(begin_s, end_s - last_s)
    changed_s = [change.at_s for change in recording.policies if change.at_s < end_s]
    unknown = set(recording.head.live).difference(recording.arrived).intersection(recording.ended)
    unknown_s = [recording.ended[number].at_s for number in unknown]
    return Span(max([begin_s, *changed_s, *unknown_s]), end_s + 1e-6)


def policy_of(recording: Recording, span: Span) -> str:
    """Return the text of the policy at work in a span."""
    before = [change.policy for change in recording.policies if change.at_s <= span.begin_s]
    return before[-1] if before else recording.head.policy


def recorded_classes(recording: Recording) -> ClassTable:
    """Return the classes of the server that was recorded."""
    settings = recording.head.settings
    kept = {name: settings[name] for name in ("classes", "default_class")}
    return plugin_settings({KEY: kept}).classes


def traffic(
    recording: Recording,
    span: Span,
    *,
    seed: int = 0,
    slos: ClassTable | None = None,
    start_s: float | None = None,
) -> Traffic:
    """Return the requests of a recording that reached the engine before the end of a span.

    An output that had not ended is as long as its class lets expect: the rest is drawn from the survival curve of the
    class. A client that left leaves at the same time in a replay. Where it is not known whether a client left or a stop
    string was met, the output has the tokens that it had.

    Args:
        recording: The recording.
        span: The stretch of time by which replays are judged.
        seed: Seed of the drawn lengths.
        slos: Classes with targets in place of the recorded ones; ``None`` keeps the targets that requests had.
        start_s: Epoch seconds at which a replay begins; ``None`` for a while before the span.
    """
    epoch_s = _start_s(recording, span) if start_s is None else start_s
    classes = recorded_classes(recording)
    names = classes.names
    lengths, contents = _Lengths(recording, seed), _Contents(recording)
    reached = _Reached(recording)
    caches = bool(recording.head.engine["enable_prefix_caching"])
    rows: list[tuple[float, WorkloadRequest]] = []
    left_s: dict[str, float] = {}
    judged, unfinished = set[str](), 0
    for number, one in recording.arrived.items():
        ids = contents.ids(one) if caches else ()  # also of earlier requests, which this one may repeat
        reached_s = reached.of(one)
        if not epoch_s <= reached_s < span.end_s:
            continue
        end = recording.ended.get(number)
        request_id = f"r{number}"
        if end is None:
            unfinished += 1
        elif end.reason == ABORTED or not (end.completed or end.output_tokens):
            left_s[request_id] = end.at_s - epoch_s
        request = _request(one, request_id, epoch_s, classes, names)
        request = replace(
            request,
            output_tokens=lengths.of(number),
            prefix_ids=ids,
            prefix_block_tokens=contents.block_tokens,
        )
        if slos is not None:
            request = replace(request, slo=slos.slo(request.task if request.task in slos else None, Targets()))
        rows.append((reached_s - epoch_s, request))
        if one.at_s in span:
            judged.add(request_id)
    rows.sort(key=lambda row: row[0])
    return Traffic(
        [request for _, request in rows],
        [reached_s for reached_s, _ in rows],
        left_s,
        frozenset(judged),
        unfinished,
        sum(one.at_s in span for one in recording.refused),
        epoch_s,
        classes if slos is None else slos,
        policy_of(recording, span),
    )


def _start_s(recording: Recording, span: Span) -> float:
    """Return when a replay begins: at an idle moment before the span if there is one within :data:`WARM_UP_S`."""
    earliest_s = max(min(one.at_s for one in recording.arrived.values()), span.begin_s - WARM_UP_S)
    idle_s = [
        one.end_s
        for one, after in zip(recording.steps, recording.steps[1:], strict=False)
        if not one.waiting and one.running <= 1 and after.start_s > one.end_s + 0.05
    ]
    warm = [at_s for at_s in idle_s if earliest_s <= at_s <= span.begin_s - WARM_UP_S / 2]
    return warm[-1] if warm else earliest_s


def _request(
    one: Arrived, request_id: str, epoch_s: float, classes: ClassTable, names: Sequence[str]
) -> WorkloadRequest:
    slo_class = classes[names[one.class_id]]
    call = None
    if one.task:
        due_s = None if one.task_due_s is None else one.task_due_s - epoch_s
        call = TaskCall(str(one.task), due_s, one.task_calls, one.task_last)
    return WorkloadRequest(
        request_id=request_id,
        arrival_s=one.at_s - epoch_s,
        prompt_tokens=one.prompt_tokens,
        output_tokens=1,
        slo=SLO(slo_class, targets_of(one), _promise_of(one)),
        task=slo_class.name,
        max_tokens=one.max_tokens,
        priority=one.priority,
        tenant=str(one.tenant) if one.tenant else "",
        adapter=str(one.adapter) if one.adapter else "",
        call=call,
    )


def _promise_of(one: Arrived) -> PromiseWish | None:
    """Return the promise that a request was given; how probable it was is not recorded."""
    if one.first_from_s is None:
        return None
    return PromiseWish(MOST_LEVEL, falls_back=True, given_after_s=max(one.first_from_s - one.at_s, 0.0))


class _Reached:
    """When requests reached the engine's process.

    The scheduler takes in requests between two steps, and records that time. A request that came while a step ran
    waited for that step. It came at some time since the step began or the request arrived at the server, on average in
    the middle.
    """

    def __init__(self, recording: Recording) -> None:
        ends_s = np.array([step.end_s for step in recording.steps])
        self._ends_s, self._begins_s = ends_s, np.array([step.start_s for step in recording.steps])

    def of(self, request: Arrived) -> float:
        """Return the epoch seconds at which a request reached the engine."""
        if request.reached_s is None:
            return request.at_s
        after = int(np.searchsorted(self._ends_s, request.reached_s))
        if not after or request.reached_s - self._ends_s[after - 1] > _BETWEEN_STEPS_S:
            return request.reached_s
        since_s = max(request.at_s, float(self._begins_s[after - 1]))
        return (min(since_s, request.reached_s) + request.reached_s) / 2.0


class _Lengths:
    """Lengths of the outputs: as recorded, or drawn for requests that had not ended."""

    def __init__(self, recording: Recording, seed: int) -> None:
        self._recording, self._seed = recording, seed
        self._step_end_s: FloatArray = np.array([step.end_s for step in recording.steps])
        self._curves: dict[int, SurvivalCurve] = {}

    def of(self, number: int) -> int:
        end = self._recording.ended.get(number)
        if end is None:
            return self._drawn(number, self._so_far(number))
        if end.reason == ABORTED or not end.output_tokens:
            return self._drawn(number, end.output_tokens)
        return end.output_tokens

    def _so_far(self, number: int) -> int:
        """Return about how many tokens a request had: it gets one from each step, unless it is paused or preempted."""
        first_s = self._recording.first_token_s.get(number)
        if first_s is None:
            return 0
        return int(self._step_end_s.size - np.searchsorted(self._step_end_s, first_s))

    def _drawn(self, number: int, so_far: int) -> int:
        request = self._recording.arrived[number]
        limit = request.max_tokens
        if limit is not None:
            so_far = min(so_far, limit - 1)
        chance = np.array([stream(self._seed, f"replay/{number}").random()])
        rest = float(self._curve(request.class_id).quantile_after(np.array([max(so_far, 0)]), chance)[0])
        tokens = max(so_far + int(rest), 1)
        return tokens if limit is None else min(tokens, limit)

    def _curve(self, class_id: int) -> SurvivalCurve:
        if class_id not in self._curves:
            arrived, ended = self._recording.arrived, self._recording.ended
            of_class = [number for number, one in arrived.items() if one.class_id == class_id]
            done = [end.output_tokens for n in of_class if (end := ended.get(n)) and end.output_tokens]
            cut = [so_far for n in of_class if n not in ended and (so_far := self._so_far(n))]
            self._curves[class_id] = survival_curve(
                np.array(done, np.int64),
                np.array(cut, np.int64),
                prior_mean_tokens=PRIOR_MEAN_TOKENS,
                prior_weight=PRIOR_WEIGHT,
            )
        return self._curves[class_id]


class _Contents:
    """Ids of the blocks of prompts, so that prompts share in a replay what they shared.

    A recording identifies whole stretches of several blocks. The blocks of a prompt after its last whole stretch are
    its own, and tokens after its last whole block count as output: a prompt that repeats a request and its output, as
    the next turn of a chat does, then has the ids of both.
    """

    def __init__(self, recording: Recording) -> None:
        stretch, block = recording.head.stretch_tokens, int(recording.head.engine["block_size"])
        self.block_tokens = block if stretch % block == 0 else stretch
        self._per_stretch = stretch // self.block_tokens
        self._arrived = recording.arrived
        self._ids_of: dict[bytes, tuple[int, ...]] = {}
        self._own: dict[int, list[int]] = {}
        self._last_id = 0
        self._output_of: dict[bytes, tuple[int, int]] = {}  # a request, and the place of a stretch of it
        for number, end in recording.ended.items():
            before = len(recording.arrived[number].prompt) // HASH_BYTES if number in recording.arrived else 0
            for place, one in enumerate(stretch_hashes(end.contents)):
                self._output_of.setdefault(one, (number, before + place))

    def ids(self, request: Arrived) -> tuple[int, ...]:
        """Return the ids of the blocks of a prompt; requests are asked for in the order of their arrival."""
        found: list[int] = []
        for one in stretch_hashes(request.prompt):
            if one not in self._ids_of:
                self._ids_of[one] = self._of_output(one) or tuple(self._new_id() for _ in range(self._per_stretch))
            found += self._ids_of[one]
        own = [self._new_id() for _ in range(request.prompt_tokens // self.block_tokens - len(found))]
        self._own[request.number] = own
        return (*found, *own, OUTPUT_ID)

    def _of_output(self, stretch: bytes) -> tuple[int, ...]:
        """Return the ids of a stretch that ends within the output of an earlier request; none for any other."""
        number, place = self._output_of.get(stretch, (0, 0))
        if number not in self._own:
            return ()
        begins = len(self._arrived[number].prompt) // HASH_BYTES * self._per_stretch
        own, first = self._own[number], place * self._per_stretch - begins
        return tuple(own[i] if i < len(own) else OUTPUT_ID for i in range(first, first + self._per_stretch))

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id
