"""Service of tenants: what is charged, who is beyond its share, and that the others then come first."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import State
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.core.tenants import MOST_ACCOUNTS, MOST_TENANTS, TenantTable
from sloserve.engine.tenant_shares import TenantShares
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.lso.engine_pace import EnginePace
from sloserve.lso.ordering import ranked
from sloserve.lso.standing import GIVES_WAY, Standing
from sloserve.scheduler.policy import NO_SLOTS, Snapshot
from sloserve.scheduler.settings import PluginSettings
from sloserve.scheduler.share_settings import ShareSettings
from sloserve.sim.model.engine import ModelEngine
from tests.snapshots import make_snapshot
from tests.whole import sampled

PACE = EnginePace(step_s=0.02, full_s=0.1, prompt_token_s=0.0001, token_s=0.001, step_wait_s=0.02)
A, B, C = 1, 2, 3


def shares_of(half_life_s: float = 1e9, **weights: float) -> TenantShares:
    return TenantShares(TenantTable({"a": 1.0, "b": 1.0, "c": 1.0} | weights), half_life_s)


def make(running: list[dict[str, Any]], **sizes: Any) -> Snapshot:
    """Return a snapshot in which a request of tenant c waits, and running requests hold no KV unless they say so."""
    return make_snapshot([{"account": C}], [{"kv_blocks": 0} | request for request in running], **sizes)


def charged(shares: TenantShares, snapshot: Snapshot, now_s: float) -> list[float]:
    shares.charge(snapshot, PACE, now_s)
    return [round(float(one), 6) for one in shares.total_s[1:]]


def test_time_goes_to_the_tokens_that_were_computed_in_it() -> None:
    """500 prompt tokens take 50 ms; of a step of 20 ms, each of two decodes has 10 ms a token."""
    shares = shares_of()
    snapshot = make([{"account": A, "prompt_tokens": 500}, {"account": B, "prompt_tokens": 10}])
    charged(shares, snapshot, 0.0)
    snapshot.rows.computed_tokens[:2] = 500, 15
    # a: 500 prompt tokens, 50 ms; b: 10 prompt tokens, 1 ms, and 5 output tokens, 50 ms
    assert charged(shares, snapshot, 1.01)[:2] == pytest.approx([1.01 * 50 / 101, 1.01 * 51 / 101])


def test_a_tenant_pays_for_the_kv_cache_and_the_slots_that_it_holds() -> None:
    shares = shares_of()
    snapshot = make([{"account": A, "kv_blocks": 900}, {"account": B}, {"account": B}], max_num_seqs=8)
    charged(shares, snapshot, 0.0)
    assert charged(shares, snapshot, 10.0)[:2] == pytest.approx([10 * 900 / 999, 10 * 2 / 8])


def test_a_shared_block_counts_once() -> None:
    """Four requests hold 200 blocks each, 150 of which are the same."""
    shares = shares_of()
    snapshot = replace(make([{"account": A, "kv_blocks": 200}] * 4, max_num_seqs=64), shared_blocks=450)
    charged(shares, snapshot, 0.0)
    assert charged(shares, snapshot, 10.0)[0] == pytest.approx(10 * 350 / 999)


def test_what_is_computed_again_is_charged_again_and_what_was_found_is_not() -> None:
    shares = shares_of()
    snapshot = make([{"account": A, "prompt_tokens": 500, "cached_tokens": 400}, {"account": B}])
    rows = snapshot.rows
    rows.computed_tokens[:2] = 500, 16
    charged(shares, snapshot, 0.0)
    first = charged(shares, snapshot, 1.0)  # the tokens before the first charge have no time
    rows.num_preemptions[0], rows.cached_tokens[0] = 1, 0
    assert charged(shares, snapshot, 2.0)[0] == pytest.approx(first[0] + 1.0), "all of the time was for its 500 tokens"


def test_outputs_that_are_computed_again_cost_what_a_prompt_of_their_length_costs() -> None:
    shares = shares_of()
    again = {"account": A, "prompt_tokens": 100, "output_tokens": 1001, "num_preemptions": 1}
    snapshot = make([again, {"account": B, "prompt_tokens": 1100}], max_num_seqs=64)
    charged(shares, snapshot, 0.0)
    snapshot.rows.computed_tokens[:2] = 1100, 1100
    snapshot.rows.num_preemptions[0] = 2
    assert charged(shares, snapshot, 1.0)[:2] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(("output", "computed"), [(3, 102), (0, 100)])
def test_the_last_tokens_of_a_request_are_charged(output: int, computed: int) -> None:
    """A tenant of many short requests, each of which comes and ends between two plans, pays for them."""
    shares = shares_of()
    snapshot = make([{"account": A, "prompt_tokens": 100, "output_tokens": output}, {"account": B}])
    charged(shares, snapshot, 0.0)
    shares.finished(snapshot.rows, 0, computed)
    snapshot.rows.free(0)
    alone = replace(snapshot, running=snapshot.rows.slots_in(State.RUNNING))
    assert charged(shares, alone, 1.0)[0] == pytest.approx(1.0)


def test_service_halves_with_every_half_life() -> None:
    shares = shares_of(half_life_s=10.0)
    snapshot = make([{"account": A, "kv_blocks": 999}])
    charged(shares, snapshot, 0.0)
    charged(shares, snapshot, 4.0)
    before = shares.service_s[A]
    charged(shares, replace(snapshot, running=NO_SLOTS), 14.0)
    assert shares.service_s[A] == pytest.approx(before / 2)


def test_no_interval_however_long_leaves_more_than_a_steady_service_does() -> None:
    shares = shares_of(half_life_s=30.0)
    snapshot = make([{"account": A, "kv_blocks": 999}])
    charged(shares, snapshot, 0.0)
    charged(shares, snapshot, 3600.0)
    assert shares.service_s[A] == pytest.approx(30.0 / math.log(2.0))


@pytest.mark.parametrize("how", ["nothing waits", "idle steps"])
def test_time_in_which_nothing_waits_is_nobodys(how: str) -> None:
    """A tenant that was alone for an hour pays nothing for it when another one comes."""
    shares = shares_of()
    snapshot = make([{"account": A, "kv_blocks": 500}])
    if how == "idle steps":
        charged(shares, snapshot, 0.0)
        shares.rest()
    else:
        charged(shares, replace(snapshot, waiting=NO_SLOTS), 0.0)
    assert charged(shares, snapshot, 3600.0) == [0.0, 0.0, 0.0]
    assert charged(shares, snapshot, 3601.0)[0] == pytest.approx(500 / 999)


def test_beyond_its_share_is_a_tenant_with_more_service_per_weight_than_the_mean() -> None:
    shares = shares_of(a=4.0)
    snapshot = make([{"account": A, "kv_blocks": 500}, {"account": B, "kv_blocks": 300}])
    charged(shares, snapshot, 0.0)
    charged(shares, snapshot, 10.0)
    standing = shares.standing(snapshot.rows)
    assert standing is not None
    assert np.flatnonzero(standing.level).tolist() == [B], "a has more, for four times the weight"


@pytest.mark.parametrize("times", [0.01, 100.0])
def test_only_the_ratios_of_weights_count(times: float) -> None:
    """Weights may be parts of 1 or of 100; a tenant that had all of the engine for a minute then gives way as well."""
    found = []
    for scale in (1.0, times):
        shares = shares_of(a=2.0 * scale, b=scale, c=scale)
        snapshot = make([{"account": A, "kv_blocks": 900}, {"account": B, "kv_blocks": 99}])
        charged(shares, snapshot, 0.0)
        charged(shares, snapshot, 60.0)
        standing = shares.standing(snapshot.rows)
        assert standing is not None
        assert standing.over[A] > GIVES_WAY
        found.append((standing.level.tolist(), standing.over.round(9).tolist()))
    assert found[0] == found[1]


def test_little_service_makes_nobody_give_way() -> None:
    """Of many tenants with a request each, one that runs has infinitely more than those that wait."""
    shares = shares_of()
    snapshot = make([{"account": A, "kv_blocks": 100}])
    charged(shares, snapshot, 0.0)
    charged(shares, snapshot, 2.0)
    standing = shares.standing(snapshot.rows)
    assert standing is not None
    assert 0.0 < standing.over[A] < GIVES_WAY


def test_shares_decide_nothing_among_the_requests_of_one_tenant() -> None:
    shares = shares_of()
    snapshot = make_snapshot(waiting=[{"account": A}], running=[{"account": A}])
    charged(shares, snapshot, 0.0)
    charged(shares, snapshot, 10.0)
    assert shares.standing(snapshot.rows) is None


def test_the_table_of_tenants_is_bounded() -> None:
    table = TenantTable({"acme": 3.0})
    numbers = [table.number_of(f"t{i}") for i in range(2 * MOST_TENANTS)]
    assert (table.number_of("acme"), table.number_of(None), len(table)) == (1, 0, MOST_TENANTS)
    assert numbers[: MOST_TENANTS - 2] == list(range(2, MOST_TENANTS))
    assert set(numbers[MOST_TENANTS - 2 :]) == {0}
    assert len(table.weights) == MOST_TENANTS


def test_adapters_have_accounts_of_their_tenant_and_their_table_is_bounded() -> None:
    table = TenantTable()
    own, of_x, of_b = table.account_of("a"), table.account_of("a", "x"), table.account_of("b", "x")
    assert len({own, of_x, of_b}) == 3
    assert table.account_of("a", "x") == of_x
    assert table.tenant_of[[own, of_x, of_b]].tolist() == [table.number_of("a")] * 2 + [table.number_of("b")]
    accounts = [table.account_of("a", f"x{i}") for i in range(2 * MOST_TENANTS)]
    assert accounts[-1] == own
    for i in range(2 * MOST_TENANTS):
        table.account_of(f"t{i}")
    assert len(table.tenant_of) == MOST_ACCOUNTS


def test_adapters_pay_within_their_tenant_and_tenants_for_all_of_theirs() -> None:
    shares = shares_of()
    x, y = shares.tenants.account_of("a", "x"), shares.tenants.account_of("a", "y")
    snapshot = make([{"account": x, "kv_blocks": 500}, {"account": y, "kv_blocks": 100}, {"account": B}])
    charged(shares, snapshot, 0.0)
    assert charged(shares, snapshot, 10.0)[0] == pytest.approx(10 * 600 / 999)
    standing = shares.standing(snapshot.rows)
    assert standing is not None
    assert standing.level[B] < standing.level[y] < standing.level[x]


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(-5.0, 5.0)), min_size=1, max_size=12), st.integers(1, 8))
def test_requests_beyond_their_shares_come_last_and_all_keep_the_order_of_the_policy(
    requests: list[tuple[int, float]], slots: int
) -> None:
    snapshot = make_snapshot(waiting=[{"account": tenant} for tenant, _ in requests], max_num_seqs=slots)
    key = np.array([key for _, key in requests])
    plain = ranked(snapshot, snapshot.waiting, key)
    standing = Standing(np.array([0, 1, 0, 2]), np.array([0.0, 0.1, -0.2, 0.1]), np.zeros(4))
    found = ranked(replace(snapshot, standing=standing), snapshot.waiting, key)
    everyone = ranked(replace(snapshot, engine=replace(snapshot.engine, max_num_seqs=64)), snapshot.waiting, key)
    expected = [p for account in (B, A, C) for p in everyone.waiting.tolist() if requests[p][0] == account]
    assert found.waiting.tolist() == expected[:slots]
    assert sorted(plain.waiting.tolist()) == sorted(everyone.waiting.tolist()[:slots])


SLO = DEFAULT_CLASSES.slo("interactive", Targets(ttft_s=3.0, tpot_s=0.2))
OTHERS = ("sjf", "econo", "andes", "sa", "qlm", "niyama")
SETTINGS = EngineSettings(max_num_seqs=32, max_num_batched_tokens=2048, kv_blocks=1500, max_model_len=8192)


def burst(times: int = 10) -> list[WorkloadRequest]:
    """Return requests of three tenants, of which the first sends ``times`` as many from second 10 to 20."""
    rng = np.random.default_rng(1)
    found = []
    for tenant in "abc":
        for start_s, rate in ((0.0, 1.0), (10.0, times if tenant == "a" else 1.0), (20.0, 1.0)):
            for at_s in start_s + 10.0 * rng.random(int(10 * rate)):
                prompt, output = (int(x) for x in rng.lognormal(np.log([900, 120]), 0.5))
                found.append((float(at_s), max(prompt, 1), max(output, 1), tenant))
    return [
        WorkloadRequest(f"r{i}", at_s, prompt, output, SLO, tenant=tenant)
        for i, (at_s, prompt, output, tenant) in enumerate(sorted(found))
    ]


def attainment(policy: str, requests: list[WorkloadRequest], shares: object, by: str = "tenant") -> dict[str, float]:
    config = {"sloserve": {"policy": policy} | ({} if shares is None else {"tenant_shares": shares})}
    log = ModelEngine(SETTINGS, load_profile("a100-llama3-70b-tp4"), config).run(requests)
    assert not log.counters.get("plan_errors")
    met: dict[str, list[bool]] = {}
    for one in log.requests:
        assert one.token_times_s.size == one.request.output_tokens, "no request is lost"
        met.setdefault(getattr(one.request, by), []).append(bool(one.good))
    return {tenant: float(np.mean(of_tenant)) for tenant, of_tenant in met.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    sampled(["fcfs", "auto", "edf", *OTHERS], ["fcfs", "auto", "edf"]),
)
def test_nobody_pays_for_the_burst_of_another_tenant(policy: str) -> None:
    requests = burst()
    without, found = (attainment(policy, requests, shares) for shares in (None, {}))
    for tenant in "bc":
        assert found[tenant] > without[tenant] + 0.05


def two_heavy_and_many_light() -> list[WorkloadRequest]:
    """Return requests of a, which sends 100 in ten seconds, of b, and of ten tenants that send little."""
    rng = np.random.default_rng(3)
    of_all = [("a", 100, 10.0), ("b", 32, 40.0), *((f"t{i}", 4, 40.0) for i in range(10))]
    found = [(float(span_s * rng.random()), tenant) for tenant, many, span_s in of_all for _ in range(many)]
    return [
        WorkloadRequest(f"r{i}", at_s, 900, 120, SLO, tenant=tenant) for i, (at_s, tenant) in enumerate(sorted(found))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_of_two_tenants_beyond_their_shares_the_one_that_had_less_comes_first(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ten others, of which some request always waits, pull the mean below what both have had."""
    requests = two_heavy_and_many_light()
    found = attainment(policy, requests, {})
    monkeypatch.setattr("sloserve.lso.standing.SAME_LEVEL_S", 1e9)  # two levels: within a share, and beyond it
    assert found["b"] > attainment(policy, requests, {})["b"] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "auto"])
