"""The split of the latency: whose bars stand where, and that they add up."""

import pytest

from sloserve.sim.report.figure_style import line_styles
from sloserve.sim.report.split_plot import STAGES, completion_split_figure
from sloserve.sim.report.summary import Run

pytestmark = pytest.mark.slow  # matplotlib alone takes half a second to import


def run_of(policy: str, seed: int, *, waiting_s: float, paused_s: float = 0.0) -> Run:
    split = {"waiting_s": waiting_s, "running_s": 3.0, "evicted_s": 0.5, "paused_s": paused_s}
    return {"policy": policy, "seed": seed, "rps": 1.0, "completion_split": split}


def test_stages_of_each_policy_are_stacked_with_the_baseline_first() -> None:
    runs = [run_of("edf", 0, waiting_s=1.0, paused_s=2.0), run_of("edf", 1, waiting_s=3.0, paused_s=2.0)]
    runs += [run_of("stock", 0, waiting_s=8.0), {"policy": "live", "seed": 0, "rps": 1.0, "completion_split": None}]
    figure = completion_split_figure(runs, line_styles(["stock", "live", "edf"]), "2 requests/s")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stock", "edf"]
    bars = [container for container in axes.containers if len(container) == 2]
    widths = {label: [bar.get_width() for bar in of] for (label, _), of in zip(STAGES.values(), bars, strict=True)}
    assert widths == {"running": [3, 3], "waiting": [8, 2], "paused, KV kept": [0, 2], "preempted": [0.5, 0.5]}
    ends = [max(bar.get_x() + bar.get_width() for bar in of) for of in zip(*bars, strict=True)]
    assert ends == pytest.approx([11.5, 7.5])
    assert [text.get_text() for text in axes.texts] == ["11.5 s", "7.5 s"]
    assert (axes.get_title(), axes.get_xlim()[0]) == ("2 requests/s", 0.0)
