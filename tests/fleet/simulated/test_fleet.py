"""A fleet in virtual time: engines as in a single run, a switch that takes what its parts take, and nothing lost."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.spans import Phase
from sloserve.estimator.planning_cost import GroupLine
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.planning.replayed_model import engine_settings
from sloserve.fleet.simulated.dispatcher import Dispatcher, Give, Operation, SimulatedView, Switch, WaitingRequest
from sloserve.fleet.simulated.dispatchers.by_name import DISPATCHERS, FleetRunName
from sloserve.fleet.simulated.dispatchers.shepherd import shares
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import AT_ONCE, Options
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.fleet.simulated.simulate_fleet import assumptions
from sloserve.fleet.simulated.weight_copies import WeightCopies
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.multi_model import FleetWorkload
from tests.fleet.simulated.fleets import fleet_of, request, run, scarce_fleet

pytestmark = pytest.mark.slow  # each runs whole fleets

PROFILE = load_profile("h100-llama3-8b")


ABLATIONS = [
    "qlm:pull=false:preempt=false/stock",
    "qlm:swap=true:balance=false:warm=false",
    "qlm-paper:pull=false:preempt=false/stock",
    "qlm-paper:delta=0.5:swap=false:balance=false",
    "qlm-paper:warm=false:park=true",
    "qlm-paper:balance=random/stock",
    "shepherd:batch=4",
]


def mixed(n: int, rps: float, seed: int, models: str = "abc") -> list:  # type: ignore[type-arg]
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / rps, n))
    return [
        request(
            f"r{i}",
            models[int(rng.integers(len(models)))],
            float(arrivals[i]),
            output_tokens=int(rng.integers(1, 200)),
            cls=("urgent", "batch")[int(rng.integers(2))],
            prompt_tokens=int(rng.integers(1, 400)),
        )
        for i in range(n)
    ]


def test_one_model_on_one_instance_is_one_engine() -> None:
    """Requests come further apart than an agent's looks at its queue."""
    fleet = fleet_of(["a"])
    requests = [request(f"r{i}", "a", 0.05 * i, output_tokens=30 + i) for i in range(20)]
    alone = ModelEngine(engine_settings(fleet.models["a"], PROFILE), PROFILE, None).run(requests)
    log = run(fleet, "static", requests)
    assert np.array_equal(log.run.steps.end_s, alone.steps.end_s)
    for ours, theirs in zip(log.run.requests, alone.requests, strict=True):
        assert np.array_equal(ours.token_times_s, theirs.token_times_s) and ours.stages == theirs.stages


def test_a_switch_takes_the_end_of_the_streams_and_both_swaps() -> None:
    fleet = fleet_of()
    log = run(fleet, "fifo", [request("first", "a", 0.0, output_tokens=100), request("second", "b", 0.5)])
    first, second = log.run.requests
    assert first.outcome is second.outcome is Outcome.COMPLETED
    swap = fleet.swaps()["b", "h100"]
    draining, swapping = (next(s for s in log.spans if s.phase is phase) for phase in (Phase.DRAINING, Phase.SWITCHING))
    assert 0.5 < draining.start_s < 0.9 and draining.model == "a", "it is planned and followed within three tenths"
    # The engine notices the end of the reply one step later.
    assert first.finish_s is not None and first.finish_s <= draining.end_s <= first.finish_s + 0.02
    assert swapping.end_s - swapping.start_s == pytest.approx(swap.sleep_s + swap.wake_s)
    assert (swapping.model, swapping.warm) == ("b", True)
    prefill_s = PROFILE.step_s(StepLoad.of([(50, 0)], []))
    assert 0.0 <= second.first_token_s - (swapping.end_s + prefill_s) < 0.1 + 0.02, "it is pulled with the next look"


def test_what_does_not_end_in_time_goes_on_elsewhere_with_the_tokens_it_has() -> None:
    """Its client sees a pause, and every token once."""
    fleet = fleet_of(drain_max_s=1.0)
    long = request("long", "a", 0.0, output_tokens=400)
    log = run(fleet, "fifo", [long, request("second", "b", 0.8)])
    first, second = log.run.requests
    assert first.outcome is second.outcome is Outcome.COMPLETED
    assert first.token_times_s.size == 400 and (np.diff(first.token_times_s) > 0).all()
    gap = int(np.argmax(np.diff(first.token_times_s)))
    draining = next(span for span in log.spans if span.phase is Phase.DRAINING)
    assert draining.end_s - draining.start_s == pytest.approx(1.0, abs=0.02)
    assert first.token_times_s[gap] < draining.end_s and first.num_preemptions == 1
    assert first.token_times_s[gap + 1] > second.token_times_s[-1]
    assert first.recomputed_tokens == 50 + gap + 1
    assert log.run.counters["evicted_on_switch"] == 1


