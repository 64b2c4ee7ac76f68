"""One replay: the traffic of a recording in the engine model, under the recorded policy or another."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.engine.recording.reading import Recording
from sloserve.engine.virtual.event_loop import EventLoop
from sloserve.estimator.length.choice import ORACLE
from sloserve.scheduler.registry import make_policy, parse_policy, policy_class
from sloserve.scheduler.settings import KEY
from sloserve.sim.experiment import MODEL, engine_class
from sloserve.sim.replay.engine_of import FittedSteps, RecordedPace, engine_settings, planning_costs_of
from sloserve.sim.replay.traffic import Traffic
from sloserve.sim.replicas import serve_replicated
from sloserve.sim.run_name import STOCK, RunName

_KEPT: Final = ("seed", "plan_share", "aged_share", "swapping", "tenant_shares")
"""Settings of the recorded server that a replay has too; classes may be others."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """What is replayed: a recording's settings and step times, and the traffic.

    Args:
        recording: The recording.
        fitted: Step times of its engine.
        traffic: Requests to replay.
        engine_kind: ``model`` for the engine model, ``vllm`` for vLLM's own scheduler in virtual time.
        is_joined: Whether the recording is of several engines.
    """

    recording: Recording
    fitted: FittedSteps
    traffic: Traffic
    engine_kind: str = MODEL
    is_joined: bool = False

    def run(self, name: str, replicas: int = 1, *, seed: int = 0, until: str | None = None) -> RunLog:
        """Replay the traffic.

        Several replicas do not get the requests of clients that left.

        Args:
            name: The policy with its options, and flags of the engine, see :class:`~sloserve.sim.run_name.RunName`.
            replicas: Number of engines that share the traffic.
            seed: Seed of how step times vary.
            until: Id of a request with the end of which the replay ends, and which its log has alone; ``None`` for all.
                Several replicas serve all.
        """
        run, traffic = RunName.parse(name), self.traffic
        settings = run.engine_settings(engine_settings(self.recording))
        config = None if run.policy == STOCK else self._config(run.policy)
        costs = planning_costs_of(self.recording, self.traffic.policy)

        def engine_of(number: int) -> EventLoop:
            pace = RecordedPace(self.fitted, traffic.epoch_s, seed + number)
            make_engine = engine_class(self.engine_kind)
            return make_engine(settings, self.fitted.profile, config, planning_costs=costs, noise=pace)

        requests = traffic.requests if _keeps_promises(run.policy) else [_unpromised(one) for one in traffic.requests]
        if replicas > 1 or self.is_joined:
            stayed = [one for one in requests if one.request_id not in traffic.left_s]
            return serve_replicated(engine_of, sorted(stayed, key=lambda one: one.arrival_s), replicas)
        engine = engine_of(0)
        for request, reached_s in zip(requests, traffic.reached_s, strict=True):
            engine.give(request, now_s=reached_s)
        leaving = sorted((at_s, request_id) for request_id, at_s in traffic.left_s.items())
        over = set[str]()
        if until is not None:
            engine.notify_ended(lambda request_id, _: over.add(request_id))
        while (engine.at != float("inf") or leaving) and until not in over:
            if leaving and leaving[0][0] <= engine.at:
                at_s, request_id = leaving.pop(0)
                engine.abort(request_id, at_s)
            else:
                engine.advance()
        return engine.log([one for one in requests if until in (None, one.request_id)])

    def _config(self, policy: str) -> dict[str, Any]:
        stated: Mapping[str, Any] = self.recording.head.settings
        kept = {name: stated[name] for name in _KEPT if stated.get(name) is not None}
        return {KEY: {**kept, "policy": policy, **self.traffic.classes.as_config()}}


def _keeps_promises(policy: str) -> bool:
    """Return whether a policy orders requests, and so serves promised ones first."""
    return policy != STOCK and bool(policy_class(parse_policy(policy)[0]).needs)


def _unpromised(request: WorkloadRequest) -> WorkloadRequest:
    return request if request.slo.promise is None else replace(request, slo=replace(request.slo, promise=None))


def check_name(name: str) -> None:
    """Refuse a run that cannot be replayed.

    Raises: ConfigError for an unknown policy, and for one that sees lengths which were not known.
    """
    run = RunName.parse(name)
    if run.policy == STOCK:
        return
    policy, options = parse_policy(run.policy)
    if options.get("length") == ORACLE:
        raise ConfigError(
            f"policy {name!r}: length={ORACLE} sees the lengths of outputs, which were not known when the requests "
            "came; leave it out"
        )
    make_policy(policy, options)
