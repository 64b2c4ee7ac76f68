"""The options that say which tasks of many calls are offered, the same for a simulation and for a live endpoint.

Imports nothing that takes long, so that ``--help`` responds at once.
"""

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The options of tasks, which replace the requests of a workload or a trace."""

    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks of many calls in a closed loop, in place of --workload: react, coding, map-reduce, chat, "
            "mooncake or small-beside-large. A call is sent when those before it have ended and a tool or a user took "
            "its time."
        ),
    ] = None
    task_rate: Annotated[
        str | None, typer.Option(help="With --tasks: tasks per second, comma-separated. Default: the workload's own.")
    ] = None
    task_count: Annotated[int, typer.Option(help="With --tasks: tasks per run.")] = 70
    task_scale: Annotated[
        float, typer.Option(help="With --tasks: factor on all lengths in tokens, such as 0.02 for a small engine.")
    ] = 1.0
    task_deadline: Annotated[
        str | None,
        typer.Option(
            help="With --tasks: seconds that a task has: 2x+5 is twice its latency on an idle engine and 5 s, 60 is a "
            "minute, none is no deadline. Default: the workload's own."
        ),
    ] = None
    task_hints: Annotated[
        str,
        typer.Option(
            help="With --tasks: what clients state of their tasks, comma-separated: id, deadline, calls (calls=0.3 is "
            "0.3 times the true number), last; or none. All but none include the id."
        ),
    ] = "deadline"
