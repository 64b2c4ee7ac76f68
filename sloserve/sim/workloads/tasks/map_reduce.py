"""Tasks that plan, hand parts to sub-agents which work at the same time, and put their outputs together."""

from sloserve.sim.workloads.tasks.coding import reply
from sloserve.sim.workloads.tasks.drawing import TaskDraws
from sloserve.sim.workloads.tasks.plan import OutputOf, Part, PlannedCall, TaskPlan

AGENTS_P90 = 51
MOST_AGENTS = 128
_STOP = 1.0 - 0.1 ** (1.0 / AGENTS_P90)
"""The parameter of the geometric distribution that has ``AGENTS_P90`` as its 90th percentile."""

PLAN, MAP, REDUCE = "plan", "map", "reduce"


def map_reduce_tasks(n: int, seed: int, scale: float = 1.0) -> list[TaskPlan]:
    """Return ``n`` tasks of ``seed``, all of which arrive at 0 s and have no deadline.

    One call plans, a burst of sub-agents follows, and one call reads the plan and all their outputs. Bursts have 51
    sub-agents at the 90th percentile, and outputs 317 tokens at the median and 7,551 at the 99th percentile (llm-d's
    production trace of GLM-5.2, as llm-d-router's issue 2305 quotes it). The number of sub-agents is geometric, since
    only one percentile of it is known, and at most 128.

    These figures are our choice: shared system prompts of 2,048 tokens for the planner and 1,024 for sub-agents, 800
    tokens of the user and 2,000 tokens of material for each sub-agent at the median, and 0.2 s at the median until a
    sub-agent starts.

    Args:
        n: Number of tasks.
        seed: Seed of the draw.
        scale: Factor on all lengths in tokens.
    """
    draws = TaskDraws("map-reduce-tasks", seed, scale)
    system, of_agents = draws.text(2048, shared=True), draws.text(1024, shared=True)
    plans = []
    for number in range(n):
        agents = min(int(draws.rng.geometric(_STOP)), MOST_AGENTS)
        ask = draws.text(draws.lognormal(800, 0.8, 16_000))
        calls = [PlannedCall((system, ask), draws.output(reply(draws)), kind=PLAN)]
        for _ in range(agents):
            material = draws.text(draws.lognormal(2000, 0.8, 32_000))
            prompt = (of_agents, OutputOf(0), material)
            wait_s = draws.lognormal(0.2, 0.5)
            calls.append(PlannedCall(prompt, draws.output(min(reply(draws), 8192.0)), (0,), wait_s, MAP))
        workers = tuple(range(1, agents + 1))
        joined: tuple[Part, ...] = (system, ask, OutputOf(0), *(OutputOf(i) for i in workers))
        calls.append(PlannedCall(joined, draws.output(reply(draws)), workers, 0.0, REDUCE))
        plans.append(TaskPlan(number, tuple(calls)))
    return plans
