"""The output of a bench: the simulator's table, plots and raw logs, and one JSON file per run.

The JSON file has the format of ``vllm bench serve``.
"""

from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from sloserve.client.client_stats import client_was_late, findings
from sloserve.client.endpoint import Agreed, Endpoint
from sloserve.client.payload import Api
from sloserve.client.vllm_record import vllm_record
from sloserve.client.workload_replay import ReplayedRun
from sloserve.core import json_text
from sloserve.core.runlog import RunLog, StepLog
from sloserve.core.task_outcome import TaskOutcome
from sloserve.sim.bench.build_bench import Bench, LoadPoint
from sloserve.sim.report.compare import TASK_METRICS, Comparison, compare, load_unit
from sloserve.sim.report.logs import RESULT_JSON, LogWriter, Verdicts, with_versions, write_result
from sloserve.sim.report.summary import LatencySample, latencies, summarize
from sloserve.sim.report.tables import SHORT_UNITS, summary_table
from sloserve.sim.report.task_sample import TaskSample, task_sample
from sloserve.sim.report.task_table import task_table
from sloserve.sim.report.tenant_report import tenant_record
from sloserve.sim.report.tenant_table import tenant_table
from sloserve.sim.simulation import MIN_TABLE_WIDTH
from sloserve.sim.workloads.tasks.offered import describe_tasks

_NO_TIMES, _NO_COUNTS = np.empty(0), np.empty(0, np.int64)
NO_STEPS = StepLog(_NO_TIMES, _NO_TIMES, _NO_COUNTS, _NO_COUNTS, _NO_COUNTS, _NO_TIMES)
"""The empty log of engine steps, which a client does not see."""

TASKS_COMPARED = (
    ("tasks_in_time", "tasks in time"),
    ("mean_task_s", "task mean, s"),
    ("p99_task_s", "task p99, s"),
    ("prompt_hit_rate", "hit rate"),
)
COMPARED = (
    ("slo_attainment", "SLO attainment"),
    ("request_goodput", "goodput, requests/s"),
    ("output_throughput", "output, tokens/s"),
    ("median_ttft_ms", "TTFT p50, ms"),
    ("p99_ttft_ms", "TTFT p99, ms"),
    ("median_tpot_ms", "TPOT p50, ms"),
    ("p99_tpot_ms", "TPOT p99, ms"),
    ("median_itl_ms", "ITL p50, ms"),
    ("p99_itl_ms", "ITL p99, ms"),
    ("p99_e2el_ms", "e2e p99, ms"),
    ("qoe_mean", "QoE mean"),
    ("qoe_p10", "QoE p10"),
    ("qoe_p50", "QoE p50"),
)
"""The rows of the table of differences: the metric and its name."""


