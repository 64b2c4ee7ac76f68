"""How much load a policy carries while its users stay content: the load at which the mean QoE falls below a threshold.

Source: Andes, Sec. 6.1, system capacity.
"""

from collections.abc import Sequence

from sloserve.report.compare import BASELINE
from sloserve.report.experience import GOOD_QOE
from sloserve.report.load_capacity import LoadCapacity, load_capacity
from sloserve.report.summary import Run


def qoe_capacity(runs: Sequence[Run], baseline: str = BASELINE, threshold: float = GOOD_QOE) -> list[LoadCapacity]:
    """What each policy carries, in order of first run; empty where no request promises a timeline, or at one load."""
    return load_capacity(runs, "qoe_mean", threshold, baseline=baseline)