def test_kv_of_what_is_parked_comes_back_to_its_instance_and_is_not_computed_again() -> None:
    """The switch waits for its copy to the host, and the request for the copy back."""
    spans, first = {}, {}
    for swap_gib in (0, 8):
        fleet = fleet_of(drain_max_s=1.0, swap_gib=swap_gib)
        long = request("long", "a", 0.0, output_tokens=400, prompt_tokens=4000)
        log = run(fleet, "fifo/edf", [long, request("second", "b", 0.8)])
        spans[swap_gib], first[swap_gib] = log.spans, log.run.requests[0]
        assert first[swap_gib].outcome is Outcome.COMPLETED and first[swap_gib].token_times_s.size == 400
        assert log.run.counters["evicted_on_switch"] == 1 and log.run.counters["parked"] == (swap_gib > 0)
    assert first[0].recomputed_tokens > 4000 and first[8].recomputed_tokens < 10
    assert (first[0].num_swaps, first[8].num_swaps) == (0, 1)
    draining, kept = (next(s for s in spans[8] if s.phase is phase) for phase in (Phase.DRAINING, Phase.SWITCHING))
    copy_s = 4100 * PROFILE.kv_bytes_per_token / (PROFILE.link_bandwidth_gb_per_s * 1e9)
    swap = fleet.swaps()["b", "h100"]
    assert kept.end_s == pytest.approx(draining.start_s + 1.0 + copy_s + swap.sleep_s + swap.wake_s, abs=0.01)
    gaps = {s: float(np.diff(one.token_times_s).max()) for s, one in first.items()}
    assert gaps[8] < gaps[0] - 0.05


def test_kv_that_is_kept_on_one_instance_is_given_up_where_another_serves_the_request() -> None:
    """The long request leaves n/0, and n/1 has its model first."""
    fleet = fleet_of("ab", devices=2, drain_max_s=0.5, swap_gib=8)
    run_of = FleetRun(fleet, _Scripted(), ModelEngine, policy="edf")
    log = run_of.run([request("long", "a", 0.0, output_tokens=300, prompt_tokens=2000)])
    (long,) = log.run.requests
    assert long.outcome is Outcome.COMPLETED and long.token_times_s.size == 300
    assert log.run.counters["parked"] == 1 and long.num_swaps == 0 and long.recomputed_tokens > 2000
    assert log.run.counters["swap_dropped_served_elsewhere"] == 1


class _Scripted(Dispatcher):
    """Both instances begin with a; n/0 serves the request, leaves for b, and n/1 gets it."""

    def begin(self, view: SimulatedView) -> Sequence[Switch]:
        return [Switch("n/0", "a"), Switch("n/1", "a")]

    def arrived(self, request: WaitingRequest, view: SimulatedView) -> None:
        self.held: WaitingRequest | None = request

    def tick(self, view: SimulatedView) -> Sequence[Operation]:
        given, self.held = self.held, None
        if given is None:
            return []
        if given.kept_on is None:
            return [Give(given.request_id, "n/0"), Switch("n/0", "b")]
        assert (given.kept_on, given.kept_tokens > 2000) == ("n/0", True)
        return [Give(given.request_id, "n/1")]


def test_weights_are_read_into_host_memory_beside_what_runs() -> None:
    fleet = fleet_of("ab", memory_gib=0)
    memory = WeightCopies(2 * fleet.swaps()["b", "h100"].weights_bytes)
    instance = FleetRun(fleet, _Scripted(), ModelEngine, policy=None).instances[0]
    instance._memory = memory
    swap = fleet.swaps()["b", "h100"]
    instance.warm("b")
    assert instance.at == pytest.approx(swap.reload_s - swap.wake_s) and instance.swap_s("b") > swap.reload_s
    instance._clock.now_s = instance.at
    instance.advance()
    assert instance.at == math.inf and instance.swap_s("b") == pytest.approx(swap.sleep_s + swap.wake_s)
    instance.drop("b")
    assert instance.swap_s("b") == pytest.approx(swap.sleep_s + swap.reload_s)


