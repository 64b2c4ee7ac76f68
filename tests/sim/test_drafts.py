"""Drafts in virtual time: which are accepted, and settings that are refused."""

from dataclasses import replace

import numpy as np
import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVGroups
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.step_clock import StepClock
from sloserve.engine.virtual.drafts import Drafts
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.model.scheduler import ModelScheduler

ENGINE = EngineSettings(kv_blocks=1000, max_model_len=4096)


def test_what_is_accepted_depends_on_request_and_position_alone() -> None:
    """Also where a step verifies fewer drafts than the engine has, or the reply is cut short."""
    runs = Drafts(5, 0.7).accepted_runs("r1", 400)
    assert np.array_equal(runs, Drafts(5, 0.7).accepted_runs("r1", 400))
    assert np.array_equal(np.minimum(runs, 3), Drafts(3, 0.7).accepted_runs("r1", 400))
    assert np.array_equal(runs[:90], Drafts(5, 0.7).accepted_runs("r1", 400)[:90])
    assert not np.array_equal(runs, Drafts(5, 0.7).accepted_runs("r2", 400))
    assert not np.array_equal(runs, Drafts(5, 0.7, seed=1).accepted_runs("r1", 400))


def test_a_run_is_one_longer_than_the_run_from_the_next_position_on() -> None:
    runs = Drafts(4, 0.8).accepted_runs("r1", 2000).astype(int)
    followed = runs[:-1] > 0
    assert np.array_equal(runs[:-1][followed], np.minimum(runs[1:][followed] + 1, 4))
    assert set(runs.tolist()) == {0, 1, 2, 3, 4}
    assert runs[-1] <= 1  # no draft after the last token of the reply


@pytest.mark.slow
@pytest.mark.parametrize(("acceptance", "spread"), [(0.6, 0.1), (0.9, 0.05), (0.75, 0.0)])
def test_means_and_spread_are_those_that_are_asked_for(acceptance: float, spread: float) -> None:
    drafts = Drafts(1, acceptance, spread)
    shares = np.array([drafts.accepted_runs(f"r{i}", 2000).mean() for i in range(1500)])
    assert shares.mean() == pytest.approx(acceptance, abs=0.01)
    assert shares.std() == pytest.approx((spread**2 + acceptance * (1 - acceptance) / 2000) ** 0.5, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": 0}, "num_speculative_tokens: 0 is not a whole number of 1 to 64"),
        ({"acceptance": 1.1}, "draft_acceptance: 1.1 is not a probability"),
        ({"spread": -0.1}, "draft_acceptance_spread: -0.1 is not a standard deviation"),
        ({"acceptance": 0.9, "spread": 0.3}, "draft_acceptance_spread: 0.3 is too large for a mean acceptance of 0.9"),
        ({"acceptance": 1.0, "spread": 0.1}, "give less than 0, or 0"),
        ({"round_share": float("nan")}, "draft_round_share: nan is not a finite share"),
        ({"seed": -1}, "drafts seed: -1"),
    ],
)
def test_values_outside_their_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Drafts(**{"num_tokens": 3, "acceptance": 0.7, **options})  # type: ignore[arg-type]


def test_lookahead_slots_are_part_of_the_layout() -> None:
    engine = replace(ENGINE, drafts=Drafts(3, 0.7))
    assert (engine.layout.lookahead_tokens, ENGINE.layout.lookahead_tokens) == (3, 0)
    assert engine.layout.held(np.array([14]), np.array([0])).tolist() == [2]


def test_n_grams_reserve_no_slots_and_keep_the_last_block() -> None:
    ngrams = replace(ENGINE, drafts=Drafts(3, 0.7, has_layers=False), enable_prefix_caching=True)
    assert (ngrams.layout.lookahead_tokens, ngrams.drops_found_block) == (0, False)
    assert replace(ngrams, drafts=Drafts(3, 0.7)).drops_found_block


def test_drafts_that_vllm_does_not_have_are_refused() -> None:
    chunks = (KVGroups(1, 16), KVGroups(3, 16, chunk_tokens=256))
    engine = replace(ENGINE, kv_blocks=2000, kv_groups=chunks, drafts=Drafts(3, 0.7))
    with pytest.raises(ConfigError, match="vLLM has no prefix cache for chunked local attention .* beside a draft"):
        replace(engine, enable_prefix_caching=True)
    replace(engine, enable_prefix_caching=True, drafts=Drafts(3, 0.7, has_layers=False))


