"""Drive tasks of many calls against an endpoint: a closed loop, in which the next call waits for the response."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import httpx

from sloserve.client.exchange import Exchange
from sloserve.client.payload import PayloadSettings, payload, task_headers
from sloserve.client.workload_replay import ReplayedRun, ReplaySettings, Sender, sending
from sloserve.core.clock import Clock
from sloserve.core.outcome import Outcome
from sloserve.core.task_outcome import TaskOutcome
from sloserve.sim.bench.task_prompts import Output, TaskPrompts
from sloserve.sim.task_runs import TaskRun
from sloserve.sim.workloads.tasks.progress import Sends, TaskProgress
from sloserve.sim.workloads.tasks.source import call_request


@dataclass(frozen=True, slots=True)
class TaskTarget:
    """How the calls of one run are sent.

    Args:
        client: The HTTP client of the endpoint.
        payload: Settings of all requests.
        prompts: Makes the prompts.
        replay: Limits of the run.
        states_tasks: Whether calls state their task in headers; a server may refuse to read them.
        run_id: Text before the name of each task, so that the server tells the tasks of several runs apart.
    """

    client: httpx.AsyncClient
    payload: PayloadSettings
    prompts: TaskPrompts
    replay: ReplaySettings
    states_tasks: bool
    run_id: str


async def replay_tasks(
    target: TaskTarget, run: TaskRun, clock: Clock, on_ended: Callable[[], None] | None = None
) -> tuple[ReplayedRun, list[TaskOutcome]]:
    """Drive all tasks of ``run`` to their ends.

    A call is sent when the calls that it follows have completed and its tool or user has taken its time; its prompt has
    their real outputs in it. A task ends unfinished if a call of it does not complete.

    Args:
        target: The endpoint, and how calls are sent.
        run: The tasks.
        clock: Measures the run.
        on_ended: Called as each task ends.

    Returns: the run, with the calls in the order in which they were due, and the outcomes of the tasks.

    Raises: ConfigError as soon as a response shows that the workload is wrong; what is under way is then cancelled.
    """
    exchanges: list[Exchange] = []
    tasks = [_Task(TaskProgress(plan), i, run, target, exchanges, on_ended) for i, plan in enumerate(run.plans)]
    async with sending(target.client, clock, target.replay) as (sender, group):
        for task in tasks:
            task.start(sender, group)
    exchanges.sort(key=lambda ended: ended.request.arrival_s)
    return sender.run(exchanges), [task.progress.outcome() for task in tasks]


class _Task:
    """One task under way."""

    def __init__(
        self,
        progress: TaskProgress,
        index: int,
        run: TaskRun,
        target: TaskTarget,
        exchanges: list[Exchange],
        on_ended: Callable[[], None] | None,
    ) -> None:
        self.progress = progress
        self._slos, self._hints = run.slos[index], run.hints
        self._target, self._exchanges, self._on_ended = target, exchanges, on_ended
        self._outputs: dict[int, Output] = {}

    def start(self, sender: Sender, group: asyncio.TaskGroup) -> None:
        self._spawn(self.progress.first(), sender, group)

    def _spawn(self, sends: Sends, sender: Sender, group: asyncio.TaskGroup) -> None:
        for i, at_s in sends:
            group.create_task(self._call(i, at_s, sender, group))

    async def _call(self, i: int, at_s: float, sender: Sender, group: asyncio.TaskGroup) -> None:
        progress, target, plan = self.progress, self._target, self.progress.plan
        await sender.sleep_until(at_s)
        woke_s = sender.now_s
        if progress.has_failed:
            progress.not_sent(i)
            return
        request = replace(call_request(plan, i, at_s, self._slos[i], self._hints), prefix_ids=())
        stated = {}
        if target.states_tasks and request.call is not None:
            named = replace(request.call, key=f"{target.run_id}-{request.call.key}")
            stated = task_headers(named, plan.arrival_s)
        prompt = target.prompts.make(plan, i, self._outputs)
        sent = payload(request, prompt, replace(target.payload, headers=stated))
        ended = await sender.send(sent, woke_s, keep_output=True)
        self._exchanges.append(ended)
        self._outputs[i] = Output(ended.output_text, ended.output_ids)
        was_over = progress.is_over
        follow = progress.ended(i, ended.ended_s, completed=ended.outcome is Outcome.COMPLETED)
        if progress.is_over and not was_over and self._on_ended is not None:
            self._on_ended()
        self._spawn(follow, sender, group)