@pytest.mark.parametrize("name", [*(f"{name}/stock" for name in DISPATCHERS), "edf:lengths=oracle", *ABLATIONS])
def test_every_request_ends_once_with_its_tokens(name: str) -> None:
    """With more models than instances, host memory for one of them, and drains that are cut short."""
    fleet = fleet_of("abc", devices=2, memory_gib=20, drain_max_s=0.5, min_active_s=1.0, swap_gib=4)
    requests = mixed(14 if name.endswith("oracle") else 30, 6.0, 1)
    log = run(fleet, name, requests)
    placed = {span.model for span in log.spans}
    for r in log.run.requests:
        if name.startswith("static") and r.request.model not in placed:
            assert r.outcome is Outcome.REJECTED
        else:
            assert (r.outcome, r.token_times_s.size) == (Outcome.COMPLETED, r.request.output_tokens)
            assert (np.diff(r.token_times_s) > 0).all() and r.token_times_s[0] > r.request.arrival_s
    for instance in {span.instance for span in log.spans}:
        spans = [span for span in log.spans if span.instance == instance]
        assert all(a.end_s == b.start_s for a, b in zip(spans, spans[1:], strict=False))
    assert any(span.phase is Phase.SWITCHING for span in log.spans) is not name.startswith("static")


@pytest.mark.parametrize("name", ["on-demand", "collate", "edf", "least-loaded", "qlm/stock"])
def test_an_instance_that_is_empty_takes_no_more_at_once_than_it_can_run(name: str) -> None:
    """One tick gave an empty instance all that waited, and the engine beside it nothing."""
    fleet = fleet_of(["a"], devices=2)
    requests = [request(f"r{i}", "a", 0.0, output_tokens=50, prompt_tokens=8) for i in range(200)]
    log = run(fleet, name, requests)
    assert all(one.outcome is Outcome.COMPLETED for one in log.run.requests)
    assert log.run.steps.waiting.max() <= 32 and log.run.steps.running.max() <= 32


def test_long_jobs_give_way_when_an_urgent_group_comes_to_the_head() -> None:
    """All places are taken; without the operation the urgent requests wait for the end of a job. KV is kept, if so."""
    jobs = [request(f"j{i}", "a", 0.01 * i, output_tokens=1500, cls="batch", prompt_tokens=600) for i in range(32)]
    urgent = [request(f"u{i}", "a", 6.0 + 0.01 * i) for i in range(4)]
    first_s, jobs_of = {}, {}
    for name in ("qlm-paper", "qlm-paper:swap=false", "qlm-paper:preempt=false"):
        log = run(fleet_of(["a"], swap_gib=8), f"{name}/fcfs", [*jobs, *urgent])
        first_s[name] = max(r.latency.ttft_s for r in log.run.requests[32:] if r.latency is not None)
        jobs_of[name] = log.run.requests[:32]
        assert log.run.counters.get("preempted_for_others", 0) == (0 if name == "qlm-paper:preempt=false" else 4)
    assert max(first_s["qlm-paper"], first_s["qlm-paper:swap=false"]) < 0.5 < 5.0 < first_s["qlm-paper:preempt=false"]
    assert sum(job.num_swaps for job in jobs_of["qlm-paper"]) == 4
    assert max(job.recomputed_tokens for job in jobs_of["qlm-paper"]) < 10
    assert sum(job.recomputed_tokens > 1000 for job in jobs_of["qlm-paper:swap=false"]) == 4


def test_a_plan_is_in_force_once_its_time_is_over() -> None:
    fleet, one = fleet_of("a"), [request("x", "a", 1.0)]
    at_once = Options(one_queue=True, periods=AT_ONCE)

    def first_token_s(cost: GroupLine) -> float:
        log = FleetRun(fleet, LiveFleet(options=at_once, cost=cost), ModelEngine, policy=None).run(one)
        return float(log.run.requests[0].token_times_s[0])

    free_s = first_token_s(GroupLine())
    for cost_s in (0.5, 2.0):  # and is then followed with the next look
        assert first_token_s(GroupLine(base_us=cost_s * 1e6)) - free_s == pytest.approx(cost_s, abs=0.11)


def test_streams_that_began_wait_for_their_model_and_lines_go_back_to_the_queue() -> None:
    """No plan names a model that nothing waits for: the instance goes back to it by itself."""
    fleet = fleet_of(drain_max_s=1.0, min_active_s=1.0)
    stream = request("stream", "a", 0.0, output_tokens=600)
    line = request("line", "a", 0.0, output_tokens=600, cls="batch")
    log = run(fleet, "on-demand", [stream, line, request("other", "b", 2.0)])
    served = {r.request.request_id: r for r in log.run.requests}
    assert all(r.outcome is Outcome.COMPLETED for r in served.values())
    back_s = served["other"].token_times_s[-1]
    for one in (served["stream"], served["line"]):
        assert one.num_preemptions == 1 and np.diff(one.token_times_s).max() > 1.0 and one.token_times_s[-1] > back_s
    assert [span.model for span in log.spans if span.phase is Phase.SWITCHING] == ["b", "a"]