def test_a_hot_adapter_takes_no_more_than_its_part_of_the_tenants_share(policy: str) -> None:
    requests = [replace(one, tenant="a", adapter=one.tenant) for one in burst()]
    without, found = (attainment(policy, requests, shares, by="adapter") for shares in (None, {}))
    for adapter in "bc":
        assert found[adapter] > without[adapter] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("policy", sampled(["auto", "edf", "econo"], ["auto", "edf"]))
def test_many_equal_tenants_do_not_preempt_each_other(policy: str) -> None:
    """Each of fifty sends four requests."""
    requests = [replace(one, tenant=f"t{i % 50}") for i, one in enumerate(burst()[:200])]
    logs = []
    for more in ({}, {"tenant_shares": {}}):
        config = {"sloserve": {"policy": policy} | more}
        logs.append(ModelEngine(SETTINGS, load_profile("a100-llama3-70b-tp4"), config).run(requests))
    preemptions = [sum(one.num_preemptions for one in log.requests) for log in logs]
    assert preemptions[1] <= preemptions[0] + 0.1 * len(requests)


@pytest.mark.slow
@pytest.mark.parametrize("policy", sampled(["fcfs", "auto", *OTHERS], ["fcfs", "auto"]))
def test_with_one_tenant_every_decision_stays(policy: str) -> None:
    assert_same_with_shares(policy, {})


