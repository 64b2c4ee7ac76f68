"""Turns of LoRA adapters: no adapter waits for ever for the place of a hot one, in vLLM's own scheduler."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.engine.adapter_turns import TURN_S, with_adapter_turn
from sloserve.lso.standing import Standing
from sloserve.scheduler.policy import Plan
from tests.snapshots import make_snapshot
from tests.vllm_plugin.engine.test_staying_alive import Build, RequestOf, adapters


def served(
    build: Build, request_of: RequestOf, policy: str, shares: dict[str, Any] | None, aged_share: float
) -> tuple[float, float]:
    """Return when the first token of the third adapter's last request came, and when the last of the others' ended.

    Two adapters run at once, and requests of two wait all the time.
    """
    classes = {"interactive": {"rank": 0, "aged_after_s": 0.5}}
    section: dict[str, Any] = {"classes": classes, "aged_share": aged_share, "tenant_shares": shares}
    engine = build(policy, section=section)
    # The hot adapters' outputs end one after another, so that a request of either runs at any time.
    workload = [request_of(f"r{i:03}", 0.04 * i, 20, 20 + i % 17) for i in range(120)]
    workload[20:20] = [request_of(f"x{i}", 0.8, 20, 20) for i in range(3)]
    adapters(engine, {one.request_id: 3 if one.request_id[0] == "x" else 1 + i % 2 for i, one in enumerate(workload)})
    log = engine.run(workload)
    assert [one.token_times_s.size for one in log.requests] == [one.output_tokens for one in workload]
    assert not log.counters.get("internal_errors") and not log.counters.get("plan_errors")
    return (
        max(float(one.token_times_s[0]) for one in log.requests if one.request.request_id[0] == "x"),
        max(float(one.token_times_s[-1]) for one in log.requests if one.request.request_id[0] == "r"),
    )


@pytest.mark.vllm
@pytest.mark.parametrize(("policy", "shares", "aged_share"), [("fcfs", {}, 0.0), ("edf", {}, 0.0), ("edf", None, 0.05)])
def test_an_adapter_gets_a_place_while_two_hot_ones_have_all_of_them(
    build: Build,
    request_of: RequestOf,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    shares: dict[str, Any] | None,
    aged_share: float,
) -> None:
    monkeypatch.setattr("sloserve.engine.adapter_turns.TURN_S", 0.5)  # all is over within seven seconds
    never, end_s = served(build, request_of, policy, None, 0.0)
    assert never > 0.9 * end_s, "without either rule the third adapter waits for the end of the others"
    first_s, end_s = served(build, request_of, policy, shares, aged_share)
    assert first_s < 0.7 * end_s


def snapshot_of(waiting: list[int | None], running: list[int | None], levels: dict[int | None, int]) -> Any:
    """Return a snapshot, and the adapter of each slot; an account is an adapter, and 0 is the model itself."""
    rows = [[{"account": lora or 0} for lora in loras] for loras in (waiting, running)]
    snapshot = make_snapshot(*rows)
    level = np.array([levels.get(lora or None, 0) for lora in range(10)])
    standing = Standing(level, np.zeros(10), service_s=2.0 * TURN_S * level)
    return replace(snapshot, standing=standing), lambda slot: int(snapshot.rows.account[slot]) or None


def test_the_adapter_on_the_highest_level_is_held_back_and_all_others_go_on() -> None:
    snapshot, lora_of = snapshot_of([1, 3, None, 2, 1], [1, 1, 2], {1: 2, 2: 1})
    plan = with_adapter_turn(Plan(waiting=snapshot.waiting), snapshot, lora_of, 2)
    assert plan.waiting is not None
    assert [lora_of(slot) for slot in plan.waiting] == [3, None, 2, 1, 1]
    assert plan.max_running == 3 + 2, "of the five that wait, one names no adapter, and one an adapter that runs"


@pytest.mark.parametrize(
    ("waiting", "running", "levels"),
    [
        ([3, 1], [1, 2], {}),  # all on one level
        ([3, 1], [1], {1: 1}),  # a place is free
        ([1, 2, None], [1, 2], {1: 1}),  # all that wait can run
        ([3, 1], [1, 2], {3: 1}),  # the one that waits is on a higher level
    ],
)
def test_no_adapter_gives_up_its_place_without_need(
    waiting: list[int | None], running: list[int | None], levels: dict[int | None, int]
) -> None:
    snapshot, lora_of = snapshot_of(waiting, running, levels)
    plan = Plan(waiting=snapshot.waiting)
    assert with_adapter_turn(plan, snapshot, lora_of, 2) is plan
