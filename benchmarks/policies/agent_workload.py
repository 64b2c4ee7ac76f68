"""Tasks of agents as a closed loop: many calls with growing prompts, and a tool's run between two calls.

The lengths are round figures of what agents are reported to do, not a trace: 3 to 50 calls (10 in the mean), a shared
system prompt of 2,048 tokens, outputs of 110 tokens and tool results of 450 tokens at the median, tools of 2 s at the
median. A call's prompt is the whole conversation so far. All lengths are whole KV blocks, so that what a prompt repeats
can be named block by block.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from sloserve.core.outcome import Outcome
from sloserve.core.request import OUTPUT_ID, WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile
from sloserve.sim.closed_loop import Source
from sloserve.sim.workloads.seeding import stream

BLOCK = 16
SYSTEM_TOKENS = 2048
CALLS = 3, 50
_IDS_OF_TASK = 1_000_000
"""The number of block ids that each task has for itself; the system prompt has the ids below."""


@dataclass(frozen=True, slots=True)
class AgentTask:
    """One task.

    Args:
        number: Number of the task.
        user_tokens: Tokens of the user's message, which follows the system prompt.
        outputs: Tokens of the output of each call, ``[calls]``.
        results: Tokens of the tool's result before each call but the first, ``[calls - 1]``.
        tools_s: Seconds that the tool runs before each call but the first, ``[calls - 1]``.
        arrival_s: Time of the first call in seconds.
        deadline_s: Time in seconds at which the last call must have ended.
    """

    number: int
    user_tokens: int
    outputs: tuple[int, ...]
    results: tuple[int, ...]
    tools_s: tuple[float, ...]
    arrival_s: float = 0.0
    deadline_s: float = math.inf

    @property
    def prompts(self) -> list[int]:
        """The tokens of each call's prompt, ``[calls]``."""
        grown = (output + result for output, result in zip(self.outputs, self.results, strict=False))
        return list(accumulate(grown, initial=SYSTEM_TOKENS + self.user_tokens))

    @property
    def repeated(self) -> list[int]:
        """The tokens of each call's prompt that a prefix cache which forgets nothing has, ``[calls]``.

        The newest token of an output has no KV, so that the block that it ends is computed by the next call.
        """
        before = zip(self.prompts, self.outputs[:-1], strict=False)
        return [SYSTEM_TOKENS, *((prompt + output - 1) // BLOCK * BLOCK for prompt, output in before)]

    def ids(self, i: int) -> tuple[int, ...]:
        """Return the ids of the blocks of call ``i``'s prompt."""
        fresh = iter(range(_IDS_OF_TASK * (self.number + 1), _IDS_OF_TASK * (self.number + 2)))
        found = list(range(SYSTEM_TOKENS // BLOCK))
        found += (next(fresh) for _ in range(self.user_tokens // BLOCK))
        for output, result in zip(self.outputs[:i], self.results[:i], strict=True):
            found += [OUTPUT_ID] * (output // BLOCK)
            found += (next(fresh) for _ in range(result // BLOCK))
        return tuple(found)


def draw_tasks(n: int, seed: int) -> list[AgentTask]:
    """Return ``n`` tasks of ``seed``, all of which arrive at 0 s and have no deadline."""
    rng = stream(seed, "agent-tasks/lengths")

    def tokens(median: float, sigma: float, most: float = math.inf) -> int:
        return max(BLOCK, BLOCK * round(min(rng.lognormal(math.log(median), sigma), most) / BLOCK))

    tasks = []
    for number in range(n):
        calls = int(np.clip(round(rng.lognormal(math.log(7.5), 0.8)), *CALLS))
        user = tokens(600, 0.8)
        outputs = (*(tokens(110, 0.7) for _ in range(calls - 1)), tokens(350, 0.5))
        results = tuple(tokens(450, 1.0, 8000) for _ in range(calls - 1))
        tools_s = tuple(float(rng.lognormal(math.log(2.0), 1.0)) for _ in range(calls - 1))
        tasks.append(AgentTask(number, user, outputs, results, tools_s))
    return tasks


def arriving(tasks: list[AgentTask], seed: int, rate: float, unloaded_s: list[float]) -> list[AgentTask]:
    """Return ``tasks`` with Poisson arrivals of ``rate`` tasks a second and their deadlines.

    A task is due after twice its latency on an idle engine and 5 s. Arrivals of a seed at several rates differ by a
    factor alone.
    """
    arrivals_s = stream(seed, "agent-tasks/arrivals").exponential(1.0, len(tasks)).cumsum() / rate
    return [
        replace(task, arrival_s=at_s, deadline_s=at_s + 2.0 * alone_s + 5.0)
        for task, at_s, alone_s in zip(tasks, arrivals_s.tolist(), unloaded_s, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Call:
    """One call as a client knows it when it sends it.

    Args:
        left_s: Seconds that are left of the task's deadline; negative if it has passed.
        attained_s: Seconds of engine time that the earlier calls of the task took, about.
    """

    left_s: float
    attained_s: float


Statement = Callable[[Call], tuple[Targets, int]]
"""A function from a call to the targets and the priority that its client states."""


def nothing(call: Call) -> tuple[Targets, int]:
    """State nothing."""
    return Targets(), 0


def deadline(call: Call) -> tuple[Targets, int]:
    """State the time that is left of the task's deadline as the call's e2e target; once none is left, nothing."""
    return Targets(e2e_s=call.left_s if 0.0 < call.left_s < math.inf else None), 0


def each_15_s(call: Call) -> tuple[Targets, int]:
    """State an e2e target of 15 s for each call."""
    return Targets(e2e_s=15.0), 0


def least_attained(call: Call) -> tuple[Targets, int]:
    """State the task's level of attained service as the priority; the time of a level doubles (Autellix)."""
    return Targets(), math.floor(math.log2(1.0 + call.attained_s / 2.0))


class AgentLoop(Source):
    """The closed loop of tasks: a call follows when the call before has completed and its tool has run.

    A task with a call that did not complete ends unfinished.
    """

    def __init__(self, tasks: Iterable[AgentTask], statement: Statement, profile: Profile) -> None:
        self._tasks = list(tasks)
        self._statement = statement
        # A step of a moderate load; only the sizes of a task relative to other tasks matter.
        self._decode_s = profile.step_s(StepLoad(decode_seqs=4, decode_context_tokens=20_000)) / 4
        self._prefill_s = profile.step_s(StepLoad(2048, 1, 0, 0, 2048 * 6000)) / 2048
        self._calls: dict[str, tuple[AgentTask, int]] = {}
        self._attained_s: dict[int, float] = {}
        self.ended_s: dict[int, float] = {}
        """The time in seconds at which each task ended, by its number, without the tasks that are unfinished."""

    def first(self) -> Iterable[WorkloadRequest]:
        return [self._call(task, 0, task.arrival_s) for task in self._tasks]

    def after(self, request: WorkloadRequest, outcome: Outcome, now_s: float) -> Iterable[WorkloadRequest]:
        task, i = self._calls.pop(request.request_id)
        if outcome is not Outcome.COMPLETED:
            return []
        computed_s = (request.prompt_tokens - task.repeated[i]) * self._prefill_s + task.outputs[i] * self._decode_s
        self._attained_s[task.number] = self._attained_s.get(task.number, 0.0) + computed_s
        if i + 1 == len(task.outputs):
            self.ended_s[task.number] = now_s
            return []
        return [self._call(task, i + 1, now_s + task.tools_s[i])]

    def _call(self, task: AgentTask, i: int, arrival_s: float) -> WorkloadRequest:
        call = Call(task.deadline_s - arrival_s, self._attained_s.get(task.number, 0.0))
        targets, priority = self._statement(call)
        request_id = f"task{task.number}.{i}"
        self._calls[request_id] = task, i
        return WorkloadRequest(
            request_id,
            arrival_s,
            task.prompts[i],
            task.outputs[i],
            DEFAULT_CLASSES.slo(None, targets),
            priority=priority,
            prefix_ids=task.ids(i),
            prefix_block_tokens=BLOCK,
        )
