"""``days-with-shocks``: generated days of traffic for one model, each with events for which no rule can prepare.

A day is compressed into DAY_S seconds: the rate follows one wave between NIGHT of the peak at 3 o'clock and the peak at
15 o'clock. Only the wave is compressed. The events last as long as they do in real time, since nodes, outputs and
deadlines do not become faster either. Each seed draws when they begin, how long they last and how large they are:

- two bursts: 1.4 to 1.8 times the rate for 150 to 300 seconds;
- a lull: a quarter of the rate for 300 to 600 seconds;
- longer prompts: prompts of 4 to 8 times the length for 600 to 1200 seconds;
- two reconnects: 20 to 40 requests of the day arrive within two seconds of their first.

Half of the requests are interactive and half are lines of batches; lengths are ShareGPT's.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray
from sloserve.core.request import WorkloadRequest
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment
from sloserve.sim.workloads.multi_model import FleetWorkload
from sloserve.sim.workloads.seeding import stream

NAME = "days-with-shocks"
DAY_S, PEAK_RPS, NIGHT = 5400.0, 1.7, 0.1
BURSTS, BURST, BURST_S = 2, (1.4, 1.8), (150.0, 300.0)
LULL, LULL_S = 0.25, (300.0, 600.0)
LONGER, LONGER_S = (4.0, 8.0), (600.0, 1200.0)
RECONNECTS, RECONNECTING, RECONNECT_S = 2, (20, 40), 2.0
MOST_PROMPT_TOKENS = 6000
_GRID = 5401


def day(fleet: Fleet, seed: int, day_s: float = DAY_S) -> list[WorkloadRequest]:
    """Return the requests of one day, in the order of their arrivals.

    Args:
        fleet: Fleet that names the model and the classes.
        seed: Seed of the day.
        day_s: Seconds of the day; a short one has shorter events, for tests.
    """
    events = stream(seed, f"{NAME}/events")
    at_s = np.linspace(0.0, day_s, _GRID)
    rate = NIGHT + (1.0 - NIGHT) * (1.0 - np.cos(2.0 * np.pi * (at_s / day_s - 3.0 / 24.0))) / 2.0
    part = day_s / DAY_S
    for _ in range(BURSTS):
        rate[_event(at_s, events, BURST_S, part)] *= events.uniform(*BURST)
    rate[_event(at_s, events, LULL_S, part)] *= LULL
    longer = _event(at_s, events, LONGER_S, part)
    times = events.uniform(*LONGER)
    expected = np.concatenate([[0.0], np.cumsum(PEAK_RPS * rate[1:] * np.diff(at_s))])
    workload = FleetWorkload("w-b", latency_share=0.5)
    made = FleetExperiment(fleet, workload, ("qlm",), (1.0,), max_requests=int(expected[-1])).requests(seed, 1.0)
    requests = []
    for one in made:
        if one.arrival_s >= expected[-1]:
            continue
        arrival_s = float(np.interp(one.arrival_s, expected, at_s))
        prompt_tokens = one.prompt_tokens
        if longer[np.searchsorted(at_s, arrival_s)]:
            prompt_tokens = min(int(times * prompt_tokens), MOST_PROMPT_TOKENS)
        requests.append(replace(one, arrival_s=arrival_s, prompt_tokens=prompt_tokens))
    return sorted(_reconnected(requests, events), key=lambda one: one.arrival_s)


def _event(at_s: FloatArray, events: np.random.Generator, lasts_s: tuple[float, float], part: float) -> BoolArray:
    """Return where an event holds that begins at any time of the day and ends within it."""
    for_s = events.uniform(*lasts_s) * part
    begins_s = events.random() * (at_s[-1] - for_s)
    holds: BoolArray = (at_s >= begins_s) & (at_s < begins_s + for_s)
    return holds


def _reconnected(requests: Sequence[WorkloadRequest], events: np.random.Generator) -> list[WorkloadRequest]:
    """Let requests that follow each other arrive nearly at once, as from clients that a network had cut off."""
    found = list(requests)
    for _ in range(RECONNECTS):
        size = min(int(events.integers(*RECONNECTING)), len(found))
        first = int(events.integers(0, len(found) - size + 1))
        begins_s = found[first].arrival_s
        for k, gap_s in enumerate(sorted(events.uniform(0.0, RECONNECT_S, size).tolist())):
            found[first + k] = replace(found[first + k], arrival_s=begins_s + (gap_s if k else 0.0))
    return found
