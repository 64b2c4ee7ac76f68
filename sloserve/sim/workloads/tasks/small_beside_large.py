"""Bursts of small tasks with one larger task among them, which an order by size makes wait."""

import numpy as np

from sloserve.sim.workloads.tasks.drawing import TaskDraws
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.react import chain

BURST = 64
SPAN_S = 13.0
SMALL_TOKENS, LARGE_TOKENS = (1444, 3477), 8046
SMALL, LARGE = "small", "large"
_CALLS = 5


def small_beside_large_tasks(n: int, seed: int, scale: float = 1.0) -> list[TaskPlan]:
    """Return ``n`` tasks of ``seed``, all of which arrive at 0 s and have no deadline.

    One of each 64 tasks, in the middle, begins with 8,046 tokens, and the others begin with 1,444 to 3,477. In a public
    report on an admission by size (ThunderAgent's issue 46) 64 programs of such sizes were started within 13 s: the
    smallest had its first response after 0.5 s, the one of 8,046 tokens after 404 s.

    The report says nothing of later calls. Our choice is 5 calls for every task, with the outputs, tool results and
    tools of :func:`~sloserve.sim.workloads.tasks.react.react_tasks`.

    Args:
        n: Number of tasks.
        seed: Seed of the draw.
        scale: Factor on all lengths in tokens.
    """
    draws = TaskDraws("small-beside-large", seed, scale)
    plans = []
    for number in range(n):
        start = float(np.exp(draws.rng.uniform(*np.log(SMALL_TOKENS))))
        outputs = [draws.lognormal(110, 0.7) for _ in range(_CALLS)]
        results = [draws.lognormal(450, 1.0, 8000) for _ in range(_CALLS - 1)]
        tools_s = [draws.lognormal(2.0, 1.0) for _ in range(_CALLS - 1)]
        is_large = number % BURST == min(BURST, n) // 2
        prompt = (draws.text(LARGE_TOKENS if is_large else start),)
        kind = LARGE if is_large else SMALL
        plans.append(TaskPlan(number, chain(draws, prompt, outputs, results, tools_s), kind=kind))
    return plans
