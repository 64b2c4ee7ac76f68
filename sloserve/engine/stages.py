"""Stages in which the requests of an engine spend their time: waiting, running, preempted, paused.

A request is in one of them at a time, so the times add up to its latency. Only changes are noted: a request that goes
on as before costs a step nothing. A change counts from the start of the step that was scheduled with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from sloserve.core.runlog import StageTimes
from sloserve.engine.step_shares import StepShares


class Stage(IntEnum):
    """Stages in the order of the fields of :class:`~sloserve.core.runlog.StageTimes`."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    PAUSED = 3


@dataclass(slots=True)
class RequestStages:
    """One request's stages so far.

    Args:
        spent_s: Seconds spent in each stage up to ``since_s``, when it entered the present stage.
        decoded_s: Parts of the time of decodes that it had while it ran.
        since_decode_s: What :attr:`StepShares.decode_s` was when it entered the present stage.
    """

    since_s: float
    stage: Stage = Stage.WAITING
    spent_s: list[float] = field(default_factory=lambda: [0.0] * len(Stage))
    decoded_s: float = 0.0
    since_decode_s: float = 0.0

    def enter(self, stage: Stage, now_s: float, decode_s: float = 0.0) -> None:
        """Enter a stage; ``decode_s`` are the seconds of a request that has decoded in every step so far."""
        self.spent_s[self.stage] += max(now_s - self.since_s, 0.0)  # a live clock may be set back
        if self.stage is Stage.RUNNING:
            self.decoded_s += decode_s - self.since_decode_s
        self.stage, self.since_s, self.since_decode_s = stage, now_s, decode_s


class Stages:
    """Stages of the requests of one engine. Times are seconds from any one moment."""

    def __init__(self, shares: StepShares | None = None) -> None:
        """Begin without requests.

        Args:
            shares: The parts that requests have in the steps; ``None`` if they are not needed.
        """
        self.by_id: dict[str, RequestStages] = {}
        """Stages of the requests, by id."""
        self._shares = shares or StepShares()
        self._paused: Sequence[Any] = ()

    def arrived(self, request_id: str, arrival_s: float) -> None:
        """Record that a request came, and waits from its arrival on."""
        self.by_id[request_id] = RequestStages(arrival_s)

    def scheduled(self, admitted: Sequence[str], preempted: list[str], paused: Sequence[Any], start_s: float) -> None:
        """Record a step that begins at ``start_s`` and was scheduled.

        Args:
            admitted: Ids of the requests that it admitted.
            preempted: Ids of the requests that the engine and the plan preempted in this step; emptied.
            paused: The engine's requests that the plan passed over.
            start_s: Time at which the step begins, in seconds.
        """
        # One comparison of lists in C: mostly the plan, or what it pauses, is the same as in the step before.
        if paused or self._paused:
            self._repaused(paused, start_s)
        if preempted:
            # After the pauses: vLLM may take a paused request for its victim.
            for request_id in preempted:
                self._enter(request_id, Stage.PREEMPTED, start_s)
            preempted.clear()
        # After the preemptions: what a plan preempts may come back in the same step.
        for request_id in admitted:
            self._enter(request_id, Stage.RUNNING, start_s)

    def _repaused(self, paused: Sequence[Any], start_s: float) -> None:
        before, self._paused = self._paused, paused
        if paused == before:
            return
        for request in set(before).difference(paused):
            stages = self.by_id.get(request.request_id)  # none once it has ended
            if stages is not None and stages.stage is Stage.PAUSED:
                stages.enter(Stage.RUNNING, start_s, self._shares.decode_s)
        for request in set(paused).difference(before):
            self._enter(request.request_id, Stage.PAUSED, start_s)

    def _enter(self, request_id: str, stage: Stage, now_s: float) -> None:
        stages = self.by_id.get(request_id)  # none of one that has ended, or that came unseen
        if stages is not None:
            stages.enter(stage, now_s, self._shares.decode_s)

    def ended(self, request_id: str, end_s: float) -> StageTimes:
        """Return how long a request that ends was in each stage; 0 of one that came unseen."""
        stages = self.by_id.pop(request_id, None) or RequestStages(end_s)
        stages.enter(stages.stage, end_s, self._shares.decode_s)
        return StageTimes(*stages.spent_s)