@pytest.mark.slow
def test_under_fcfs_nobody_ages_among_the_requests_of_one_tenant() -> None:
    """Requests wait for longer than they age; they were protected, and others preempted in their place."""
    classes = {"interactive": {"rank": 0, "aged_after_s": 2.0}}
    assert_same_with_shares("fcfs", {"classes": classes, "default_class": "interactive"})


def assert_same_with_shares(policy: str, more: dict[str, object]) -> None:
    requests = [replace(one, tenant="a") for one in burst()]
    logs = [
        ModelEngine(
            SETTINGS, load_profile("a100-llama3-70b-tp4"), {"sloserve": {"policy": policy} | more | shares}
        ).run(requests)
        for shares in ({}, {"tenant_shares": {"weights": {"a": 2.0}}})
    ]
    times = [[one.token_times_s.tolist() for one in log.requests] for log in logs]
    assert times[0] == times[1]


def test_settings_have_no_shares_unless_they_say_so() -> None:
    assert TenantShares.of(PluginSettings()) is None


def test_balances_show_share_service_and_debt_of_the_tenants_present() -> None:
    """a has had 30 s and b 10 s of 40; of these a, with half of the weight of b, is due 40 / 3 s."""
    shares = shares_of(half_life_s=10.0, b=2.0)
    shares._of_tenants.service_s[:] = 5.0, 60.0, 20.0, 7.0
    shares._charged_at_s = 100.0
    snapshot = make_snapshot([{"account": B}, {"account": B}], [{"account": A}, {"account": B}])
    found = shares.balances(snapshot.rows, 110.0)
    assert found.running.tolist() == [0, 1, 1, 0] and found.waiting.tolist() == [0, 0, 2, 0]
    assert found.service_s.tolist() == pytest.approx([0, 30, 10, 0])
    assert found.share.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 0])
    assert found.debt_s.tolist() == pytest.approx([0, 30 - 40 / 3, 10 - 80 / 3, 0])
    assert shares.service_s.tolist() == [5.0, 60.0, 20.0, 7.0], "looking changes nothing"


