"""The raw logs of an experiment on disk: a row per request, if asked for a row per token, and the records of all runs.

Two experiments that are equal leave equal bytes, except under ``timing``, which holds what was measured: floats are
written in their shortest exact form, JSON keys are sorted, and gzip carries neither time nor name.
"""

import csv
import gzip
import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sloserve import __version__
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.core.task_outcome import TaskOutcome
from sloserve.sim.report.compare import Comparison
from sloserve.sim.report.load_capacity import LoadCapacity

REQUESTS_CSV = "requests.csv"
TOKENS_CSV = "tokens.csv.gz"
TASKS_CSV = "tasks.csv"
RESULT_JSON = "result.json"

RUN_COLUMNS = ("policy", "seed", "rps")
REQUEST_COLUMNS = (
    *RUN_COLUMNS,
    "request_id",
    "class",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "first_token_s",
    "finish_s",
    "ttft_target_s",
    "tpot_target_s",
    "e2e_target_s",
    "tds_target",
    "outcome",
    "qoe",
    "tenant",
)
TASK_COLUMNS = (
    *RUN_COLUMNS,
    "task",
    "kind",
    "arrival_s",
    "due_s",
    "ended_s",
    "calls",
    "completed_calls",
    "tools_s",
)
TOKEN_COLUMNS = (*RUN_COLUMNS, "request_id", "token", "time_s")

TIME_DECIMALS = 9
"""The decimals of times in seconds, which gives nanoseconds: smaller differences come from the rounding of sums."""


def request_row(log: RequestLog) -> tuple[object, ...]:
    """Return the columns of ``requests.csv`` behind the columns of the run; a field without a value is empty.

    ``output_tokens`` counts delivered tokens, so it is less than the workload's for a request that was not completed.
    """
    request, targets = log.request, log.request.slo.targets
    return (
        request.request_id,
        request.slo.slo_class.name,
        _time(request.arrival_s),
        request.prompt_tokens,
        log.token_times_s.size,
        _time(log.first_token_s),
        _time(log.finish_s),
        targets.ttft_s,
        targets.tpot_s,
        targets.e2e_s,
        targets.tds,
        log.outcome.value,
        _time(log.qoe),
        request.tenant,
    )


def task_row(task: TaskOutcome) -> tuple[object, ...]:
    """Return the columns of ``tasks.csv`` behind the columns of the run; a field without a value is empty."""
    return (
        task.key,
        task.kind,
        _time(task.arrival_s),
        None if task.due_s == math.inf else _time(task.due_s),
        _time(task.ended_s),
        task.calls,
        task.completed_calls,
        _time(task.tools_s),
    )


class LogWriter:
    """The writer of ``requests.csv`` of one experiment, and of ``tasks.csv`` and ``tokens.csv.gz`` if asked.

    It writes run by run, in the order of :meth:`add`. A context manager: the files are complete once it is left. What a
    broken-off experiment has added stays.
    """

    def __init__(self, out_dir: Path, *, token_log: bool = False, task_log: bool = False) -> None:
        self._out_dir = out_dir
        self._task_log = task_log
        self._token_log = token_log
        self._files = ExitStack()

    def __enter__(self) -> Self:
        self._out_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:
            plain = files.enter_context(open(self._out_dir / REQUESTS_CSV, "w", encoding="utf-8", newline=""))
            self._requests = csv.writer(plain, lineterminator="\n")
            self._requests.writerow(REQUEST_COLUMNS)
            if self._task_log:
                of_tasks = files.enter_context(open(self._out_dir / TASKS_CSV, "w", encoding="utf-8", newline=""))
                self._tasks = csv.writer(of_tasks, lineterminator="\n")
                self._tasks.writerow(TASK_COLUMNS)
            if self._token_log:
                raw = files.enter_context(open(self._out_dir / TOKENS_CSV, "wb"))
                packed = files.enter_context(
                    gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0)
                )
                text = files.enter_context(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
                self._tokens = csv.writer(text, lineterminator="\n")
                self._tokens.writerow(TOKEN_COLUMNS)
            self._files = files.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def add(self, log: RunLog, *, policy: str, seed: int, rps: float) -> None:
        """Append one run: its requests in the order of the workload, their tokens counted from 0."""
        head = (policy, seed, float(rps))
        self._requests.writerows((*head, *request_row(request)) for request in log.requests)
        if self._task_log:
            self._tasks.writerows((*head, *task_row(task)) for task in log.tasks or ())
        if self._token_log:
            for request in log.requests:
                row = (*head, request.request.request_id)
                times_s = request.token_times_s.round(TIME_DECIMALS).tolist()
                self._tokens.writerows((*row, token, time_s) for token, time_s in enumerate(times_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The verdicts over all runs: each policy against the baseline, and the loads that each policy carries.

    One load is for a threshold of mean QoE, the other for a threshold of normalised latency.
    """

    comparisons: Sequence[Comparison] = ()
    qoe_capacity: Sequence[LoadCapacity] = ()
    latency_capacity: Sequence[LoadCapacity] = ()


def with_versions(title: str, vllm_version: str) -> str:
    """Return the caption of a figure: ``title``, which says what was measured, and the versions that measured it."""
    return f"{title}; sloserve {__version__}, vLLM {vllm_version}"


def write_result(
    path: Path,
    runs: Sequence[Mapping[str, Any]],
    *,
    vllm_version: str,
    profile: str,
    workload: Mapping[str, Any],
    settings: Mapping[str, Any],
    verdicts: Verdicts = Verdicts(),
) -> None:
    """Write ``result.json``.

    Args:
        path: Path of the file.
        runs: Records of the runs.
        vllm_version: Version of vLLM that ran or was modelled.
        profile: Name of the profile of step times.
        workload: Name or trace, and what was made of it.
        settings: Everything else that the runs depend on.
        verdicts: What all runs say together.

    Raises: ValueError for a number that JSON does not have; records hold ``None`` for "no data".
    """
    result = {
        "sloserve_version": __version__,
        "vllm_version": vllm_version,
        "profile": profile,
        "workload": dict(workload),
        "settings": dict(settings),
        "runs": [dict(run) for run in runs],
        "comparisons": [comparison.as_dict() for comparison in verdicts.comparisons],
        "qoe_capacity": [capacity.as_dict() for capacity in verdicts.qoe_capacity],
        "latency_capacity": [capacity.as_dict() for capacity in verdicts.latency_capacity],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _time(value_s: float | None) -> float | None:
    return None if value_s is None else round(float(value_s), TIME_DECIMALS)