class BenchReporter:
    """The report of a bench, which takes runs as they end.

    A context manager; ``requests.csv`` holds what was added even if the bench breaks off.
    """

    def __init__(self, bench: Bench, out_dir: Path, console: Console, *, token_log: bool) -> None:
        self._bench = bench
        self._out_dir = out_dir
        self._console = console
        self._console.width = max(console.width, MIN_TABLE_WIDTH)
        self._logs = LogWriter(out_dir, token_log=token_log, task_log=bench.tasks is not None)
        self._tasks: list[TaskSample] = []
        self._endpoints: dict[str, dict[str, Any]] = {}
        self._runs: list[dict[str, Any]] = []
        self._samples: list[LatencySample] = []
        self._late = False

    def __enter__(self) -> Self:
        self._logs.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logs.__exit__(kind, error, trace)

    def endpoint(self, label: str, endpoint: Endpoint, agreed: Agreed) -> None:
        """Record the endpoint that responds under ``label``, and what was agreed with it."""
        self._endpoints[label] = {
            "url": endpoint.url,
            "model": endpoint.model,
            "context_tokens": endpoint.context_tokens,
            "version": endpoint.version,
            "continuous_usage": agreed.payload.continuous_usage,
        }
        if self._bench.payload.continuous_usage and not agreed.payload.continuous_usage:
            self._say(f"{label}: the endpoint refuses continuous_usage_stats; tokens are spread evenly over chunks")
        tasks = self._bench.tasks
        if tasks is not None and tasks.hints.task and not agreed.payload.headers:
            self._say(
                f"{label}: the calls do not state their task: --send-slo none, or the endpoint refuses x-slo-task-id"
            )

    def add(
        self,
        label: str,
        point: LoadPoint,
        run: ReplayedRun,
        ended_s: float,
        tasks: list[TaskOutcome] | None = None,
    ) -> None:
        """Add one run that ended at ``ended_s``; ``tasks`` are the outcomes of its tasks, if it had any."""
        requests = [ended.log(judged) for ended, judged in zip(run.exchanges, point.judged, strict=True)]
        log, bench = RunLog(requests, NO_STEPS, {"wall_s": run.duration_s}, tasks=tasks), self._bench
        found = findings(run)
        told = found["server_slo"]
        record = summarize(log, policy=label, seed=point.seed, rps=point.rps)
        record |= vllm_record(run, point.judged, from_due=True) | found | {"capped_requests": point.capped}
        record |= tenant_record(log, bench.alone)
        record["preemptions_per_request"] = told["evictions"] / len(requests) if told else None
        record["recomputed_tokens_per_request"] = None  # the engine's, and no server says
        if tasks is not None:
            self._tasks.append(task_sample(label, point.rps, tasks))
            if all(ended.cached_tokens is None for ended in run.exchanges):
                for figures in (record, *record.get("by_task_kind", {}).values()):
                    figures["prompt_hit_rate"] = None
        self._runs.append(record)
        self._samples.append(LatencySample(label, point.rps, latencies(requests)))
        self._logs.add(log, policy=label, seed=point.seed, rps=point.rps)
        self._write_flat(label, point, run, ended_s)
        self._late = self._late or client_was_late(run)

    def finish(self) -> list[dict[str, Any]]:
        """Print the tables, write ``result.json`` and the plots, and return the runs' records."""
        from sloserve.sim.report.plots import write_plots  # matplotlib: only where runs happened

        bench, first = self._bench, next(iter(self._bench.target.urls))
        comparisons = compare(self._runs, baseline=first)
        if bench.tasks is not None:
            comparisons += compare(self._runs, first, TASK_METRICS)
        write_result(
            self._out_dir / RESULT_JSON,
            self._runs,
            vllm_version=str(self._endpoints[first]["version"]),
            profile="live",
            workload={
                "name": bench.workload.name,
                "description": bench.workload.description,
                "slos": (bench.slos or bench.workload.slos).source,
                **(
                    {"requests": bench.load.max_requests}
                    if bench.tasks is None
                    else {"tasks": describe_tasks(bench.tasks)}
                ),
            },
            settings=self._settings(),
            verdicts=Verdicts(comparisons=comparisons),
        )
        about = with_versions(self._title(), str(self._endpoints[first]["version"]))
        plots = write_plots(self._out_dir, self._runs, self._samples, about=about, baseline=first, tasks=self._tasks)
        self._console.print(summary_table(self._runs, comparisons, title=self._title()))
        for table in (task_table(self._runs, comparisons), tenant_table(self._runs)):
            if table is not None:
                self._console.print(table)
        if comparisons:
            self._console.print(difference_table(comparisons, SHORT_UNITS[load_unit(self._runs)]))
        for line in self._remarks():
            self._say(line)
        for path in (self._out_dir / RESULT_JSON, *plots):
            self._say(f"wrote {path}")
        return self._runs

    def _settings(self) -> dict[str, Any]:
        bench = self._bench
        return {
            "endpoints": self._endpoints,
            "api": bench.payload.api.value,
            "prompt": "text" if bench.prompts is None else "tokens",
            "ignore_eos": bench.payload.ignore_eos,
            "send_slo": bench.slo_sent.value,
            "max_concurrency": bench.replay.max_concurrency,
            "timeout_s": bench.replay.timeout_s,
            "max_prompt_tokens": bench.shape.max_prompt_tokens,
            "max_output_tokens": bench.shape.max_output_tokens,
            "ramp_s": bench.shape.ramp_s,
            "warmup": bench.target.warmup,
        }

    def _write_flat(self, label: str, point: LoadPoint, run: ReplayedRun, ended_s: float) -> None:
        """Write one run to a file of its own, with the keys that ``vllm bench serve --save-result`` writes."""
        backend = "openai" if self._bench.payload.api is Api.COMPLETIONS else "openai-chat"
        record = {
            "date": datetime.fromtimestamp(ended_s, UTC).strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": backend,
            "backend": backend,
            "label": label,
            "model_id": self._endpoints[label]["model"],
            "tokenizer_id": None,
            "num_prompts": len(run.exchanges),
            "request_rate": point.rps,
            "burstiness": None,
            "max_concurrency": self._bench.replay.max_concurrency,
        } | vllm_record(run, point.judged, from_due=False)
        name = "".join(c if c.isalnum() or c in ".-" else "-" for c in f"vllm-{label}-{point.rps:.4g}rps-{point.seed}")
        text = json_text.dumps(record, indent=1)
        (self._out_dir / f"{name}.json").write_text(text + "\n", encoding="utf-8")

    def _title(self) -> str:
        load, tasks = self._bench.load, self._bench.tasks
        amount = f"at most {load.max_requests} requests" if tasks is None else f"{tasks.count} tasks"
        return (
            f"{self._bench.workload.name} against {', '.join(self._endpoints)}, seeds {load.seeds[0]} to "
            f"{load.seeds[-1]}, {amount} each, times from when a request was due"
        )

    def _remarks(self) -> list[str]:
        """Return the lines that a reader must know to trust the table."""
        runs, said = self._runs, []
        if self._bench.tasks is not None and all(run["tasks_in_time"] is None for run in runs):
            said.append("tasks have no deadline; --task-deadline SECONDS sets one, or --profile with a multiple")
        if self._bench.tasks is not None and all(run["prompt_hit_rate"] is None for run in runs):
            said.append("the server does not state cached tokens (vLLM: --enable-prompt-tokens-details)")
        capped, sent = sum(run["capped_requests"] for run in runs), sum(run["requests"] for run in runs)
        if capped:
            said.append(f"{capped} of {sent} requests were cut to --max-prompt-tokens or --max-output-tokens")
        rejected = sum(run["rejected"] for run in runs)
        unfinished = sent - rejected - sum(run["completed"] for run in runs)
        if rejected or unfinished:
            said.append(f"{rejected} of {sent} requests were rejected, {unfinished} more not completed:")
            texts = dict.fromkeys(text for run in runs for text in run["errors"])
            said += [f"  {sum(run['errors'].get(text, 0) for run in runs)} x {text}" for text in list(texts)[:5]]
        for run in runs:
            if told := run["server_slo"]:
                said.append(
                    f"{run['policy']} seed {run['seed']}: the server's verdict differs on {told['disagreements']} of "
                    f"{told['reports']} requests, its times by at most {told['max_difference_ms']:.1f} ms"
                )
        worst = [max(run["client"][f"{lag}_ms_p99"] or 0.0 for run in runs) for lag in ("send_lag", "loop_lag")]
        said.append(f"the client was {worst[0]:.1f} ms late in sending and {worst[1]:.1f} ms in waking (p99)")
        if self._late:
            said.append("warning: the figures above contain the lateness of a client without enough processor time")
        return said

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)  # servers' words are no markup


def difference_table(comparisons: list[Comparison], unit: str) -> Table:
    """Return a table of the second endpoint beside the first, load by load.

    It has means over seeds and the mean of paired differences.
    """
    named = {comparison.metric: comparison for comparison in comparisons}
    one = named["slo_attainment"]
    table = Table(title=f"{one.policy} against {one.baseline}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in (f"load {unit}", "figure", one.baseline, one.policy, "difference", "95 % interval", "verdict"):
        table.add_column(heading, justify="left" if heading in ("figure", "verdict") else "right")
    for load in sorted({comparison.load for comparison in comparisons}):
        at = {comparison.metric: comparison for comparison in comparisons if comparison.load == load}
        for metric, name in (*TASKS_COMPARED, *COMPARED):
            found = at.get(metric)
            if found is None or found.value is None or found.baseline_value is None or found.difference is None:
                continue
            low, high = found.difference_low, found.difference_high
            table.add_row(
                f"{load:.3g}",
                name,
                f"{found.baseline_value:.4g}",
                f"{found.value:.4g}",
                f"{found.difference:+.3g}",
                "" if low is None or high is None else f"{low:+.3g} .. {high:+.3g}",
                found.verdict.value,
            )
    return table
