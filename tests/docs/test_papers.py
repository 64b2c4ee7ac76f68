"""Each figure and table of the five papers has a command and its results, or a reason why it has none."""

import tomllib
from itertools import chain

import pytest

from benchmarks.fleet.fleet_qlm import SECTIONS
from sloserve.sim.experiments import EXPERIMENTS
from tests.docs.pages import ROOT

REASONS = {"needs a GPU", "needs human subjects", "needs data that cannot be had", "not about the system"}
PAPERS = tomllib.loads((ROOT / "benchmarks" / "paper_figures.toml").read_text())
OPEN = {("econo", "Figure 2"), ("econo", "Figure 6")}
"""Not run yet: an entry may leave this set, none may join it."""


def _exists(command: str) -> bool:
    module, _, section = command.partition(" ")
    if not module.startswith("benchmarks."):
        return command in EXPERIMENTS
    return (ROOT / f"{module.replace('.', '/')}.py").exists() and (not section or section in SECTIONS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_and_table_stands_in_the_list_once(paper: str) -> None:
    entry = PAPERS[paper]
    expected = [f"{kind} {n + 1}" for kind in ("Figure", "Table") for n in range(entry[f"{kind.lower()}s"])]
    assert sorted(chain.from_iterable(row["of"] for row in entry["rows"])) == sorted(expected)


@pytest.mark.parametrize("paper", PAPERS)
def test_each_has_a_command_with_results_or_a_reason(paper: str) -> None:
    for row in PAPERS[paper]["rows"]:
        if "command" in row:
            assert _exists(row["command"]), row
            assert row["results"], row
            assert [r for r in row["results"] if not (ROOT / "benchmarks" / "results" / r).exists()] == [], row
        elif not row.get("open"):
            assert row.get("reason") in REASONS, row


def test_what_is_not_run_yet_is_known() -> None:
    found = {(paper, of) for paper in PAPERS for row in PAPERS[paper]["rows"] if row.get("open") for of in row["of"]}
    assert found <= OPEN
