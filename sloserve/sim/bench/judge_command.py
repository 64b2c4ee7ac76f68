"""The command ``sloserve judge``."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import app
from sloserve.core import json_text
from sloserve.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The counts of one run; ``met`` is, for each target, the number of requests that met it."""

    tool: str
    requests: int
    completed: int
    met: dict[str, int]
    good: int
    attainment: float
    goodput_per_s: float | None

    def __str__(self) -> str:
        lines = [f"{self.tool}: {self.requests} requests, {self.completed} completed"]
        lines += [f"  {name:<12}{_share(count, self.requests)}" for name, count in self.met.items()]
        lines.append(f"  {'all targets':<12}{_share(self.good, self.requests)}")
        if self.goodput_per_s is not None:
            lines.append(f"  goodput     {self.goodput_per_s:.2f} requests/s")
        return "\n".join(lines)


@app.command()
def judge(
    file: Annotated[Path, typer.Argument(help="Result of vllm bench serve, guidellm or aiperf.", show_default=False)],
    goodput: Annotated[
        list[str] | None,
        typer.Option(help="Targets in ms, as in ttft:500,tpot:50,e2el:2000.", show_default=False),
    ] = None,
    at_least: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Percent of requests that must meet all targets, else status 1.")
    ] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Say how many requests of a result met their targets.

    Read are `vllm bench serve --save-result --save-detailed`, guidellm's benchmarks.json and aiperf's
    profile_export.jsonl. A request without a complete answer met none. See docs/bench.md.
    """
    from sloserve.client.goodput_targets import parse_goodput
    from sloserve.sim.bench.foreign_results import read_runs

    targets = parse_goodput(goodput or ()).overall
    if targets is None:
        raise ConfigError("judge needs targets: --goodput ttft:500,tpot:50,e2el:2000, one or more of them, in ms")
    try:
        verdicts = [_verdict(run, targets) for run in read_runs(file) if run.requests]
    except ConfigError as error:
        raise ConfigError(str(error) if str(file) in str(error) else f"{file}: {error}") from None
    print(json_text.dumps([asdict(one) for one in verdicts], indent=2) if as_json else "\n".join(map(str, verdicts)))
    if any(100.0 * one.attainment < at_least for one in verdicts):
        raise typer.Exit(1)


def _verdict(run: Any, targets: Any) -> _Verdict:
    from sloserve.core.goodput import attainment
    from sloserve.core.outcome import Outcome

    ended = run.judged(targets)
    counted = attainment(ended)
    return _Verdict(
        tool=run.tool,
        requests=len(ended),
        completed=sum(one.outcome is Outcome.COMPLETED for one in ended),
        met={name: sum(one.met[name] for one in ended) for name in ended[0].met},
        good=counted.good,
        attainment=counted.good / counted.total,
        goodput_per_s=counted.goodput_per_s(run.duration_s) if run.duration_s else None,
    )


def _share(count: int, of: int) -> str:
    return f"{100.0 * count / of:5.1f} %   {count} of {of}"
