"""The request table against vLLM's own requests: rows are right when read."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import COLUMNS, State
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.engine.virtual.drafts import Drafts
from sloserve.scheduler.policy import EngineFacts

pytestmark = pytest.mark.vllm

ENGINE = EngineFacts(10, 20, KVLayout.full(16), 4, 64, 4)


def make_request(request_id: str, extra_args: dict[str, Any] | None = None, **others: Any) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=9, extra_args=extra_args)
    given = {"prompt_token_ids": [1] * 20, "sampling_params": params, "pooling_params": None, "arrival_time": 50.0}
    return Request(request_id, **(given | others))


def make_table() -> Any:
    from sloserve.engine.request_table import RequestTable
    from sloserve.vllm_plugin.engine.vllm_port import VllmReader

    return RequestTable(frozenset(COLUMNS), VllmReader())


def add(table: Any, request: Any) -> Any:
    return table.add(request, stated(request))


def stated(request: Any) -> Any:
    from sloserve.vllm_plugin.engine.engine_stats import EngineStats

    return EngineStats(DEFAULT_CLASSES, Counter()).enqueued(request)


def test_a_row_says_what_the_request_says() -> None:
    table = make_table()
    args = {"slo_class": "batch", "slo_ttft_ms": 200, "slo_e2e_ms": 3000, "slo_output_tokens": 7}
    request = make_request("a", args, priority=3)
    slot = add(table, request)
    row = {name: getattr(table.rows, name)[slot] for name in COLUMNS}
    assert table.slot_of == {"a": slot} and table.requests_in(np.array([slot])) == [request]
    expected = {"arrival_s": 50.0, "priority": 3, "class_rank": 2, "class_id": 2, "ttft_s": 0.2, "e2e_s": 3.0}
    expected |= {"prompt_tokens": 20, "max_tokens": 9, "oracle_output_tokens": 7, "state": State.WAITING}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert np.isnan(row["tpot_s"]) and np.isnan(row["tds"]) and np.isnan(row["first_token_s"])


def test_streaming_sessions_and_pooling_requests_have_no_row() -> None:
    from vllm.pooling_params import PoolingParams

    table = make_table()
    assert add(table, make_request("session", resumable=True)) is None
    assert add(table, make_request("pool", sampling_params=None, pooling_params=PoolingParams())) is None
    assert len(table.rows) == 0 and not table.slot_of


def test_a_request_whose_grammar_is_pending_is_no_candidate_until_it_is_there() -> None:
    from vllm.v1.request import RequestStatus

    table = make_table()
    request = make_request("a")
    request.structured_output_request = SimpleNamespace(grammar=None)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    slot = add(table, request)
    assert table.rows.state[slot] == State.BLOCKED
    assert table.snapshot(ENGINE).waiting.size == 0
    request.structured_output_request.grammar = object()
    assert table.snapshot(ENGINE).waiting.tolist() == [slot]


def test_admission_progress_preemption_and_the_end() -> None:
    table = make_table()
    first, second = make_request("a"), make_request("b")
    slots = [add(table, first), add(table, second)]
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="b"), SimpleNamespace(req_id="stranger")],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids={"a"}),
        num_scheduled_tokens={"a": 5, "stranger": 1, "b": 3},
    )
    assert table.admitted(output).tolist() == slots  # as they were admitted, not new ones first
    first.num_computed_tokens, second.num_computed_tokens, second.num_in_flight_tokens = 17, 16, 1
    at = table.snapshot(ENGINE)
    assert at.running.tolist() == slots and not at.waiting.size
    assert at.rows.computed_tokens[slots].tolist() == [17, 16]
    assert at.rows.kv_blocks[slots].tolist() == [2, 1]
    assert at.rows.in_flight_tokens[slots].tolist() == [0, 1]

    outputs = {0: SimpleNamespace(outputs=[SimpleNamespace(request_id="a", new_token_ids=[5, 6])])}
    outputs[0].outputs += [SimpleNamespace(request_id=name, new_token_ids=ids) for name, ids in (("b", []), ("x", [7]))]
    found, tokens, _ = table.new_tokens(outputs)
    assert (found.tolist(), tokens.tolist()) == ([slots[0]], [2])
    first.append_output_token_ids([5, 6])
    for now_s in (60.0, 61.0):
        table.note_first_tokens(now_s)
    assert at.rows.first_token_s[slots] == pytest.approx([60.0, np.nan], nan_ok=True)

    first.num_preemptions = 1
    table.preempted(first)
    assert table.rows.state[slots[0]] == State.PREEMPTED
    assert (at.rows.kv_blocks[slots[0]], at.rows.output_tokens[slots[0]], at.rows.num_preemptions[slots[0]]) == (
        0,
        2,
        1,
    )

    assert table.finished(first) == slots[0]
    table.drop(first)
    assert table.rows.state[slots[0]] == State.FREE and set(table.slot_of) == {"b"}
    assert table.finished(first) is None


def adapter(number: int) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=f"l{number}", lora_int_id=number, lora_path="/nowhere")


def touchable(table: Any, slots: list[int]) -> list[tuple[bool, bool]]:
    """(preemptable, pausable) of each, once the guard has run."""
    table.marks.guard_loras(1, table.slot_of.values())
    return [(bool(table.rows.preemptable[slot]), bool(table.rows.pausable[slot])) for slot in slots]


def test_no_one_may_be_touched_while_more_adapters_live_than_fit() -> None:
    table = make_table()
    plain = add(table, make_request("plain"))
    requests = [make_request(f"r{n}", lora_request=adapter(n)) for n in (1, 2)]
    slots = [add(table, r) for r in requests]
    assert touchable(table, [plain, *slots]) == [(True, True), (False, False), (False, False)]
    late = add(table, make_request("late", lora_request=adapter(2)))
    assert touchable(table, [plain, late]) == [(True, True), (False, False)]
    table.drop(requests[1])
    assert touchable(table, [slots[0]]) == [(False, False)]
    table.drop(table.request_at[late])
    assert touchable(table, [plain, slots[0]]) == [(True, True), (True, True)]


def test_a_session_counts_as_long_as_it_lives() -> None:
    table = make_table()
    slot = add(table, make_request("a", lora_request=adapter(1)))
    session = make_request("session", resumable=True, lora_request=adapter(2))
    assert add(table, session) is None
    assert touchable(table, [slot]) == [(False, False)]
    table.drop(session)
    assert touchable(table, [slot]) == [(True, True)]


def test_protection_outlives_the_want_of_adapters_and_ends_with_the_request() -> None:
    table = make_table()
    requests = [make_request(f"r{n}", lora_request=adapter(n)) for n in (1, 2)]
    slots = [add(table, r) for r in requests]
    table.marks.protect(np.array(slots[:1]))
    # Protected before the guard.
    assert touchable(table, slots) == [(False, False), (False, False)]
    table.drop(requests[1])
    assert touchable(table, slots[:1]) == [(False, False)]
    other = make_request("r3", lora_request=adapter(3))
    slots[1] = add(table, other)
    table.marks.guard_loras(1, table.slot_of.values())
    table.marks.protect(np.array(slots[1:]))  # protected under the guard
    table.drop(requests[0])
    assert touchable(table, slots[1:]) == [(False, False)]
    table.drop(other)
    assert add(table, make_request("fresh")) == slots[1]
    assert touchable(table, slots[1:]) == [(True, True)]


def test_numbers_of_a_client_are_clamped_to_their_columns() -> None:
    table = make_table()
    for number, most in ((10**30, 2**63 - 1), (-(10**30), -(2**63))):
        request = make_request(f"{number}", priority=number)
        request.max_tokens = abs(number)
        slot = add(table, request)
        assert table.rows.priority[slot] == most
        assert table.rows.max_tokens[slot] + table.rows.prompt_tokens[slot] == 2**31 + 20


def test_a_request_met_in_the_middle_gets_the_row_it_would_have() -> None:
    from vllm.v1.request import RequestStatus

    table = make_table()
    args = {"slo_tpot_ms": 100, "slo_tds": 5}
    fresh, running, preempted, paced = (make_request(name, args if name == "paced" else None) for name in NAMES)
    for request in (running, paced):
        request.status, request.num_computed_tokens = RequestStatus.RUNNING, 22
        request.append_output_token_ids([5, 6, 7])
    preempted.status, preempted.num_preemptions = RequestStatus.PREEMPTED, 2
    slots = [table.add_live(request, stated(request), 60.0) for request in (fresh, running, preempted, paced)]
    at = table.snapshot(ENGINE)
    assert (at.waiting.tolist(), at.running.tolist()) == ([slots[0], slots[2]], [slots[1], slots[3]])
    rows = at.rows
    assert rows.state[slots].tolist() == [State.WAITING, State.RUNNING, State.PREEMPTED, State.RUNNING]
    assert rows.seq[slots].tolist() == [0, 1, 2, 3]
    assert rows.output_tokens[slots].tolist() == [0, 3, 0, 3] and rows.num_preemptions[slots].tolist() == [0, 0, 2, 0]
    assert rows.computed_tokens[slots].tolist() == [0, 22, 0, 22]
    # On the pace it asks for, the faster of the two it states; without one, all at once.
    assert rows.first_token_s[slots] == pytest.approx([np.nan, 60.0, np.nan, 59.8], nan_ok=True)


NAMES = ("fresh", "running", "preempted", "paced")


def test_columns_change_while_slots_order_and_what_was_noted_stay() -> None:
    from sloserve.engine.request_table import RequestTable
    from sloserve.vllm_plugin.engine.vllm_port import VllmReader

    table = RequestTable(frozenset({"priority", "first_token_s"}), VllmReader())
    requests = [make_request(name, {"slo_e2e_ms": 1000}, priority=i) for i, name in enumerate(NAMES)]
    slo_of = {request.request_id: stated(request) for request in requests}
    slots = [add(table, request) for request in requests]
    table.drop(requests[0])
    del slo_of[requests[0].request_id]
    rows = table.rows
    rows.first_token_s[slots[1]] = 55.0
    rows.preemptable[slots[2]] = False
    table.keep(frozenset({"e2e_s", "first_token_s"}), slo_of, 60.0)
    assert table.rows is rows and not hasattr(rows, "priority")
    assert rows.seq[slots[1:]].tolist() == [1, 2, 3] and rows.e2e_s[slots[1:]].tolist() == [1.0] * 3
    assert rows.first_token_s[slots[1]] == 55.0 and rows.preemptable[slots[1:]].tolist() == [True, False, True]
    table.keep(frozenset({"priority"}), slo_of, 60.0)
    assert rows.priority[slots[1:]].tolist() == [1, 2, 3]
    assert add(table, make_request("late")) == slots[0]


@pytest.mark.parametrize("needs", [{"kv_blocks"}, {"output_tokens", "computed_tokens"}, {"in_flight_tokens"}, set()])
def test_of_the_running_requests_only_what_is_kept_is_read(needs: set[str]) -> None:
    from vllm.v1.request import RequestStatus

    from sloserve.engine.request_table import RequestTable
    from sloserve.vllm_plugin.engine.vllm_port import VllmReader

    table = RequestTable(frozenset(needs), VllmReader())
    requests = [make_request(name) for name in NAMES]
    for request in requests[1:]:
        request.status = RequestStatus.RUNNING
    slots = [table.add_live(request, stated(request), 60.0) for request in requests]
    for at, request in enumerate(requests):
        request.num_computed_tokens, request.num_in_flight_tokens = 16 + at, at
        request.append_output_token_ids([5] * at)
    assert table.snapshot(ENGINE).running.tolist() == slots[1:]
    read = {"kv_blocks": [0, 2, 2, 2], "computed_tokens": [0, 17, 18, 19], "in_flight_tokens": [0, 1, 2, 3]}
    read["output_tokens"] = [0, 1, 2, 3]
    for name, expected in read.items():
        assert not hasattr(table.rows, name) or getattr(table.rows, name)[slots].tolist() == expected
    assert needs <= table.rows.kept


def thinking(prompt: list[int], reply: list[int], anew_at: int) -> list[bool]:
    """Whether vLLM has the end of thinking follow each token of ``reply``: 1 begins it, 2 ends it, at most 4 between.

    anew_at: length of the reply at which the request, which had been out of the batch, comes back to it.
    """
    import torch
    from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

    reasoning: Any = SimpleNamespace(reasoning_start_token_ids=[1], reasoning_end_token_ids=[2])
    params = SimpleNamespace(thinking_token_budget=4)
    forced = []
    for length in range(1, len(reply) + 1):
        if length in (1, anew_at):
            holder = ThinkingBudgetStateHolder(reasoning, 1, 0, torch.device("cpu"), False)
            batch: Any = SimpleNamespace(removed=[], moved=[], added=[(0, params, prompt, reply[:length])])
            holder.sync_batch(batch)
        holder.update_state([reply[:length]], None)
        forced.append(bool(holder._state[0]["force_index"]))
    return forced


def test_a_request_whose_thinking_is_counted_may_not_be_touched() -> None:
    """vLLM counts other than it did where a request comes back to the batch. (Where it does not, the guard can go.)"""
    from vllm.sampling_params import SamplingParams

    prompt, reply = [5, 1], [2, 1, 5, 5, 5, 5]
    assert thinking(prompt, reply, anew_at=1)[-1]
    assert not thinking(prompt, reply, anew_at=5)[-1]
    table = make_table()
    counted = make_request("a", sampling_params=SamplingParams(max_tokens=9, thinking_token_budget=4))
    slots = [add(table, counted), add(table, make_request("b"))]
    assert touchable(table, slots) == [(False, False), (True, True)]


@pytest.mark.parametrize(
    ("status", "aborted"),
    [("STOPPED", False), ("LENGTH_CAPPED", False), ("REPETITION", False), ("ABORTED", True), ("ERROR", True)],
)
def test_a_reply_that_its_client_or_an_error_ended_is_not_whole(status: str, aborted: bool) -> None:
    from vllm.v1.request import RequestStatus

    table, request = make_table(), make_request("a")
    add(table, request)
    request.status = RequestStatus[f"FINISHED_{status}"]
    slot = table.finished(request)
    assert slot is not None and bool(table.rows.aborted[slot]) is aborted


def test_the_drafts_of_a_request_are_those_that_vllm_has_for_its_next_step(
    build: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    """N-grams find none for some requests, and an engine may draft fewer under load."""
    engine = build("edf", drafts=Drafts(3, 0.7))
    scheduler = engine.scheduler
    engine._add([request_of(name, prompt_tokens=9, output_tokens=50) for name in "abc"], engine._clock.now_s())
    for name, tokens in (("a", []), ("b", [7, 7]), ("c", [-1, -1, -1])):
        scheduler.requests[name].spec_token_ids = tokens
    planner = scheduler.planner
    slots = np.array([planner.table.slot_of[name] for name in "cab"])
    assert planner.port.drafts_ready(slots, planner.table).tolist() == [3, 0, 2]
