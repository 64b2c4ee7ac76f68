"""Workloads: every registered one works, a seed decides it, and rates and SLO files change nothing but themselves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.sim.workloads.named_slos import NAMED_SLOS, find_slos
from sloserve.sim.workloads.slo_file import read_slo_file
from sloserve.sim.workloads.trace import Trace, make_trace
from sloserve.sim.workloads.workload_registry import WORKLOADS, Workload, trace_workload, workload


def recorded(n: int = 200) -> Trace:
    gaps = np.random.default_rng(0).exponential(2.0, n)
    tasks = ["conv", "code"] * (n // 2)
    return make_trace(
        "rec", "rec.csv", np.cumsum(gaps), range(1, n + 1), range(1, n + 1), tasks, [(i,) for i in range(n)]
    )


def shape(requests: list[WorkloadRequest]) -> list[tuple[int, int, str]]:
    return [(r.prompt_tokens, r.output_tokens, r.slo.slo_class.name) for r in requests]


@pytest.mark.parametrize("each", WORKLOADS.values(), ids=lambda w: w.name)
def test_registered_workloads(each: Workload) -> None:
    requests = each.requests(100, seed=1)
    assert requests == each.requests(100, seed=1)
    assert requests != each.requests(100, seed=2)
    assert len({r.request_id for r in requests}) == len(requests) == 100
    assert requests[0].arrival_s == 0.0
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    assert all(type(r.prompt_tokens) is int and type(r.arrival_s) is float for r in requests)
    assert all(r.slo.targets and r.priority == r.slo.slo_class.rank for r in requests)
    doubled = each.requests(100, seed=1, rate_scale=2.0)
    assert shape(doubled) == shape(requests)
    assert doubled[-1].arrival_s == pytest.approx(requests[-1].arrival_s / 2.0)


@pytest.mark.parametrize("name", ["sharegpt-poisson", "chat-batch-mix", "voice"])
def test_rate_is_what_is_asked_for(name: str) -> None:
    requests = workload(name).requests(2000, seed=3, rate_per_s=5.0)
    assert len(requests) / requests[-1].arrival_s == pytest.approx(5.0, rel=0.05)


@pytest.mark.slow
def test_chat_batch_mix_sends_batch_jobs_in_bursts_of_twenty() -> None:
    requests = workload("chat-batch-mix").requests(4000, seed=0)
    batch = [r for r in requests if r.task == "batch"]
    assert len(batch) / len(requests) == pytest.approx(0.2, abs=0.01)
    assert {r.slo.slo_class.name for r in batch} == {"batch"}
    _, together = np.unique([r.arrival_s for r in batch], return_counts=True)
    assert set(together[:-1].tolist()) == {20}
    assert {r.slo.slo_class.name for r in requests if r.task == "chat"} == {"interactive"}


@pytest.mark.slow
def test_digest_speeds_reach_the_requests() -> None:
    for name, mean in (("reading-speed", 4.8), ("multiround-gamma3", 4.8), ("voice", 3.3), ("voice-gamma3", 3.3)):
        targets = [r.slo.targets for r in workload(name).requests(800, seed=0)]
        assert {t.ttft_s for t in targets} == {1.0}
        assert np.mean([t.tds or 0.0 for t in targets]) == pytest.approx(mean, rel=0.015)


def test_unknown_workload() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown workload 'sharegpt-poison'; known: .*did you mean 'sharegpt-poisson'"
    ):
        workload("sharegpt-poison")


def test_replay_takes_a_window_and_keeps_prefixes() -> None:
    replay = trace_workload(recorded())
    requests = replay.requests(50, seed=4)
    first = requests[0].prompt_tokens
    assert [r.prompt_tokens for r in requests] == list(range(first, first + 50))
    assert [r.prefix_ids for r in requests] == [(first - 1 + i,) for i in range(50)]
    assert replay.requests(50, seed=5)[0].prompt_tokens != first
    assert len(replay.requests(10_000, seed=0)) == 200


def test_replay_at_a_rate_scales_the_window_exactly() -> None:
    replay = trace_workload(recorded())
    plain, scaled = replay.requests(50, seed=4), replay.requests(50, seed=4, rate_per_s=10.0)
    assert 49 / scaled[-1].arrival_s == pytest.approx(10.0)
    assert shape(plain) == shape(scaled)
    ratio = plain[-1].arrival_s / scaled[-1].arrival_s
    assert all(p.arrival_s == pytest.approx(s.arrival_s * ratio) for p, s in zip(plain, scaled, strict=True))
    with pytest.raises(ConfigError, match="positive"):
        replay.requests(50, seed=4, rate_per_s=-1.0)


def test_slo_file_changes_nothing_but_the_slos(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text("classes: {fast: {ttft_ms: 100}, slow: {e2e_ms: 9000}}\nby_task: {conv: fast, code: slow}\n")
    default = trace_workload(recorded()).requests(60, seed=2)
    ours = trace_workload(recorded(), read_slo_file(path)).requests(60, seed=2)
    assert [replace(r, slo=default[0].slo, priority=0) for r in default] == [
        replace(r, slo=default[0].slo, priority=0) for r in ours
    ]
    assert all(r.slo.slo_class.name == ("fast" if r.task == "conv" else "slow") for r in ours)
    assert {r.slo.slo_class.name for r in default} == {"interactive", "batch"}


def test_slos_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text("classes: {only: {ttft_ms: 100}}")
    plain = workload("alpaca-poisson").requests(30, seed=0)
    ours = workload("alpaca-poisson").requests(30, seed=0, slos=read_slo_file(path))
    assert {r.slo.slo_class.name for r in ours} == {"only"}
    assert [r.arrival_s for r in ours] == [r.arrival_s for r in plain]


def test_a_trace_gets_readers_by_name(tmp_path: Path) -> None:
    requests = trace_workload(recorded()).requests(100, seed=0, slos=find_slos("reading"))
    assert {r.slo.slo_class.name for r in requests} == {"reading"}
    assert {r.slo.targets.ttft_s for r in requests} == {1.0}
    assert len({r.slo.targets.tds for r in requests}) > 1
    assert workload("multiround").slos is NAMED_SLOS["reading"]
    path = tmp_path / "slo.yaml"
    path.write_text("classes: {only: {ttft_ms: 100}}")
    assert find_slos(str(path)) == read_slo_file(str(path))
    with pytest.raises(ConfigError, match="--slo: 'readers' is not one of default, reading"):
        find_slos("readers")
