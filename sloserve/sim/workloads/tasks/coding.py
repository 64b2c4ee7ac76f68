"""Tasks of coding agents: very long prompts, and calls that mostly follow each other at once."""

import math
from itertools import pairwise

import numpy as np

from sloserve.sim.workloads.tasks.drawing import TaskDraws
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.react import chain

SYSTEM_TOKENS = 16_384
CONTEXT_TOKENS = 262_144
FIRST_TOKENS = 142_000
"""Median tokens of the first prompt without the system prompt; with it the median over all calls is 195,000."""
CALLS = 3, 80

REPLY_MEDIAN, REPLY_P99 = 317, 7551
REPLY_SIGMA = math.log(REPLY_P99 / REPLY_MEDIAN) / 2.3263478740408408
"""The log-standard deviation of a lognormal distribution with this median and 99th percentile."""

RETURNS = ((0.0, 0.05), (0.8646, 1.0), (0.9512, 10.0), (1.0, 120.0))
"""Shares of calls that follow the call before within a number of seconds."""


def coding_tasks(n: int, seed: int, scale: float = 1.0) -> list[TaskPlan]:
    """Return ``n`` tasks of ``seed``, all of which arrive at 0 s and have no deadline.

    Prompts have 195,000 tokens at the median over all calls, and outputs 317 at the median and 7,551 at the 99th
    percentile (llm-d's production trace of GLM-5.2, as llm-d-router's issue 2305 quotes it). Of the calls 86.46 %
    follow the call before within a second and 95.12 % within ten (a trace of 32 tasks of coding agents, vLLM router's
    issue 285); between these points the times are uniform in their logarithm, from 0.05 s to 120 s.

    Neither source states how many calls a task has and by how much prompts grow. Our choice is 20 calls at the median,
    tool results of 1,500 tokens at the median, and tasks that end where a prompt and its output would not fit 262,144
    tokens. A task begins with a loaded context, as the median over all calls requires it.

    Args:
        n: Number of tasks.
        seed: Seed of the draw.
        scale: Factor on all lengths in tokens.
    """
    draws = TaskDraws("coding-tasks", seed, scale)
    system = draws.text(SYSTEM_TOKENS, shared=True)
    plans = []
    for number in range(n):
        calls = int(np.clip(round(draws.lognormal(20, 0.6)), *CALLS))
        first = draws.lognormal(FIRST_TOKENS, 0.2, CONTEXT_TOKENS / 1.5)
        outputs = [reply(draws) for _ in range(calls)]
        results = [draws.lognormal(1500, 1.2, 30_000) for _ in range(calls - 1)]
        waits_s = [return_s(float(draws.rng.random())) for _ in range(calls - 1)]
        prompt = (system, draws.text(first))
        found = chain(draws, prompt, outputs, results, waits_s, most_tokens=CONTEXT_TOKENS)
        plans.append(TaskPlan(number, found))
    return plans


def reply(draws: TaskDraws) -> float:
    """Return the tokens of an output of an agent's call, before scaling."""
    return draws.lognormal(REPLY_MEDIAN, REPLY_SIGMA, 32_768)


def return_s(quantile: float) -> float:
    """Return the time at ``quantile`` of the seconds between the end of a call and the call that follows."""
    for (low, from_s), (high, to_s) in pairwise(RETURNS):
        if quantile <= high:
            return float(from_s * (to_s / from_s) ** ((quantile - low) / (high - low)))
    return RETURNS[-1][1]
