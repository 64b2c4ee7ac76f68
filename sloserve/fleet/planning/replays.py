"""Finds, once a minute, how many instances the fleet needs, by replays in a process of their own.

Gateways report their recent requests to the store, which also has the lines of batches. Models are replayed apart, the
ones with the most requests first, at most MOST_MODELS. If anything fails there is no need by replays, and scaling
follows the pressure of the plan, as it does without them.
"""

import asyncio
import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from sloserve.core.slo import Targets
from sloserve.fleet.contract.plan_in_force import ReplayedNeed
from sloserve.fleet.contract.reports import AgentReport, agent_report
from sloserve.fleet.contract.traffic import WINDOW_S, RecentTraffic, SeenRequest, together, traffic_of
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.planning.counterfactual import MOST_PER_REPLICA, Needed
from sloserve.fleet.planning.replay_process import Job, ModelTraffic
from sloserve.fleet.planning.replayed_model import ReplayedModel
from sloserve.fleet.planning.snapshot import ALIVE_S
from sloserve.fleet.store.requests import RecentLine
from sloserve.fleet.store.store import Store

EVERY_S: Final = 60.0
MOST_MODELS: Final = 4
"""Most models that are replayed; the others are few requests, and the plan's pressure counts for them."""
MOST_LINES: Final = 2000
"""Most lines of batches that are read."""
LINE_DUE_S: Final = 3600.0
"""Lines with more time than this are left out: the plan knows when they have to be served."""
_LEAST: Final = 4
"""Replicas for which requests are replayed at least."""
_WALL_S: Final = 240.0
"""Seconds of the wall after which the process is ended, on a machine that gives it hardly any time."""


class Replays:
    """The replays of one fleet.

    Args:
        fleet: Settings of the fleet, from its file.
        store: Store that all members share.
    """

    def __init__(self, fleet: Fleet, store: Store) -> None:
        self._fleet, self._store = fleet, store
        self.need: ReplayedNeed | None = None
        """The need that was found last; ``None`` before the first, and where nothing is known of the traffic."""

    async def turn(self) -> None:
        """Find the need once; one that was found before holds until it is too old. Raises: StoreError, OSError."""
        read = await asyncio.to_thread(self._read)
        if read is None:
            return
        read_s, job, covers_s = read
        found = await _replayed(job) if job.models else {}
        if len(found) == len(job.models):  # a need without some of the models would be too small
            self.need = need_of(found, job, read_s, covers_s)

    def _read(self) -> tuple[float, Job, float] | None:
        """Return the time, the job and the seconds that its traffic covers; ``None`` where no gateway reports."""
        texts = self._store.traffic.read()
        reports = [(traffic, age_s) for text, age_s in texts if (traffic := traffic_of(text)) is not None]
        if not reports:
            return None
        traffic = together(reports)
        lines = self._store.requests.recent(traffic.covers_s, MOST_LINES)
        agents = [agent_report(row.state) for row in self._store.members.agents() if row.age_s <= ALIVE_S]
        traffic = with_lines(traffic, lines)
        job = job_of(self._fleet, traffic, [one for one in agents if one is not None])
        return self._store.now_s(), job, traffic.covers_s


def with_lines(traffic: RecentTraffic, lines: Sequence[RecentLine]) -> RecentTraffic:
    """Return the traffic with the lines of batches that arrived within it, as far as they are due soon."""
    seen = [
        SeenRequest(
            one.age_s,
            one.model,
            one.slo_class,
            one.prompt_tokens,
            output_tokens=max(int(one.output_tokens), 1),
            ended=True,
            targets=Targets(e2e_s=one.due_after_s),
            is_line=True,
        )
        for one in lines
        if one.due_after_s is not None and 0.0 < one.due_after_s <= LINE_DUE_S and one.age_s <= traffic.covers_s
    ]
    covers_s = traffic.covers_s
    if len(lines) >= MOST_LINES:
        covers_s = min(covers_s, max(one.age_s for one in lines))
    both = sorted((*traffic.requests, *seen), key=lambda one: -one.age_s)
    return RecentTraffic(covers_s, tuple(one for one in both if one.age_s <= covers_s))


def job_of(fleet: Fleet, traffic: RecentTraffic, agents: Sequence[AgentReport]) -> Job:
    """Return the job of replaying the traffic of each model."""
    scaling = fleet.pool.scaling
    instances = [one for agent in agents for one in agent.instances]
    of_model = Counter(one.model for one in traffic.requests if one.model in fleet.models)
    most = sum((kind.most or 0) * ((kind.devices or 1) // kind.width) for kind in fleet.pool.devices.values())
    most += len(fleet.instances)
    kinds = [*fleet.pool.devices, *(host.device for host in fleet.hosts.values())]
    models = {}
    for name, _ in of_model.most_common(MOST_MODELS):
        devices = Counter(one.device for one in instances if one.active == name)
        there = devices.total()
        usual = [device for device, _ in devices.most_common()]
        device = next((one for one in (*usual, *kinds) if one in fleet.models[name].profiles), None)
        if device is None:
            continue
        own = tuple(one for one in traffic.requests if one.model == name)
        kept = own[-MOST_PER_REPLICA * max(there, _LEAST) :]
        cut = RecentTraffic(traffic.covers_s if len(kept) == len(own) else kept[0].age_s, kept)
        models[name] = ModelTraffic(ReplayedModel.of(fleet, name, device), cut, there, max(most, there, 1))
    return Job(models, fleet.settings.classes, scaling.objective, scaling.start_s + scaling.up_s, scaling.replay_s)


def need_of(found: Mapping[str, Needed], job: Job, read_s: float, covers_s: float) -> ReplayedNeed:
    """Return the need of the whole fleet.

    Without any request it is 0 where the traffic covers the whole window, and 1 where it does not.
    """
    idle = 0 if covers_s >= WINDOW_S - 1.0 else 1
    expected = sum(one.expected for one in found.values())
    loads = [(one.in_flight, one.expected) for one in found.values() if one.in_flight is not None]
    in_flight = sum(load * count for load, count in loads) / expected if loads and len(loads) == len(found) else None
    return ReplayedNeed(
        read_s,
        job.objective,
        sum(one.low for one in found.values()) if found else idle,
        expected if found else idle,
        sum(one.high for one in found.values()) if found else idle,
        round(min((one.traffic.covers_s for one in job.models.values()), default=covers_s), 1),
        sum(len(one.traffic.requests) for one in job.models.values()),
        None if in_flight is None else round(in_flight, 2),
    )


async def _replayed(job: Job) -> dict[str, Needed]:
    """Run the process, and return the replicas needed by the models for which its time sufficed. Raises: OSError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sloserve.fleet.planning.replay_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_WALL_S):
            output, _ = await process.communicate(pickle.dumps(job))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise OSError(f"the process that replays traffic ended with status {process.returncode}")
    return msgspec.json.decode(output, type=dict[str, Needed])
