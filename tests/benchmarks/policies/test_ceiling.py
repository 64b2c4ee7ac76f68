"""The ceiling: the bound is right where the answer is known, and no run is above it; plans do as they say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.policies.ceiling import plans_of_bound, read_cells
from benchmarks.policies.ceiling_bound import last_moments_s, upper_bound
from benchmarks.policies.clairvoyant import Search, Timetable, found_plan, plans_of_run
from benchmarks.policies.foreseeing_auto import ForeseeingAuto
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.registry import make_policy
from sloserve.sim.model.engine import ModelEngine

PROFILE = load_profile("h100-llama3-8b")
AMPLE = EngineSettings(20_000, max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=65_536)
CLASSES = DEFAULT_CLASSES.as_config()


def request(at: int, prompt: int, output: int, arrival_s: float = 0.0, **targets: Any) -> WorkloadRequest:
    return WorkloadRequest(f"r{at}", arrival_s, prompt, output, DEFAULT_CLASSES.slo(None, Targets(**targets)))


def search(requests: list[WorkloadRequest], settings: EngineSettings = AMPLE) -> Search:
    return Search(requests, settings, PROFILE, CLASSES)


@pytest.mark.slow
def test_one_request_that_fits_is_in_time() -> None:
    one = [request(0, 1000, 50, ttft_s=0.5)]
    bound = upper_bound(one, AMPLE, PROFILE)
    assert (bound.share, bound.is_vacuous) == (1.0, True)
    assert search(one).value(Timetable((0,)))[0].in_time == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "prompt", "output", "settings"),
    [
        ({"ttft_s": 0.8}, 20_000, 2, AMPLE),  # one prompt takes 0.6 s
        ({"e2e_s": 4.5}, 800, 500, replace(AMPLE, kv_blocks=90, max_model_len=1400)),  # the KV of one, for 4 s
        ({"e2e_s": 4.5}, 800, 500, replace(AMPLE, max_num_seqs=1)),  # one seat
    ],
)
def test_of_two_that_cannot_both_be_in_time_the_bound_has_one(
    targets: dict[str, float], prompt: int, output: int, settings: EngineSettings
) -> None:
    two = [request(at, prompt, output, **targets) for at in range(2)]
    assert upper_bound(two[:1], settings, PROFILE).share == 1.0
    assert upper_bound(two, settings, PROFILE, slots=20).share == 0.5
    assert search(two, settings).value(Timetable((0,)))[0].in_time == 1


def test_no_request_is_in_time_that_takes_longer_by_itself() -> None:
    assert upper_bound([request(0, 200, 1000, e2e_s=2.0)], AMPLE, PROFILE).share == 0.0


def test_requests_without_targets_do_not_count() -> None:
    assert upper_bound([request(0, 20_000, 9), request(1, 20_000, 9, ttft_s=0.8)], AMPLE, PROFILE).share == 1.0
    with pytest.raises(ValueError, match="none of 1 requests has a target"):
        upper_bound([request(0, 9, 9)], AMPLE, PROFILE)


@pytest.mark.parametrize(
    "settings",
    [replace(AMPLE, enable_prefix_caching=True), replace(AMPLE, swap_space_gib=1.0)],
)
def test_engines_that_the_bound_does_not_hold_for_are_refused(settings: EngineSettings) -> None:
    with pytest.raises(ValueError, match="the bound"):
        upper_bound([request(0, 9, 9, ttft_s=1.0)], settings, PROFILE)


def test_a_pace_ends_the_reply_as_long_after_the_last_moment_of_its_first_token() -> None:
    assert last_moments_s(request(0, 9, 11, 5.0, ttft_s=1.0, tds=5.0)) == pytest.approx((6.0, 8.0), abs=1e-4)
    assert last_moments_s(request(0, 9, 11, 5.0, ttft_s=1.0, tds=5.0, e2e_s=0.5)) == pytest.approx((5.5, 5.5))


def test_the_list_names_eight_cells_of_at_most_150_requests() -> None:
    cells = read_cells()
    assert len(cells) == 8
    assert all(int(cell.requests) <= 150 and cell.instead for cell in cells.values())
    kinds = {name.rpartition("-")[0] for name in cells}
    assert kinds == {"mixed", "readers-scarce", "readers-ample", "deadline", "reasoning", "code"}


SCARCE = EngineSettings(160, max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=2400)


def drawn(seed: int, count: int = 16) -> list[WorkloadRequest]:
    """More than SCARCE can serve, with all kinds of targets."""
    rng = np.random.default_rng(seed)
    kinds: tuple[dict[str, float], ...] = (
        {"ttft_s": 0.4, "tds": 20.0},
        {"e2e_s": 2.0},
        {"ttft_s": 0.3, "tpot_s": 0.03},
        {},
    )
    sizes = zip(rng.integers(20, 900, count).tolist(), rng.integers(5, 200, count).tolist(), strict=True)
    return [request(i, *size, 0.08 * i, **kinds[i % len(kinds)]) for i, size in enumerate(sizes)]


def served(requests: list[WorkloadRequest], name: str, **given: Any) -> Any:
    config = {"sloserve": {"policy": name, "aged_share": 0.0, **CLASSES}}
    return ModelEngine(SCARCE, PROFILE, config, **given).run(requests)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_run_and_no_plan_is_above_the_bound_and_the_plan_is_below_no_run(seed: int) -> None:
    requests = drawn(seed)
    asked = sum(bool(one.slo.targets) for one in requests)
    bound = upper_bound(requests, SCARCE, PROFILE, slots=30)
    logs = {name: served(requests, name) for name in ("fcfs", "edf", "auto", "sjf")}
    found = search(requests, SCARCE)
    firsts = [plans_of_bound(requests, bound), *(plans_of_run(log, name) for name, log in logs.items())]
    plan = found_plan(found, firsts, 70, seed)
    in_time = found.value(plan)[0].in_time
    assert (
        max(sum(bool(one.good) for one in log.requests) for log in logs.values())
        <= in_time
        <= bound.share * asked + 1e-9
    )
    assert bound.share > 0.0
    again = search(requests, SCARCE)
    assert found_plan(again, firsts, 70, seed) == plan


@pytest.mark.slow
def test_auto_that_foresees_nothing_is_auto_and_foresight_changes_it() -> None:
    requests = drawn(0, 60)
    settings = make_policy("auto", {"length": "oracle"}).settings
    class_ids = {name: i for i, name in enumerate(DEFAULT_CLASSES.names)}
    plain = served(requests, "auto:length=oracle")
    for horizon_s, is_same in ((0.0, True), (1.0, False)):
        policy = ForeseeingAuto(requests, class_ids, horizon_s, settings)
        found = served(requests, "fcfs", policy=policy)
        same = [
            np.array_equal(a.token_times_s, b.token_times_s)
            for a, b in zip(plain.requests, found.requests, strict=True)
        ]
        assert all(same) == is_same
