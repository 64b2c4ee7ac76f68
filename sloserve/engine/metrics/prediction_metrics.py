"""How well latencies were predicted at admission, computed at scrape from the windows of all API processes."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sloserve.core.judged_window import MAX_PREDICTIONS, WIDTHS, judged
from sloserve.core.predicted import LEVELS, PREDICTED
from sloserve.engine.metrics.engine_metrics import PREFIX
from sloserve.engine.metrics.process_page import Board


class PredictionGauges(Collector):
    """Coverage, width and number of the latest judged predictions, by class and figure."""

    def __init__(self, classes: Sequence[str], boards: Callable[[], Iterable[Board]]) -> None:
        """Create a collector over all processes.

        Args:
            classes: Names of the service classes.
            boards: Function that returns the board of each process that serves ``classes``.
        """
        self._classes = classes
        self._boards = boards

    def describe(self) -> Iterable[Metric]:
        return list(_families())

    def collect(self) -> Iterable[Metric]:
        coverage, width, number = families = _families()
        boards = list(self._boards())
        for class_id, name in enumerate(self._classes):
            for i, dim in enumerate(PREDICTED):
                found = judged(board.predicted[class_id, i] for board in boards)
                if found is None:
                    continue
                number.add_metric([name, dim], found.count)
                for level, share in zip(LEVELS, found.coverage, strict=True):
                    coverage.add_metric([name, dim, f"{level:g}"], share)
                for level, ratio in zip(WIDTHS, found.widths, strict=True):
                    width.add_metric([name, dim, f"{level:g}"], ratio)
        return list(families)


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            f"{PREFIX}prediction_coverage_ratio",
            f"Share of the class's last {MAX_PREDICTIONS:,} predicted requests that took no longer than this quantile "
            "of their prediction; the quantile itself if predictions are calibrated",
            labels=["class", "dim", "quantile"],
        ),
        GaugeMetricFamily(
            f"{PREFIX}prediction_width_ratio",
            "This quantile of the same predictions divided by their median, geometric mean",
            labels=["class", "dim", "quantile"],
        ),
        GaugeMetricFamily(
            f"{PREFIX}predictions_judged",
            f"Number of predictions behind the coverage, at most {MAX_PREDICTIONS:,}",
            labels=["class", "dim"],
        ),
    )