def simulated(**options: object) -> EngineSettings:
    base = {"workload": "alpaca-poisson", "rps": "5", "seeds": 1}
    return build_experiment(SimulateOptions(**(base | options))).engine  # type: ignore[arg-type]


def test_simulate_has_the_drafts_that_its_flags_ask_for() -> None:
    assert simulated().drafts is None
    assert simulated(num_speculative_tokens=3).drafts == Drafts(3, 0.8, spread=0.1, round_share=0.055)
    given = {"draft_acceptance": 0.99, "draft_round_share": 0.0}
    drafts = simulated(num_speculative_tokens=1, **given).drafts
    assert drafts is not None and 0.0 < drafts.spread < 0.05  # as much as the mean leaves room for
    assert simulated(num_speculative_tokens=1, draft_acceptance=1.0).drafts == Drafts(1, 1.0, spread=0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_acceptance": 0.7}, "--draft-acceptance: 0.7 for an engine without drafts; give --num-speculative"),
        ({"draft_round_share": 0.0}, "--draft-round-share: 0.0 for an engine without drafts"),
        ({"num_speculative_tokens": -1}, "--num-speculative-tokens: -1 is not a whole number of 1 to 64"),
        ({"num_speculative_tokens": 3, "draft_acceptance": 7.0}, "--draft-acceptance: 7.0 is not a probability"),
        (
            {"num_speculative_tokens": 3, "profile": "h100-granite4-small", "swap_space_gib": 1.0},
            "Mamba states of draft tokens, which are not swapped",
        ),
    ],
)
def test_simulate_refuses_drafts_that_it_cannot_model(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulated(**options)


def test_simulate_has_drafts_beside_shared_prompts_swap_space_and_any_layers() -> None:
    options = SimulateOptions(tasks="react", num_speculative_tokens=3, swap_space_gib=1.0)
    shared = build_experiment(options).engine
    assert shared.enable_prefix_caching and shared.drops_found_block
    states = simulated(profile="h100-granite4-small", num_speculative_tokens=3)
    assert sorted({one.spare_blocks for one in states.kv_groups}) == [0, 3]


@pytest.mark.slow
def test_seeds_draw_other_acceptance_and_counters_tell_it() -> None:
    options = SimulateOptions(
        workload="alpaca-poisson", rps="5", policy="stock,edf", seeds=2, max_requests=20, engine="model",
        num_speculative_tokens=2, draft_acceptance=0.7,
    )  # fmt: skip
    counters = [run.log.counters for run in run_experiment(build_experiment(options))]
    shares = [one["accepted_draft_tokens"] / one["draft_tokens"] for one in counters]
    assert shares[0] == pytest.approx(shares[1], abs=0.01) and shares[2] == pytest.approx(shares[3], abs=0.01)
    assert shares[0] != pytest.approx(shares[2], abs=1e-6)
    assert all(0.45 < share < 0.75 for share in shares)  # of two drafts 0.7 and 0.49 are accepted


def test_the_model_tells_planners_of_drafts_as_the_live_engine_does() -> None:
    """Decodes of 1 + K tokens, slots ahead, and how many tokens of a step each request got."""
    scheduler = ModelScheduler(replace(ENGINE, drafts=Drafts(3, 0.7)))
    port = ModelPort(scheduler, StepClock(None), ManualClock())
    slo = DEFAULT_CLASSES.slo(None, Targets(e2e_s=1.0))
    for i in range(4):
        scheduler.requests.add(WorkloadRequest(f"r{i}", 0.0, 20, 9, slo), 0.0, 9)
    facts = port.facts(0, ())
    assert (facts.decode_tokens, facts.layout.lookahead_tokens) == (4, 3)
    assert port.new_tokens(np.array([2, 2, 2, 0, 3, 3])) == (["r2", "r0", "r3"], [3, 1, 2])
    assert port.new_tokens(np.array([], np.int64)) == ([], [])
