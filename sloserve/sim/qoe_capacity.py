"""How much load a policy carries while its users stay content: the load at which the mean QoE falls below a threshold.

Source: Andes, Sec. 6.1, system capacity.
"""

from collections.abc import Sequence

from sloserve.sim.compare import BASELINE
from sloserve.sim.experience import GOOD_QOE
from sloserve.sim.load_capacity import LoadCapacity, load_capacity
from sloserve.sim.summary import Run


def qoe_capacity(runs: Sequence[Run], baseline: str = BASELINE, threshold: float = GOOD_QOE) -> list[LoadCapacity]:
    """What each policy carries, in order of first run; empty where no request promises a timeline, or at one load."""
    return load_capacity(runs, "qoe_mean", threshold, baseline=baseline)