def test_lines_end_with_their_deadline_and_streams_with_the_time_that_they_may_wait() -> None:
    """The only instance takes b, which stays for longer than the run."""
    late = [request("line", "a", 9.0, cls="batch"), request("stream", "a", 9.0)]
    busy = [request(f"r{i}", "b", 10.0 * i) for i in range(40)]
    log = run(fleet_of(min_active_s=1e4), "edf", sorted([*late, *busy], key=lambda r: r.arrival_s))
    outcomes = {r.request.request_id: r.outcome for r in log.run.requests}
    assert outcomes.pop("line") is outcomes.pop("stream") is Outcome.REJECTED
    assert set(outcomes.values()) == {Outcome.COMPLETED}


def test_without_warm_starts_every_model_comes_from_disk() -> None:
    requests = [request("x", "b", 0.0), request("y", "a", 9.0)]
    for name, warm in (("qlm", True), ("qlm:warm=false", False)):
        swaps = [s for s in run(fleet_of(), name, requests).spans if s.phase is Phase.SWITCHING]
        assert [s.warm for s in swaps] == [warm, warm]


def test_a_static_batch_ends_before_the_next_begins_and_the_program_shares_batches() -> None:
    requests = [request(f"r{i}", "a", 0.0, output_tokens=10 + 30 * (i % 3)) for i in range(8)]
    log = run(fleet_of(["a"]), "shepherd:batch=4:preempt=false", requests)
    first, second = log.run.requests[:4], log.run.requests[4:]
    assert min(r.first_token_s for r in second if r.first_token_s) > max(r.token_times_s[-1] for r in first)
    idle = np.zeros(2)
    assert shares(np.array([[4.0, 9.0], [9.0, 4.0], [math.inf, 2.0]]), idle).round(6).tolist()[2] == [0.0, 1.0]
    assert shares(np.full((2, 2), 3.0), idle).max(axis=1).tolist() == [1.0, 1.0]
    for busy in (0, 1):
        until_idle_s = np.where(np.arange(2) == busy, 9.0, 0.0)
        assert shares(np.full((1, 2), 3.0), until_idle_s).argmin() == busy


def test_a_batch_swaps_in_where_its_own_instance_is_busy_for_longer() -> None:
    """A long reply of a has a's instance; the idle one of b takes the next request of a, for the cost of a swap."""
    requests = [request("long", "a", 0.0, output_tokens=4000), request("next", "a", 4.0, output_tokens=10)]
    log = run(fleet_of("ab", devices=2), "shepherd", requests)
    long, later = log.run.requests
    assert later.first_token_s is not None and later.first_token_s < long.token_times_s[-1]


def test_a_batch_gives_way_to_one_with_many_more_requests_in_time() -> None:
    """Long batch jobs of a run; urgent requests, which would be late behind them, take their place, and all end."""
    jobs = [request(f"job{i}", "a", 0.0, output_tokens=6000, cls="batch") for i in range(2)]
    urgent = [request(f"now-{model}{i}", model, 3.0, output_tokens=10) for model in "ab" for i in range(8)]
    firsts = {}
    for name in ("shepherd:batch=8", "shepherd:batch=8:preempt=false"):
        log = run(fleet_of("ab"), name, [*jobs, *urgent])
        firsts[name] = [r.first_token_s for r in log.run.requests if r.request.request_id.startswith("now")]
        gave_way = [r.num_preemptions for r in log.run.requests if r.request.request_id.startswith("job")]
        assert all(r.outcome is Outcome.COMPLETED for r in log.run.requests)
        assert (max(gave_way) > 0) is ("preempt" not in name)
    assert max(firsts["shepherd:batch=8"]) < 23.0 < min(firsts["shepherd:batch=8:preempt=false"])


