"""Figures of the tasks of a run, for the record of a run in which requests are calls of tasks.

Latency is from the arrival of a task to the end of its last call, with the time of tools and users in it. Latencies are
of finished tasks; a task of which a call did not complete is unfinished and never in time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sloserve.core.runlog import RequestLog
from sloserve.core.task_outcome import TaskOutcome
from sloserve.sim.report.statistics import mean_of, percentile_of


def task_record(tasks: Sequence[TaskOutcome], requests: Sequence[RequestLog]) -> dict[str, Any]:
    """Return the figures of the tasks of one run, over all tasks and, where there are several, by kind of task.

    Args:
        tasks: The tasks.
        requests: The calls of all of them.
    """
    logs = {log.request.request_id: log for log in requests}
    kinds = dict.fromkeys(task.kind for task in tasks)
    record = _figures(tasks, logs)
    if len(kinds) > 1:
        record["by_task_kind"] = {kind: _figures([t for t in tasks if t.kind == kind], logs) for kind in kinds}
    return record


def _figures(tasks: Sequence[TaskOutcome], logs: Mapping[str, RequestLog]) -> dict[str, Any]:
    finished = [(task, task.latency_s) for task in tasks if task.latency_s is not None]
    latency_s = np.array([latency_s for _, latency_s in finished])
    due = [task.in_time for task in tasks if task.in_time is not None]
    calls = [logs[name] for task in tasks for name in task.requests]
    firsts = [(task, logs[task.requests[0]].first_token_s) for task in tasks if task.requests]
    first_tokens_s = np.array([first_s - task.arrival_s for task, first_s in firsts if first_s is not None])
    prompt_tokens = sum(call.request.prompt_tokens for call in calls)
    return {
        "tasks": len(tasks),
        "tasks_finished": len(finished) / len(tasks),
        "tasks_in_time": sum(due) / len(due) if due else None,
        "mean_task_s": mean_of(latency_s),
        **{f"{name}_task_s": percentile_of(latency_s, p) for name, p in (("median", 50), ("p90", 90), ("p99", 99))},
        "max_task_first_token_s": float(first_tokens_s.max()) if first_tokens_s.size else None,
        "calls_per_task": len(calls) / len(tasks),
        "tool_time_share": sum(t.tools_s for t, _ in finished) / float(latency_s.sum()) if finished else None,
        "prompt_hit_rate": sum(call.cached_tokens for call in calls) / prompt_tokens if prompt_tokens else None,
    }
