"""Predictions of when tasks end: silent before evidence, calibrated after it, bounded."""

import heapq
from collections import defaultdict

import numpy as np
import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.predicted import Quantiles
from sloserve.engine.metrics.task_page import TaskPage, TaskPages
from sloserve.engine.metrics.task_table import EndedTask, StartedCall, TaskTable
from sloserve.vllm_plugin.server.task_predictions import MOST_GROUPS, TaskPredictions
from tests.whole import sampled


class Played:
    """Tasks in virtual time, each with a pace of its own, several at once."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.predictions = TaskPredictions(64)
        self.table = TaskTable(TaskPages(TaskPage(64), ManualClock()), 1e9, self)
        self.found: dict[int, list[tuple[int, Quantiles | None]]] = defaultdict(list)
        self.actual_s: dict[int, float] = {}

    def task_started(self, class_id: int, tenant: str | None) -> None: ...

    def task_late(self, class_id: int, tenant: str | None) -> None: ...

    def task_ended(self, ended: EndedTask) -> None:
        self.predictions.task_ended(ended)
        self.actual_s[ended.key] = ended.seconds

    def run(self, tasks: int, mean_calls: float = 8.0) -> None:
        """Play so many tasks, one of which begins each second."""
        paces = self.rng.lognormal(0.0, 0.5, tasks + 1)
        lengths = self.rng.geometric(1.0 / mean_calls, tasks + 1)
        due: list[tuple[float, int, int, StartedCall | None]] = [(float(k), k, 1, None) for k in range(1, tasks + 1)]
        heapq.heapify(due)
        while due:
            now_s, key, number, call = heapq.heappop(due)
            if call is None:
                is_last = number == lengths[key]
                begun = self.table.call_begins(key, now_s, class_id=0, tenant=None, is_last=bool(is_last))
                assert begun is not None
                silent = begun.task._replace(is_last=False)  # the client says so only when the call has ended
                hidden = StartedCall(key, silent, None, now_s, False, begun.tool_s)
                self.found[key].append((number, self.predictions.call_begins(hidden, None, now_s, None)))
                heapq.heappush(due, (now_s + paces[key] * self.rng.lognormal(-0.5, 0.5), key, number, begun))
                continue
            self.predictions.call_ended(call.task, None, number, now_s - call.arrival_s)
            self.table.call_ends(call, now_s, completed=True)
            if number < lengths[key]:
                heapq.heappush(due, (now_s + paces[key] * self.rng.lognormal(0.0, 1.0), key, number + 1, None))


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(3), [0]))
def test_as_many_tasks_as_predicted_end_in_the_predicted_time(seed: int) -> None:
    played = Played(seed)
    played.run(1200)
    first: list[list[bool]] = []
    later: list[list[bool]] = []
    for key, made in played.found.items():
        if key > 300:
            for number, quantiles in made:
                assert quantiles is not None
                kept = quantiles.kept(played.actual_s[key])
                (first if number == 1 else later).append([kept[0.5], kept[0.9]])
    for kept, slack in ((first, 0.06), (later, 0.12)):
        median, p90 = np.array(kept, float).mean(axis=0)
        assert median == pytest.approx(0.5, abs=slack)
        assert p90 == pytest.approx(0.9, abs=slack / 2)


@pytest.mark.slow
def test_nothing_is_predicted_before_tasks_have_ended() -> None:
    played = Played(0)
    played.run(40)
    assert all(quantiles is None for key in range(1, 8) for _, quantiles in played.found[key])
    assert any(quantiles is not None for key in range(30, 41) for _, quantiles in played.found[key])


@pytest.mark.slow
def test_what_is_kept_is_bounded() -> None:
    played = Played(0)
    played.run(80)
    predictions = played.predictions
    for number in range(2 * MOST_GROUPS):
        predictions._group(0, str(number))
    assert len(predictions._groups) == MOST_GROUPS
    assert len(predictions._open) <= 64
