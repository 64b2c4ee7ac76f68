"""Figures: which are written, that they are reproducible, and what the lines in them are."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from PIL import Image

from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.sim.report.compare import CAPACITY, REQUESTS
from sloserve.sim.report.experience import replies_of
from sloserve.sim.report.figure_style import COLOURS, PALENESS, line_styles, paler, styled, three_digits, write_figure
from sloserve.sim.report.load_plots import (
    attainment_figure,
    normalized_latency_figure,
    throughput_figure,
    utilization_figure,
)
from sloserve.sim.report.plots import (
    ATTAINMENT_PNG,
    COMPLETION_SPLIT_PNG,
    LATENCY_PNG,
    NORMALIZED_PNG,
    QOE_LENGTH_PNG,
    QOE_PNG,
    THROUGHPUT_PNG,
    TIMELINES_PNG,
    UTILIZATION_PNG,
    latency_figure,
    write_plots,
)
from sloserve.sim.report.summary import LatencySample, Run, latencies, summarize

pytestmark = pytest.mark.slow  # matplotlib alone takes half a second to import

MakeRequest = Callable[..., RequestLog]
MakeSteps = Callable[..., StepLog]
MakeRun = Callable[..., RunLog]
Experiment = tuple[list[Run], list[LatencySample]]


@pytest.fixture
def experiment(synthetic_run: MakeRun) -> Experiment:
    runs, samples = [], []
    for policy, delay_s in (("stock", 1.0), ("edf", 0.5)):
        for load in (0.5, 1.0):
            for seed in range(2):
                log = synthetic_run(seed=seed, delay_s=delay_s * load)
                runs.append(summarize(log, policy=policy, seed=seed, rps=4.0 * load, load=load))
                samples.append(LatencySample(policy, load, latencies(log.requests), replies_of(log.requests, seed)))
    return runs, samples


def test_nine_figures_with_equal_bytes_for_equal_input(tmp_path: Path, experiment: Experiment) -> None:
    runs = [run for run in experiment[0] if run["load"] == 1.0]
    samples = [sample for sample in experiment[1] if sample.load == 1.0]
    written = write_plots(tmp_path / "a", runs, samples, about="chats on h100")
    assert [path.name for path in written] == [
        *(ATTAINMENT_PNG, LATENCY_PNG, QOE_PNG, NORMALIZED_PNG, THROUGHPUT_PNG),
        *(UTILIZATION_PNG, COMPLETION_SPLIT_PNG, QOE_LENGTH_PNG, TIMELINES_PNG),
    ]
    for path, again in zip(written, write_plots(tmp_path / "b", runs, samples, about="chats on h100"), strict=True):
        assert path.read_bytes() == again.read_bytes()
        assert path.read_bytes().startswith(b"\x89PNG")


def test_figures_without_data_are_left_out(tmp_path: Path, request_log: MakeRequest, step_log: MakeSteps) -> None:
    free = RunLog([request_log("a", 0.0, [0.5, 0.6], slo_class="free")], step_log())
    runs = [summarize(free, policy="stock", seed=0, rps=1.0)]
    written = write_plots(
        tmp_path,
        runs,
        [LatencySample("stock", 1.0, latencies(free.requests), replies_of(free.requests, 0))],
        about="",
    )
    assert [path.name for path in written] == [LATENCY_PNG, NORMALIZED_PNG, THROUGHPUT_PNG]
    assert write_plots(tmp_path, [], [], about="") == []


def test_baseline_is_black_dashed_and_last() -> None:
    styles = line_styles(["stock", "fcfs", "edf"])
    assert list(styles) == ["fcfs", "edf", "stock"]
    assert styles["stock"]["color"] == "black" and styles["stock"]["linestyle"] != "-"


def test_a_policy_has_one_colour_in_all_figures_and_its_options_a_paler_one() -> None:
    few, many = line_styles(["stock", "econo"]), line_styles(["mine", "edf", "sjf", "econo", "econo:preempt=false"])
    assert few["econo"]["color"] == many["econo"]["color"]
    assert many["econo:preempt=false"]["color"] == paler(many["econo"]["color"], PALENESS[1])
    neighbours = list(many.values())
    assert all(a["linestyle"] != b["linestyle"] for a, b in zip(neighbours, neighbours[1:], strict=False))
    assert len({style["marker"] for style in neighbours}) == 5
    plain = [many[policy]["color"] for policy in ("mine", "edf", "sjf", "econo")]
    assert len(set(plain)) == 4 and set(plain) < {colour.lower() for colour in COLOURS}
    refusing = line_styles(["stock", "stock+predict"])["stock+predict"]["color"]
    assert refusing == paler("black", PALENESS[1])


SEVEN = ("stock", "fcfs", "edf", "sjf", "sjf:length=oracle", "econo:length=oracle:tokens_per_step=500", "andes")


def many_runs(loads: Sequence[float], policies: Sequence[str] = SEVEN) -> list[Run]:
    return [
        {"policy": p, "load": load, "seed": seed, "normalized_latency_ms": (3.0 + i) * (load + seed), "qoe_mean": 0.5}
        for load in loads
        for seed in range(3)
        for i, p in enumerate(policies)
    ]


@pytest.mark.parametrize("loads", [[1.5], [0.5, 1.0, 1.5, 2.0, 2.5]])
def test_nothing_runs_out_of_the_picture(loads: list[float]) -> None:
    figure = normalized_latency_figure(many_runs(loads), line_styles(SEVEN))
    FigureCanvasAgg(figure).draw()
    axes, differences = figure.axes
    note = "whiskers: 95 % interval of the mean over 3 seeds; differences are taken seed by seed"
    assert [legend.get_title().get_text() for legend in figure.legends] == ([note] if len(loads) > 1 else [])
    drawn_in = figure.get_tightbbox()  # of all that shows: axes, labels and legend
    assert min(drawn_in.x0, drawn_in.y0) >= 0.0
    assert drawn_in.x1 <= figure.get_figwidth() and drawn_in.y1 <= figure.get_figheight()
    assert axes.bbox.height > 1.5 * figure.dpi, "the legend took the place of the data"


def test_differences_stand_in_a_panel_of_their_own_and_a_line_hides_none() -> None:
    figure = attainment_figure(shares(3), line_styles(["stock", "edf"]))
    values, differences = figure.axes
    edf, stock = (container for container in values.containers)
    assert edf[0].get_linewidth() > stock[0].get_linewidth()
    assert edf.lines[2][0].get_segments()[0][:, 1].tolist() == [1.0, 1.0], "all in time has no width"
    low, high = stock.lines[2][0].get_segments()[0][:, 1]
    assert low < 0.5 < high <= 1.0
    assert differences.get_ylabel() == "difference from\nstock (points)"
    assert differences.containers[0][0].get_ydata() == pytest.approx([50.0, 50.0])
    assert list(differences.containers[1][0].get_ydata()) == []


def test_two_seeds_have_neither_whiskers_nor_differences() -> None:
    figure = attainment_figure(shares(2), line_styles(["stock", "edf"]))
    (values,) = figure.axes
    for container in values.containers:
        assert all((segment[0] == segment[1]).all() for segment in container.lines[2][0].get_segments())
    assert figure.legends[0].get_title().get_text() == "no whiskers: 2 seeds, and an interval needs 3"


def shares(seeds: int) -> list[Run]:
    """Stock has about half in time, edf all."""
    return [
        {"policy": policy, "load": load, "seed": seed, "slo_attainment": share, "slo_attainment_by_class": {}}
        for load in (1.0, 1.5)
        for seed in range(seeds)
        for policy, share in (("stock", 0.4 + 0.1 * seed), ("edf", 1.0))
    ]


def test_a_figure_says_below_it_what_was_measured(tmp_path: Path) -> None:
    about = "chat-batch-mix on h100-llama3-8b, 3 seeds of 600 requests; sloserve 0.1.0, vLLM 0.32.0. " * 2
    for name, text in (("plain", ""), ("said", about)):
        with styled():
            write_figure(attainment_figure(shares(3), line_styles(["stock", "edf"])), tmp_path / f"{name}.png", text)
    plain, said = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB")) for name in ("plain", "said"))
    assert said.shape[1] == plain.shape[1] and said.shape[0] > plain.shape[0]
    strip = said[plain.shape[0] :]
    assert (strip < 128).any() and (strip[:, -4:] > 200).all() and (strip[:, 0] > 200).all(), "it is cut"


def test_error_bars_of_one_load_stand_beside_each_other() -> None:
    figure = normalized_latency_figure(many_runs([0.5, 1.0, 2.0]), line_styles(SEVEN))
    xs = np.array([container[0].get_xdata() for container in figure.axes[0].containers])
    assert xs.shape == (7, 3)
    assert np.all(np.diff(xs, axis=0) > 0.005)
    assert np.max(np.abs(xs - [0.5, 1.0, 2.0])) < 0.25, "nearer to its own load than to another"


def test_a_single_load_is_drawn_as_bars_with_the_baseline_on_top() -> None:
    figure = normalized_latency_figure(many_runs([1.5]), line_styles(SEVEN))
    axes, differences = figure.axes
    names = [label.get_text().replace("\n", "") for label in axes.get_yticklabels()]
    assert names == list(SEVEN) and differences.get_title() == "difference from\nstock"
    points = [c[0].get_xdata()[0] for c in differences.containers]
    assert points == pytest.approx([i * 2.5 for i in range(1, 7)])
    bars = [container[0] for container in axes.containers if isinstance(container, BarContainer)]
    assert [bar.get_width() for bar in bars] == pytest.approx([(3.0 + i) * 2.5 for i in range(7)])
    written = [text.get_text() for text in axes.texts]
    assert written == [f"{(3.0 + i) * 2.5:.3g}" for i in range(7)]
    assert [three_digits(value) for value in (0.98765, 999.4, 1796.2, 25_000.0)] == ["0.988", "999", "1,796", "25,000"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1] and axes.get_xlim()[0] == 0.0
    note = "whiskers: 95 % interval of the mean over 3 seeds; differences are taken seed by seed"
    assert figure.get_supxlabel().replace("\n", " ") == f"1.5 x stock's capacity {note}"


def test_a_value_that_no_run_has_leaves_its_place_empty() -> None:
    runs = many_runs([1.5], ["stock", "edf"])
    for run in runs:
        run["normalized_latency_ms"] = None if run["policy"] == "edf" else 7.0
    axes, differences = normalized_latency_figure(runs, line_styles(["stock", "edf"])).axes
    assert not differences.containers
    assert [bar.get_width() for bar in axes.patches] == [7.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stock", "edf"]


def test_attainment_has_a_panel_for_each_class(experiment: Experiment) -> None:
    runs, _ = experiment
    figure = attainment_figure(runs, line_styles(["stock", "edf"]))
    assert [axes.get_title() for axes in figure.axes] == ["all classes", "interactive", "batch"]
    stock = figure.axes[0].containers[-1][0]
    assert list(stock.get_xdata()) == pytest.approx([0.5, 1.0], abs=0.1)
    expected = [
        np.mean([r["slo_attainment"] for r in runs if r["policy"] == "stock" and r["load"] == x]) for x in (0.5, 1)
    ]
    assert list(stock.get_ydata()) == pytest.approx(expected)


def test_other_figures_against_load_keep_their_units(experiment: Experiment) -> None:
    runs, _ = experiment
    for run in runs:
        run["preemptions_per_request"] = None  # as of a server that does not say
    styles = line_styles(["stock", "edf"])
    output, preemptions = throughput_figure(runs, styles).axes
    line = output.containers[-1][0]
    assert list(line.get_ydata()) == pytest.approx(
        [np.mean([r["output_throughput"] for r in runs if (r["policy"], r["load"]) == ("stock", x)]) for x in (0.5, 1)]
    )
    assert output.get_ylim()[1] > 1.04
    assert list(preemptions.containers[-1][0].get_ydata()) == []
    edf = normalized_latency_figure(runs, styles).axes[0].containers[0][0]
    own = [r["normalized_latency_ms"] for r in runs if (r["policy"], r["load"]) == ("edf", 1.0)]
    assert edf.get_ydata()[1] == pytest.approx(np.mean(own))


def test_utilisation_is_that_of_runs_whose_engine_is_seen(experiment: Experiment) -> None:
    runs, _ = experiment
    kv, step_tokens = utilization_figure(runs, line_styles(["stock", "edf"])).axes
    assert list(kv.containers[-1][0].get_ydata()) == pytest.approx([0.4, 0.4])
    assert list(step_tokens.containers[-1][0].get_ydata()) == pytest.approx([(0.25 + 2 * 0.5) / 3] * 2)
    assert step_tokens.get_ylim()[0] == 0.0


def test_distribution_ends_below_one_by_what_was_not_completed(request_log: MakeRequest) -> None:
    requests = [request_log("a", 0.0, [0.5]), request_log("b", 0.0, [], outcome=Outcome.REJECTED)]
    samples = [LatencySample("stock", 2.0, latencies(requests))]
    figure = latency_figure(samples, line_styles(["stock"]), unit=REQUESTS)
    line = figure.axes[0].lines[0]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.5], [0.5])
    assert figure.axes[0].get_title() == "2 requests/s"


def test_logarithmic_ticks_are_plain_numbers(request_log: MakeRequest) -> None:
    requests = [request_log(str(i), 0.0, [0.3 * (i + 1), 9.0 * (i + 1)]) for i in range(5)]
    figure = latency_figure([LatencySample("stock", 1.0, latencies(requests))], line_styles(["stock"]), unit=CAPACITY)
    FigureCanvasAgg(figure).draw()
    labels = [label.get_text() for axes in figure.axes for label in axes.get_xticklabels(which="both")]
    assert {"0.5", "1", "10", "20"} <= set(labels)
    assert not any("10^" in label or "times" in label for label in labels)


def test_at_most_four_loads_are_shown_with_both_ends(request_log: MakeRequest) -> None:
    found = latencies([request_log("a", 0.0, [0.5])])
    samples = [LatencySample("stock", load, found) for load in (0.7, 0.9, 1.0, 1.2, 1.5, 2.0)]
    figure = latency_figure(samples, line_styles(["stock"]), unit=CAPACITY)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert len(titles) == 4
    assert (titles[0], titles[-1]) == ("0.7 x stock's capacity", "2 x stock's capacity")
