"""Figures reply by reply: which load they are of, who is in them and where the expectation lies."""

from collections.abc import Callable

import numpy as np
import pytest

from sloserve.core.runlog import RequestLog, RunLog
from sloserve.sim.report.experience import TimedOutputs, replies_of
from sloserve.sim.report.figure_style import line_styles
from sloserve.sim.report.qoe_plots import lengths_figure, shown_load, timelines_figure

pytestmark = pytest.mark.slow  # matplotlib alone takes half a second to import

MakeRequest = Callable[..., RequestLog]
MakeRun = Callable[..., RunLog]


def of(logs: list[RequestLog], seed: int = 0) -> TimedOutputs:
    found = replies_of(logs, seed)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("loads", "in_capacity", "expected"),
    [([0.5, 1.0, 2.0], True, 1.0), ([0.7, 1.4, 1.7, 2.0], True, 1.4), ([2.0, 4.0, 8.0], False, 4.0)],
)
def test_shown_load_is_the_nearest_to_one_and_a_half(loads: list[float], in_capacity: bool, expected: float) -> None:
    assert shown_load(loads, in_capacity=in_capacity) == expected


def test_a_panel_for_each_policy_stock_first(synthetic_run: MakeRun) -> None:
    replies = {
        policy: [of(synthetic_run(seed=seed, delay_s=delay_s, requests=120).requests, seed) for seed in range(2)]
        for policy, delay_s in (("edf", 0.3), ("stock", 3.0), ("sjf", 1.0))
    }
    figure = lengths_figure(replies, line_styles(["edf", "stock", "sjf"]), "1.5 x stock's capacity")
    assert [axes.get_title().split(",")[0] for axes in figure.axes] == ["stock", "edf", "sjf"]
    assert figure.get_suptitle() == "QoE by length, 1.5 x stock's capacity"
    points = np.ma.getdata(figure.axes[0].collections[0].get_offsets())
    assert points.shape == (120, 2), "60 readers in each of two seeds"
    means = figure.axes[0].lines[0].get_xydata()
    assert means.shape == (10, 2) and np.all(np.diff(means[:, 0]) > 0)
    assert np.mean(means[:, 1]) == pytest.approx(np.mean(points[:, 1]))


def test_few_replies_have_no_means(request_log: MakeRequest) -> None:
    figure = lengths_figure({"edf": [of([request_log("a", 0.0, [0.5])])]}, line_styles(["edf"]), "1 requests/s")
    assert not figure.axes[0].lines


def test_timelines_count_from_arrival_beside_the_expectation(request_log: MakeRequest) -> None:
    """One of two replies is drawn; both are alike. Expected: within 1 s, then 5 a second."""
    on_time, late = ([request_log(i, 4.0, [d, d + 1.0, d + 3.0]) for i in "ab"] for d in (4.5, 24.0))
    figure = timelines_figure({"edf": [of(on_time)], "stock": [of(late)]}, line_styles(["edf", "stock"]), "x")
    stock, edf = figure.axes
    assert (stock.get_title(), edf.get_title()) == ("stock, 1 of 2", "edf, 1 of 2")
    reply, expected = edf.lines
    assert (list(reply.get_xdata()), list(reply.get_ydata())) == ([0.5, 1.5, 3.5], [1, 2, 3])
    assert (list(expected.get_xdata()), list(expected.get_ydata())) == ([0.0, 1.0, 1.6], [0.0, 0.0, 3.0])
    assert edf.get_xlim() == stock.get_xlim() == (0.0, 23.0), "on the axis of the slower"


def test_a_seed_with_another_expectation_stays_out(request_log: MakeRequest) -> None:
    ours = of([request_log("a", 0.0, [0.5, 1.0])])
    other = TimedOutputs(ours.total_tokens, ours.qoe, type(ours.timelines)(1.0, 9.0, 7, ours.timelines.delivered_s))
    figure = timelines_figure({"edf": [ours, other]}, line_styles(["edf"]), "x")
    assert figure.axes[0].get_title() == "edf, 1 of 1"


def test_a_reply_without_tokens_is_counted(request_log: MakeRequest) -> None:
    figure = timelines_figure({"edf": [of([request_log("a", 0.0, [])])]}, line_styles(["edf"]), "x")
    assert figure.axes[0].get_title() == "edf, 1 of 1"


def test_a_panel_above_an_empty_place_keeps_its_ticks(request_log: MakeRequest) -> None:
    replies = {policy: [of([request_log("a", 0.0, [0.5])])] for policy in ("a", "b", "c", "d", "e")}
    figure = lengths_figure(replies, line_styles(list(replies)), "x")
    shown = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes if axes.get_visible()]
    assert shown == [False, True, True, True, True]
