"""The ladder of loads with drafts: which load is kept, by which requests, and over which fixed number of drafts."""

import numpy as np
import pytest

from benchmarks.policies.draft_loads import keeps_tpot, load_kept, over_best_fixed, rows_of
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets

LADDER = (1.0, 1.2, 1.4)


@pytest.mark.parametrize(
    ("shares", "load"),
    [((1.0, 1.0, 0.95), 1.4), ((1.0, 0.9, 0.2), 1.1), ((1.0, 0.96, 0.94), 1.3), ((0.9, 1.0, 1.0), 0.0)],
)
def test_the_load_that_is_kept_lies_on_the_line_to_the_first_that_is_not(
    shares: tuple[float, ...], load: float
) -> None:
    assert load_kept(shares, LADDER) == pytest.approx(load)


@pytest.mark.parametrize(
    ("tpot_s", "times_s", "kept"),
    [(0.1, [1.0, 1.1, 1.2], True), (0.1, [1.0, 1.3], False), (0.1, [1.0], True), (0.1, [], False), (None, [1.0], None)],
)
def test_a_target_is_kept_by_the_mean_after_the_first_token(
    tpot_s: float | None, times_s: list[float], kept: bool | None
) -> None:
    slo = DEFAULT_CLASSES.slo(None, Targets(tpot_s=tpot_s))
    request = WorkloadRequest("r", 0.0, 10, len(times_s) or 1, slo)
    outcome = Outcome.COMPLETED if times_s else Outcome.LOST
    assert keeps_tpot(RequestLog(request, outcome, np.array(times_s), 0, 0)) is kept


def test_drafts_by_slack_are_compared_with_the_best_fixed_number() -> None:
    shares = {"auto, 1": (1.0, 0.9, 0.2), "auto, 3": (0.9, 0.9, 0.9), "auto:drafts=slack, up to 3": (1.0, 1.0, 0.95)}
    seed = {name: {load: (x, 0.5, 100.0) for load, x in zip(LADDER, of, strict=True)} for name, of in shares.items()}
    rows = rows_of(0.6, [seed, seed])
    assert over_best_fixed(rows, "auto") == {"auto:drafts=slack, up to 3 / auto, 1": pytest.approx(1.4 / 1.1, abs=1e-3)}
    assert rows[0]["load_kept_by_seed"] == [1.1, 1.1] and rows[0]["keeps_tpot"] == [1.0, 0.9, 0.2]
