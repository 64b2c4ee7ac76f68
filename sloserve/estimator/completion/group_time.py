"""How long a group of like requests keeps an engine busy, and how long one of them takes once it is served.

The waiting time behind a group is what the steps cost that the group needs: by default from the scarcest of slots, KV
cache and token budget at the pace of a full batch (``steady_state.py``); Eq. 2, which divides its output tokens by
a constant throughput, is the ablation. A virtual queue is then a sum: a request waits for the groups ahead.

Source: QLM, Sec. 6. Differs: Eq. 5, the maximum over a group, is that its last request comes in when the engine has
done the group's work, and takes its own time from there.
"""

import math
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.completion.steady_state import EngineSize, equilibrium_steps, mean_step_s
from sloserve.estimator.step_time.latency import StepLatency

_FINE = 32.0
"""Loads that differ by less than 3 % are taken for equal: groups of one cluster have like loads."""
_LEAST_LOAD = 1e-9


@dataclass(frozen=True, slots=True)
class Serving:
    """One model on one kind of device: the latency of its engine's steps, and the engine's limits.

    Args:
        latency: Seconds that a step takes.
        engine: Limits of the engine.
        tokens_per_s: Theta of Eq. 2, by which output tokens are divided; ``None`` to derive the wait from the work.
    """

    latency: StepLatency
    engine: EngineSize
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupTimes:
    """Service times of n groups on one engine, in seconds, ``[n]`` each. Standard deviations count the lengths alone.

    Args:
        work_s: Seconds for which what comes behind the group waits for it.
        work_sd_s: Standard deviation of ``work_s``.
        first_token_s: Seconds from the start of one request's service to its first token.
        own_s: Seconds from the start of one request's service to its last token.
        own_sd_s: Standard deviation of ``own_s``.
        batch: Requests of this kind that run at once.
    """

    work_s: FloatArray
    work_sd_s: FloatArray
    first_token_s: FloatArray
    own_s: FloatArray
    own_sd_s: FloatArray
    batch: FloatArray


def group_times(
    serving: Serving, requests: FloatArray, prompt_tokens: FloatArray, output_tokens: FloatArray, output2: FloatArray
) -> GroupTimes:
    """Return the service times of groups.

    Args:
        serving: The model on its device.
        requests: Number of requests of each group, at least 1, ``[n]``.
        prompt_tokens: Sum of the prompt tokens of each group, ``[n]``.
        output_tokens: Sum of the expected output tokens of each group, ``[n]``.
        output2: Sum of the squared output tokens of each group, ``[n]``.
    """
    engine = serving.engine
    prompt = prompt_tokens / requests
    output = np.maximum(output_tokens / requests, 1.0)
    sd = np.sqrt(np.maximum(output2 / requests - output**2, 0.0))
    chunks = np.maximum(prompt / engine.prompt_budget, 1.0)
    # Steps from one request's admission to the next one's.
    between = equilibrium_steps(prompt, output, sd, engine)
    batch = np.minimum((output + engine.idle_steps + chunks - 1.0) / between, float(engine.max_num_seqs))
    loads = np.stack([batch, batch * (prompt + output / 2.0), prompt / between, 1.0 / between], axis=1)
    step_s = np.array(_steps_s(serving, np.rint(np.log(np.maximum(loads, _LEAST_LOAD)) * _FINE).tolist()))
    each_s = between * step_s if serving.tokens_per_s is None else output / serving.tokens_per_s
    return GroupTimes(
        work_s=requests * each_s,
        work_sd_s=np.sqrt(requests) * each_s * sd / output,
        first_token_s=(chunks + engine.steps_ahead) * step_s,
        own_s=(chunks + engine.steps_ahead + output - 1.0) * step_s,
        own_sd_s=sd * step_s,
        batch=batch,
    )


def _steps_s(serving: Serving, logs: list[list[float]]) -> list[float]:
    """Return mean durations of steps in seconds, from their loads as logarithms times _FINE.

    Like loads are computed once.
    """
    known: dict[tuple[float, ...], float] = {}
    found = []
    for log in logs:
        key = tuple(log)
        if key not in known:
            known[key] = mean_step_s(serving.latency, serving.engine, *(math.exp(x / _FINE) for x in log))[0]
        found.append(known[key])
    return found


def running_time(
    serving: Serving,
    requests: int,
    prefill_tokens: float,
    context_tokens: float,
    output_tokens: float,
    longest_output_tokens: float,
) -> tuple[float, float]:
    """Return (delay_s, finish_s) of the running requests: how long they delay what comes next, and run themselves.

    Both are expected values in seconds. The delay is the share of the engine that the requests take, times how long
    they take it.

    Args:
        serving: The model on its device.
        requests: Number of the running requests.
        prefill_tokens: Prompt tokens that they have yet to compute, summed.
        context_tokens: Tokens that they hold, summed.
        output_tokens: Output tokens that are expected to come, summed.
        longest_output_tokens: Output tokens that are expected to come of the request with the most of them.
    """
    if not requests:
        return 0.0, 0.0
    engine = serving.engine
    tokens = prefill_tokens + context_tokens + output_tokens / 2.0
    share = min(max(requests / engine.max_num_seqs, tokens / engine.kv_tokens), 1.0)
    step_s, _ = mean_step_s(serving.latency, engine, float(requests), tokens, 0.0, 0.0)
    prompts_s = prefill_tokens / engine.prompt_budget * step_s
    return prompts_s + share * output_tokens / requests * step_s, prompts_s + longest_output_tokens * step_s