@given(
    service_s=st.lists(st.floats(0.0, 1e6), min_size=4, max_size=4),
    weights=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3),
    present=st.lists(st.sampled_from([0, A, B, C]), max_size=8),
)
def test_debts_sum_to_zero_and_are_positive_where_a_tenant_is_beyond_its_share(
    service_s: list[float], weights: list[float], present: list[int]
) -> None:
    shares = shares_of(**dict(zip("abc", weights, strict=True)))
    shares._of_tenants.service_s[:] = service_s
    rows = make_snapshot([{"account": tenant} for tenant in present]).rows
    found = shares.balances(rows, 0.0)
    least_s = 1e-9 * (1.0 + sum(service_s))
    assert abs(found.debt_s.sum()) <= least_s and found.share.sum() == pytest.approx(1.0 if present else 0.0)
    standing = shares.standing(rows)
    if standing is not None:
        is_clear = np.abs(found.debt_s) > least_s
        assert (np.sign(standing.over) == np.sign(found.debt_s))[is_clear].all()


def test_balances_of_an_engine_without_requests_are_zero() -> None:
    shares = shares_of()
    shares._of_tenants.service_s[:] = 9.0
    assert all(not column.any() for column in shares.balances(make_snapshot().rows, 5.0))


def test_weights_and_half_life_may_change_and_what_tenants_have_had_stays() -> None:
    shares = shares_of(half_life_s=30.0)
    shares.set_elsewhere({"d": 4.0}, 0.0)
    snapshot = make([{"account": A}, {"account": B}])
    shares.charge(snapshot, PACE, 0.0)
    shares.charge(snapshot, PACE, 10.0)
    had = shares.service_s
    shares.follow(ShareSettings(half_life_s=5.0, weights={"b": 2.0, "d": 3.0}))
    assert shares.tenants.weights.tolist() == [1.0, 1.0, 2.0, 1.0, 3.0] and shares.tenants.names[4] == "d"
    assert shares.service_s[:4].tolist() == had.tolist()
    shares.charge(snapshot, PACE, 15.0)
    assert shares.service_s[A] < had[A] * 0.5 + 5.0, "the shorter half-life holds"


def test_a_tenant_without_a_weight_any_more_has_the_weight_of_others() -> None:
    table = TenantTable({"a": 2.0, "b": 3.0})
    table.number_of("c")
    table.set_weights({"c": 5.0, "b": 3.0})
    assert (table.names, table.weights.tolist()) == (["", "a", "b", "c"], [1.0, 1.0, 3.0, 5.0])
