"""Tasks in the manner of ReAct: many calls with growing prompts, and a tool's run between two calls.

The lengths are round figures of what agents are reported to do, not a trace: 3 to 50 calls (10 in the mean), a shared
system prompt of 2,048 tokens, outputs of 110 tokens and tool results of 450 tokens at the median, tools of 2 s at the
median. A call's prompt is the whole conversation so far.
"""

import math

import numpy as np

from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.tasks.plan import BLOCK, BlockIds, OutputOf, Part, PlannedCall, TaskPlan, Text

SYSTEM_TOKENS = 2048
CALLS = 3, 50


def react_tasks(n: int, seed: int, scale: float = 1.0) -> list[TaskPlan]:
    """Return ``n`` tasks of ``seed``, all of which arrive at 0 s and have no deadline.

    Args:
        n: Number of tasks.
        seed: Seed of the draw.
        scale: Factor on all lengths in tokens.
    """
    rng = stream(seed, "agent-tasks/lengths")
    ids = BlockIds()

    def blocks(median: float, sigma: float, most: float = math.inf) -> int:
        return max(1, round(scale * min(rng.lognormal(math.log(median), sigma), most) / BLOCK))

    system = Text(ids.take(max(1, round(scale * SYSTEM_TOKENS / BLOCK))), shared=True)
    plans = []
    for number in range(n):
        calls = int(np.clip(round(rng.lognormal(math.log(7.5), 0.8)), *CALLS))
        user = blocks(600, 0.8)
        outputs = [*(blocks(110, 0.7) for _ in range(calls - 1)), blocks(350, 0.5)]
        results = [blocks(450, 1.0, 8000) for _ in range(calls - 1)]
        tools_s = [float(rng.lognormal(math.log(2.0), 1.0)) for _ in range(calls - 1)]
        prompt: tuple[Part, ...] = (system, Text(ids.take(user)))
        found = [PlannedCall(prompt, ids.take(outputs[0]))]
        for i in range(1, calls):
            prompt += (OutputOf(i - 1), Text(ids.take(results[i - 1])))
            found.append(PlannedCall(prompt, ids.take(outputs[i]), after=(i - 1,), wait_s=tools_s[i - 1]))
        plans.append(TaskPlan(number, tuple(found)))
    return plans
