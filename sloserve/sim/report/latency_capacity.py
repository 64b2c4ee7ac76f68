"""The load that a policy carries at equal latency: the load at which mean normalised latency exceeds a level.

The level is a multiple of the baseline's own at the least load of the experiment, the mean over seeds: one level for
all policies and seeds. Only completed requests have a latency, so a policy that refuses or loses requests looks better
here than it is.

Source: EconoServe, Sec. 4, Fig. 9, request rates sustained at similar normalised latency. Differs: the paper does not
say at which level.
"""

from collections.abc import Sequence

from sloserve.sim.report.compare import BASELINE, load_of, loads_of
from sloserve.sim.report.load_capacity import LoadCapacity, load_capacity
from sloserve.sim.report.statistics import mean_interval
from sloserve.sim.report.summary import Run

KEY = "normalized_latency_ms"
LEVEL_MULTIPLE = 2.0
MIN_LOADS = 3
"""The fewest loads of an experiment.

Latency rises steeply, and a line between two ends does not show where.
"""


def latency_capacity(
    runs: Sequence[Run], baseline: str = BASELINE, multiple: float = LEVEL_MULTIPLE
) -> list[LoadCapacity]:
    """Return the load that each policy carries, in order of first run; thresholds are in ms/token.

    The list is empty where there are fewer than three loads, or the baseline completed nothing at the least of them.
    """
    loads = loads_of(runs)
    if len(loads) < MIN_LOADS:
        return []
    least = [run[KEY] for run in runs if run["policy"] == baseline and load_of(run) == loads[0]]
    unloaded = mean_interval([value for value in least if value is not None])
    if unloaded is None:
        return []
    return load_capacity(runs, KEY, multiple * unloaded.value, rising=True, baseline=baseline)
