"""Tasks in the manner of ReAct: many calls with growing prompts, and a tool's run between two calls."""

import numpy as np

from sloserve.sim.workloads.tasks.drawing import TaskDraws
from sloserve.sim.workloads.tasks.plan import OutputOf, Part, PlannedCall, TaskPlan, Text

SYSTEM_TOKENS = 2048
CALLS = 3, 50


def react_tasks(n: int, seed: int, scale: float = 1.0) -> list[TaskPlan]:
    """Return ``n`` tasks of ``seed``, all of which arrive at 0 s and have no deadline.

    The lengths are round figures of what agents are reported to do, not a trace: 3 to 50 calls (10 in the mean), a
    shared system prompt of 2,048 tokens, outputs of 110 tokens and tool results of 450 tokens at the median, tools of
    2 s at the median. A call's prompt is the whole conversation so far.

    Args:
        n: Number of tasks.
        seed: Seed of the draw.
        scale: Factor on all lengths in tokens.
    """
    draws = TaskDraws("agent-tasks/lengths", seed, scale)
    system = draws.text(SYSTEM_TOKENS, shared=True)
    plans = []
    for number in range(n):
        calls = int(np.clip(round(draws.lognormal(7.5, 0.8)), *CALLS))
        user = draws.lognormal(600, 0.8)
        outputs = [*(draws.lognormal(110, 0.7) for _ in range(calls - 1)), draws.lognormal(350, 0.5)]
        results = [draws.lognormal(450, 1.0, 8000) for _ in range(calls - 1)]
        tools_s = [draws.lognormal(2.0, 1.0) for _ in range(calls - 1)]
        plans.append(TaskPlan(number, chain(draws, (system, draws.text(user)), outputs, results, tools_s)))
    return plans


def chain(
    draws: TaskDraws,
    prompt: tuple[Part, ...],
    outputs: list[float],
    results: list[float],
    waits_s: list[float],
    *,
    most_tokens: float | None = None,
    kind: str = "",
) -> tuple[PlannedCall, ...]:
    """Return calls of which each repeats the whole conversation before it.

    Args:
        draws: Gives the texts.
        prompt: Prompt of the first call.
        outputs: Tokens of each call's output before scaling, ``[calls]``.
        results: Tokens that a tool or a user adds before each call but the first, before scaling, ``[calls - 1]``.
        waits_s: Seconds between the end of a call and the next call, ``[calls - 1]``.
        most_tokens: Longest prompt and output together, in tokens before scaling: the chain ends before it; ``None``
            for no limit.
        kind: Kind of the calls.
    """
    found: list[PlannedCall] = []
    blocks = sum(len(part.ids) for part in prompt if isinstance(part, Text))
    for i, output in enumerate(outputs):
        if i:
            result = draws.text(results[i - 1])
            blocks += len(found[-1].output_ids) + len(result.ids)
            if most_tokens is not None and blocks + draws.blocks(output) > draws.blocks(most_tokens):
                break
            prompt += (OutputOf(i - 1), result)
        after, wait_s = ((i - 1,), waits_s[i - 1]) if i else ((), 0.0)
        found.append(PlannedCall(prompt, draws.output(output), after, wait_s, kind))
    return tuple(found)
