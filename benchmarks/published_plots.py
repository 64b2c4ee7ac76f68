"""Draws the figures that the docs show, from results/*/runs.csv.gz: nothing is run.

Usage: python -m benchmarks.published_plots [FOLDER]

FOLDER: results by default; elsewhere, to look at a change of style first.
"""

from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from benchmarks.arguments import parser_for
from benchmarks.fleet.fleet_figure import draw
from benchmarks.fleet.fleet_qlm import SECTIONS
from benchmarks.publish import RESULTS, RUNS, caption, read_runs
from sloserve.sim.report.plots import write_plots

SHOWN = (
    ("azure-conv", "attainment.png"),
    ("qoe-reading", "qoe.png"),
    ("econo-sharegpt", "normalized_latency.png"),
    ("sa-azure-conv", "attainment.png"),
)
FLEET_SECTION = "throughput"
KEYS_SINCE = ("completion_split", "step_token_utilization_mean")
"""Figures of a run that the oldest results do not have."""


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS)
    to = parser.parse_args().folder
    for experiment in dict.fromkeys(name for name, _ in SHOWN):
        runs = [dict.fromkeys(KEYS_SINCE) | run for run in read_runs(RESULTS / experiment / RUNS)]
        with TemporaryDirectory() as folder:
            write_plots(Path(folder), runs, [], about=caption(RESULTS / experiment))
            for file in (file for name, file in SHOWN if name == experiment):
                (to / experiment).mkdir(parents=True, exist_ok=True)
                copyfile(Path(folder) / file, to / experiment / file)
                print(f"wrote {to / experiment / file}")
    name = f"fleet-qlm-{FLEET_SECTION}"
    (to / name).mkdir(parents=True, exist_ok=True)
    rows, file = read_runs(RESULTS / name / RUNS), to / name / "attainment.png"
    draw(SECTIONS[FLEET_SECTION], rows, file, caption(RESULTS / name))
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