def test_without_swap_the_engines_have_no_swap_space() -> None:
    """KV for a quarter of the requests: the engine preempts, and copies blocks out only where it has swap space."""
    swaps = {}
    requests = [request(f"r{i}", "a", 0.1 * i, output_tokens=400, prompt_tokens=600) for i in range(60)]
    for name in ("qlm-paper/auto", "qlm-paper:swap=false/auto"):
        log = run(scarce_fleet(), name, requests)
        assert sum(r.num_preemptions for r in log.run.requests) > 0
        swaps[name] = sum(r.num_swaps for r in log.run.requests)
    assert swaps["qlm-paper/auto"] > swaps["qlm-paper:swap=false/auto"] == 0


def test_groups_go_to_instances_by_load_in_turn_or_at_random() -> None:
    """Each instance orders its own; the same seed draws the same."""
    requests = mixed(60, 20.0, 4, "a")
    served = {}
    for balance in ("true", "false", "random"):
        logs = [run(fleet_of("a", devices=2), f"qlm-paper:balance={balance}/stock", requests) for _ in range(2)]
        assert logs[0].spans == logs[1].spans
        assert all(r.outcome is Outcome.COMPLETED for r in logs[0].run.requests)
        served[balance] = [float(r.token_times_s[-1]) for r in logs[0].run.requests]
    assert served["true"] != served["false"] != served["random"] != served["true"]


@pytest.mark.parametrize("name", ["qlm/stock", "edf", "collate", "qlm-paper/stock"])
def test_the_same_run_twice_is_the_same(name: str) -> None:
    fleet = fleet_of("abc", devices=2)
    one, two = (run(fleet, name, mixed(20, 10.0, 2)) for _ in range(2))
    assert one.spans == two.spans
    assert all(
        np.array_equal(a.token_times_s, b.token_times_s)
        for a, b in zip(one.run.requests, two.run.requests, strict=True)
    )


def test_collating_makes_no_model_wait_beyond_its_bound() -> None:
    """Requests of one model without a gap; the other's single request waits for the bound, the drain and the swap."""
    steady = [request(f"r{i}", "a", 0.2 * i, output_tokens=40) for i in range(60)]
    requests = sorted([*steady, request("tail", "b", 2.0)], key=lambda r: r.arrival_s)
    first_s = {}
    for bound in (3.0, 9.0):
        log = run(fleet_of(max_wait_s=bound), "collate/stock", requests)
        first_s[bound] = next(r for r in log.run.requests if r.request.request_id == "tail").first_token_s
    assert first_s[3.0] is not None and 5.0 < first_s[3.0] < 8.0
    assert first_s[9.0] is not None and 11.0 < first_s[9.0] < 14.0


def test_a_model_that_just_came_stays_for_its_time() -> None:
    log = run(fleet_of(min_active_s=4.0), "on-demand", [request("x", "b", 0.0), request("y", "a", 4.0)])
    serving = [span for span in log.spans if span.phase is Phase.SERVING and span.model == "b"]
    assert serving and serving[0].end_s - serving[0].start_s == pytest.approx(4.0, abs=0.6)


def test_host_memory_gives_up_what_was_used_least_recently() -> None:
    memory = WeightCopies(30)
    assert memory.keep("i", "a", 10) and memory.keep("i", "b", 10) and memory.keep("j", "a", 10)
    assert memory.keep("i", "c", 10, spare="a")
    assert [memory.holds("i", m) for m in "abc"] == [True, False, True] and memory.holds("j", "a")
    assert not memory.keep("i", "huge", 31) and memory.holds("i", "a")
    memory.release("i", "a")
    assert memory.fits(10) and not memory.fits(11)


def test_a_cold_model_comes_from_disk() -> None:
    fleet = fleet_of(memory_gib=0)
    log = run(fleet, "on-demand", [request("x", "b", 0.0)])
    (swap,) = [span for span in log.spans if span.phase is Phase.SWITCHING]
    cost = fleet.swaps()["b", "h100"]
    assert not swap.warm and swap.end_s - swap.start_s == pytest.approx(cost.sleep_s + cost.reload_s)


