"""The command ``sloserve bench``."""

from dataclasses import replace
from typing import Annotated

import typer

from sloserve.cli.option_groups import with_option_groups
from sloserve.cli.root import app
from sloserve.core.errors import ConfigError
from sloserve.sim.bench.bench_options import BenchOptions
from sloserve.sim.report.output_flags import OutputFlags


@app.command()
@with_option_groups
def bench(
    options: BenchOptions,
    output: OutputFlags,
    more_goodput: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="KEY:MS")] = None,
) -> None:
    """Send a workload to a server and measure its service.

    The server has the API of OpenAI; latencies, attainment and goodput are measured.
    Requests, table, plots and raw logs are the same as in `sloserve simulate`; a JSON file has the keys of `vllm bench
    serve`. Without --rps or --rate-scale the workload has its own rate. Latency counts from when a request was due.
    Nothing is retried: 429 and 503 count as rejections; another 4xx stops the run. See docs/bench.md.
    """
    from sloserve.core.clock import SystemClock
    from sloserve.sim.bench.build_bench import build_bench
    from sloserve.sim.bench.run import bench as run

    if more_goodput and not options.goodput:
        raise ConfigError(f"unexpected argument {more_goodput[0]!r}; only the keys of --goodput come without a flag")
    goodput = [*(options.goodput or ()), *(more_goodput or ())]
    settings = build_bench(replace(options, goodput=goodput))
    run(settings, output.out, SystemClock(), token_log=output.token_log, console=output.console())
    output.show_result()
