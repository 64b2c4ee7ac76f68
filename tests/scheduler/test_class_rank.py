"""Class rank: a request for which targets do not decide is served before every request of a less urgent class."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.lso.ordering import by_class, first_places
from sloserve.scheduler.policy import Snapshot
from sloserve.scheduler.registry import main_policies, make_policy, policy_names

Make = Callable[..., Snapshot]
NOW_S = 1000.0

FIRST_BY_CLASS = [name for name in main_policies() if name != "fcfs"]
AS_PUBLISHED = {
    "andes-paper", "atlas", "continuum", "econo-paper", "fastserve", "fcfs", "multires", "orca", "plas", "rr",
    "sarathi", "srtf", "sync-coupled", "thunder-agent", "vllm-2023",
}  # fmt: skip
"""vLLM's own order, and baselines in the form of their papers."""
VARIANTS = {"andes-parts", "econo-parts", "edf-split", "niyama", "sa-batches"}
"""Of policies that read it, for experiments, and a rival that does."""


def test_every_policy_either_reads_class_rank_or_is_a_baseline_that_does_not() -> None:
    reads = {name for name in policy_names() if "class_rank" in make_policy(name).needs}
    assert reads - VARIANTS == set(FIRST_BY_CLASS)
    assert set(policy_names()) - reads == AS_PUBLISHED


@pytest.mark.parametrize("name", FIRST_BY_CLASS)
def test_a_priority_request_without_targets_goes_before_a_background_one_with_a_deadline(
    name: str, snapshot: Make
) -> None:
    """edf, andes, sa and econo had it last."""
    request = {"arrival_s": NOW_S, "max_tokens": 100}
    background = {**request, "class_rank": 3, "class_id": 3, "e2e_s": 20.0, "max_tokens": 10}
    at = snapshot([background, background, {**request, "class_rank": 0}], [background], max_num_seqs=3, free_blocks=9)
    policy = make_policy(name)
    for slot in (*at.running, *at.waiting):
        policy.arrived(at.rows, int(slot), NOW_S)
    planned = policy.plan(at, NOW_S).waiting
    assert planned is not None and int(planned[0]) == 3


@pytest.mark.parametrize("full", [{"max_num_seqs": 2}, {"free_blocks": 1, "total_blocks": 64}])
@pytest.mark.parametrize("name", FIRST_BY_CLASS)
def test_no_priority_request_without_targets_gives_way_to_a_less_urgent_class(
    name: str, full: dict[str, int], snapshot: Make
) -> None:
    chat = {"arrival_s": NOW_S - 0.5, "ttft_s": 1.0, "tds": 5.0, "prompt_tokens": 200, "class_rank": 1, "priority": 1}
    plain = {"arrival_s": NOW_S - 30.0, "first_token_s": NOW_S - 29.0, "prompt_tokens": 200, "class_rank": 0}
    plain |= {"computed_tokens": 300, "kv_blocks": 19, "output_tokens": 101, "max_tokens": 900}
    policy = make_policy(name, {"hysteresis": 0.0} if name == "auto" else {})
    assert not policy.plan(snapshot([chat], [plain] * 2, **full), NOW_S).preempt.size


def test_sjf_serves_class_after_class_the_shortest_first_in_each(snapshot: Make) -> None:
    tokens_and_rank = [(5, 2), (900, 0), (5, 1), (90, 0), (300, 0)]
    waiting = [{"oracle_output_tokens": n, "class_rank": rank} for n, rank in tokens_and_rank]
    at = snapshot(waiting)
    options: dict[str, Any] = {"length": "oracle"}
    found, mixed = (
        make_policy("sjf", options | {"classes": classes}).plan(at, NOW_S).waiting for classes in (True, False)
    )
    assert found is not None and found.tolist() == [3, 4, 1, 2, 0]
    assert mixed is not None and mixed.tolist() == [0, 2, 3, 4, 1]


REQUESTS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.5, 7.0, np.inf]), st.integers(0, 3), st.booleans()), max_size=12
)


@given(REQUESTS, st.integers(0, 12))
def test_the_rule_holds_for_any_requests(requests: list[tuple[float, int, bool]], most: int) -> None:
    key = np.array([k for k, _, _ in requests], np.float64)
    rank = np.array([r for _, r, _ in requests], np.int64)
    undecided = np.array([free for _, _, free in requests], np.bool_)
    lowered, seq = by_class(key, rank, undecided), np.arange(key.size)
    order = first_places(key, lowered, rank, seq, key.size)
    assert sorted(order) == list(range(key.size))
    assert first_places(key, lowered, rank, seq, most).tolist() == order[:most].tolist()
    for at, later in enumerate(order):
        for earlier in order[:at]:
            if undecided[later]:
                assert rank[earlier] <= rank[later]
            elif not undecided[earlier]:
                assert (key[earlier], rank[earlier]) <= (key[later], rank[later])