def test_swaps_that_cost_three_times_as_much_take_three_times_as_long() -> None:
    fleet = replace(fleet_of(), swap_cost=3.0)
    log = run(fleet, "on-demand", [request("x", "b", 0.0)])
    (swap,) = [span for span in log.spans if span.phase is Phase.SWITCHING]
    once = fleet_of().swaps()["b", "h100"]
    assert swap.end_s - swap.start_s == pytest.approx(3.0 * (once.sleep_s + once.wake_s))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("colate", "dispatcher 'colate' is unknown; known here: static, on-demand"),
        ("collate:max_wait=3", "option 'max_wait' is unknown; known here: prefixes, max_wait_s, lengths; did you mean"),
        ("collate:max_wait_s=x", "max_wait_s: 'x' is not a number >= 0"),
        ("qlm-paper:delta=0", "delta: '0' is not a number above 0"),
        ("edf:lengths=true", "lengths: 'true' is not oracle"),
        ("qlm:warm=no", "warm: 'no' is neither true nor false"),
        ("qlm:balance=no", "balance: 'no' is none of true, false, random"),
        ("shepherd:batch=0", "batch: '0' is not a number above 0"),
        ("edf/edg", "unknown policy 'edg'"),
    ],
)
def test_a_wrong_name_of_a_run_says_what_there_is(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=".*") as caught:
        FleetRunName.parse(name)
    assert message in str(caught.value)


def test_simulated_requests_have_only_the_classes_that_the_file_states() -> None:
    """The server would serve its other built-in classes too, which no request of the workload has."""
    fleet = fleet_of()
    assert {"priority", "background"} < {*fleet.settings.classes.names}
    asked = FleetExperiment(fleet, FleetWorkload("w-a"), ("static",), (5.0,), max_requests=60).requests(0, 5.0)
    assert {one.slo.slo_class.name for one in asked} == {"urgent", "batch"}


def test_stands_for_stock_where_nothing_is_said() -> None:
    chosen = {name: FleetRunName.parse(name).engine_policy("edf") for name in ("static", "on-demand", "edf", "qlm/sjf")}
    assert chosen == {"static": None, "on-demand": None, "edf": "edf", "qlm/sjf": "sjf"}


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("name", "swap_gib", "prefixes"),
    [("collate", 4, False), pytest.param("qlm/stock", 0, False, marks=pytest.mark.whole), ("qlm/stock", 0, True)],
)
def test_vllms_own_scheduler_gives_the_same_fleet(name: str, swap_gib: float, prefixes: bool) -> None:
    """The model of the engine is step by step vLLM's, evictions on switches included, and so is the fleet."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    fleet = fleet_of("ab", devices=1, drain_max_s=0.5, min_active_s=1.0, max_wait_s=2.0, swap_gib=swap_gib)
    requests = mixed(40, 8.0, 3, "ab")
    if prefixes:
        requests = [replace(r, prompt_tokens=2000, prefix_ids=(i % 3, 10, 11, 12)) for i, r in enumerate(requests)]
    model, real = (run(fleet, name, requests, engine) for engine in (ModelEngine, VirtualEngine))
    assert model.spans == real.spans and model.run.counters["evicted_on_switch"] > 0
    assert model.run.counters["parked"] == real.run.counters["parked"]
    assert (model.run.counters["parked"] > 0) is (swap_gib > 0)
    for ours, theirs in zip(model.run.requests, real.run.requests, strict=True):
        assert np.array_equal(ours.token_times_s, theirs.token_times_s)
    assert not math.isnan(model.run.steps.end_s[-1])


def test_the_assumptions_of_a_fleet_name_its_derived_profiles() -> None:
    plain = fleet_of(["a"])
    assert not any("derived" in line for line in assumptions(plain))
    model, derived = plain.models["a"], load_profile("h200-gpt-oss-120b")
    marked = replace(plain, models={"a": replace(model, profiles={"h100": derived})})
    assert assumptions(marked)[0] == f"step times of profile {derived.title}"


@pytest.mark.slow
@pytest.mark.whole
def test_one_instance_that_is_left_for_three_models_changes_no_oftener_than_it_may_and_in_time() -> None:
    """With a host down, an instance changed its model twelve times in 36 s, after three seconds each as its file said.

    That is what keeps the targets: where models stay for longer, requests of the others are late.
    """
    late, switches = {}, {}
    requests = [replace(one, slo=request("x", "a", 0.0).slo) for one in mixed(120, 2.0, 0)]
    for min_active_s in (3.0, 10.0):
        fleet = fleet_of("abc", min_active_s=min_active_s, max_wait_s=30.0, drain_max_s=20.0)
        log = run(fleet, "qlm", requests)
        serving = [span for span in log.spans if span.phase is Phase.SERVING]
        assert all(span.end_s - span.start_s >= min_active_s - 1e-9 for span in serving[1:-1]), "the first was there"
        switches[min_active_s] = len(serving) - 1
        late[min_active_s] = sum(one.token_times_s[-1] > one.request.arrival_s + 20.0 for one in log.run.requests)
    assert switches[3.0] > switches[10.0] > 2
    assert late[3.0] < late[10.0]
