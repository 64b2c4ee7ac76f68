"""Leader, plan, agents, batches and files: one suite for every database."""

import time

import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.store.batches import LEAST_BYTES, ResultFiles
from sloserve.fleet.store.members import FORGOTTEN_S
from sloserve.fleet.store.migrations import STEPS, migrate
from sloserve.fleet.store.records import (
    Batch,
    BatchState,
    DurableRequest,
    File,
    HostRenewed,
    HostTaken,
    RequestState,
    Result,
    StoredPlan,
)
from sloserve.fleet.store.store import Store as OpenStore
from tests.fleet.store.databases import Store


@pytest.fixture
def opened(store: Store) -> OpenStore:
    return OpenStore(store.open())


def test_there_is_one_leader_and_a_new_one_has_a_higher_term(opened: OpenStore, store: Store) -> None:
    members = opened.members
    assert members.lead("x", 5.0) == 1
    assert members.lead("y", 5.0) is None
    assert members.lead("x", 5.0) == 1
    store.pass_s(6.0)
    assert members.lead("y", 5.0) == 2
    assert members.lead("x", 5.0) is None
    store.pass_s(6.0)
    assert members.lead("y", 5.0) == 3  # its lease was over: others may have led meanwhile


def test_another_leads_where_the_clock_of_the_store_was_set_back(opened: OpenStore, store: Store) -> None:
    assert opened.members.lead("x", 5.0) == 1
    store.pass_s(-86_400.0)
    assert opened.members.lead("y", 5.0) == 2 and opened.members.lead("x", 5.0) is None


def test_members_that_were_killed_are_forgotten(opened: OpenStore, store: Store) -> None:
    """Their names are new in each process, so that a gateway that is killed again and again fills the table."""
    for number in range(3):
        opened.members.beat(f"gateway-{number}", {})
    store.pass_s(FORGOTTEN_S + 1.0)
    opened.members.beat("gateway-now", {})
    opened.members.lead("planner", 5.0)
    assert [one.id for one in opened.members.agents()] == ["gateway-now"]


def test_an_agent_hears_that_it_shall_end_and_the_next_one_does_not(opened: OpenStore) -> None:
    members = opened.members
    members.take_host("agent:a", "one", "here", 5.0)
    members.order_end("agent:a")
    assert members.renew_host("agent:a", "one", {}, 5.0) == HostRenewed(True, must_end=True)
    members.take_host("agent:a", "two", "here", 5.0)
    assert members.renew_host("agent:a", "two", {}, 5.0) == HostRenewed(True)


def test_a_host_has_one_agent_until_its_lease_is_over(opened: OpenStore, store: Store) -> None:
    members = opened.members
    assert members.take_host("agent:a", "one", "here", 5.0).taken
    other = members.take_host("agent:a", "two", "elsewhere", 5.0)
    assert not other.taken and other.before == "one"
    store.pass_s(3.0)
    assert members.renew_host("agent:a", "one", {"n": 1}, 5.0) == HostRenewed(True)
    assert members.take_host("agent:a", "two", "elsewhere", 5.0).until_s > other.until_s, "it lives"
    assert [one.state for one in members.agents()] == [{"n": 1}]
    store.pass_s(6.0)
    taken = members.take_host("agent:a", "two", "elsewhere", 5.0)
    assert taken == HostTaken(True, "one", taken.until_s) and taken.until_s > other.until_s
    assert [one.state for one in members.agents()] == [{}], "what the one before it said holds no more"
    assert not members.renew_host("agent:a", "one", {}, 5.0).kept
    members.leave("agent:a", "one")
    assert members.renew_host("agent:a", "two", {}, 5.0).kept, "an agent that lost its host takes nothing along"
    members.leave("agent:a", "two")
    assert members.agents() == []


def test_whoever_holds_the_same_lock_takes_a_host_at_once(opened: OpenStore) -> None:
    members = opened.members
    members.take_host("agent:a", "one", "here", 30.0)
    assert members.take_host("agent:a", "two", "here", 30.0).before == "one"


def test_an_agent_of_a_version_without_leases_is_waited_for(opened: OpenStore, store: Store) -> None:
    members = opened.members
    members.beat("agent:a", {})
    assert not members.take_host("agent:a", "new", "here", 5.0).taken
    store.pass_s(5.5)
    assert members.take_host("agent:a", "new", "here", 5.0).taken


def test_claims_of_an_agent_that_has_died_go_back_at_once(opened: OpenStore) -> None:
    requests = opened.requests
    requests.accept([DurableRequest(f"r{i}", "t", "m", "batch", 1, b"{}") for i in range(3)])
    claim = requests.claim("a:1", 1, 2, 30.0)
    assert claim is not None and requests.claim("b:1", 1, 1, 30.0) is not None
    assert requests.take_from("a:1") == 1
    again = requests.claim("a:2", 1, 9, 30.0)
    assert again is not None and [one.id for one in again.requests] == ["r0", "r1"]
    late = [Result(one.id, one.attempt, RequestState.DONE, 200, b"{}") for one in claim.requests]
    assert requests.finish(late) == [False, False], "the one before it commits nothing any more"


def test_a_plan_of_a_past_term_or_an_older_version_is_not_put_in_force(opened: OpenStore, store: Store) -> None:
    members = opened.members
    assert members.plan() is None
    members.lead("x", 5.0)
    assert members.write_plan("x", StoredPlan(1, 2, {"queues": {}}))
    assert not members.write_plan("x", StoredPlan(1, 2, {"other": 1}))
    store.pass_s(6.0)
    members.lead("y", 5.0)
    assert not members.write_plan("x", StoredPlan(1, 3, {}))
    assert not members.write_plan("z", StoredPlan(2, 1, {}))
    assert members.plan() == StoredPlan(1, 2, {"queues": {}})
    assert members.write_plan("y", StoredPlan(2, 1, {"of": "y"}))
    assert members.plan() == StoredPlan(2, 1, {"of": "y"})


def test_a_plan_that_is_known_is_not_read_again(opened: OpenStore) -> None:
    opened.members.lead("x", 5.0)
    assert opened.members.plan() is None and opened.members.plan(StoredPlan(1, 1, {})) is None
    opened.members.write_plan("x", StoredPlan(1, 1, {"a": 1}))
    first = opened.members.plan()
    assert first == StoredPlan(1, 1, {"a": 1}) and opened.members.plan(first) is first
    opened.members.write_plan("x", StoredPlan(1, 2, {"a": 2}))
    assert opened.members.plan(first) == StoredPlan(1, 2, {"a": 2})
    assert opened.members.plan(StoredPlan(2, 2, {})) == StoredPlan(1, 2, {"a": 2})


def test_agents_are_as_old_as_their_last_sign_of_life(opened: OpenStore, store: Store) -> None:
    began_s = time.perf_counter()
    opened.members.beat("b", {"models": []})
    store.pass_s(7.0)
    opened.members.beat("a", {"models": ["m"]})
    a, b = opened.members.agents()
    took_s = time.perf_counter() - began_s  # which a server's clock adds, however busy the machine is
    assert (a.id, b.id) == ("a", "b") and a.state == {"models": ["m"]}
    assert -0.01 <= a.age_s <= took_s + 0.01 and 6.99 <= b.age_s <= 7.01 + took_s
    opened.members.leave("b")
    assert [agent.id for agent in opened.members.agents()] == ["a"]


def batch(id: str, tenant: str = "t") -> Batch:
    return Batch(
        id, tenant, "/v1/chat/completions", "24h", "file-1", BatchState.VALIDATING, {}, 0.0, metadata={"k": "v"}
    )


def test_a_batch_moves_from_the_state_it_is_in_and_notes_when(opened: OpenStore, store: Store) -> None:
    batches = opened.batches
    made = batches.add(batch("b1"), window_s=60.0)
    assert made.due_s == pytest.approx(made.stamps["validating"] + 60.0) and made.metadata == {"k": "v"}
    store.pass_s(5.0)
    assert batches.move("b1", BatchState.VALIDATING, BatchState.IN_PROGRESS, lines=3)
    assert not batches.move("b1", BatchState.VALIDATING, BatchState.FAILED)
    output = File("file-2", "t", "b1_output.jsonl", "batch_output", 10, 0.0)
    assert batches.move("b1", BatchState.IN_PROGRESS, BatchState.FINALIZING, results=ResultFiles(output))
    found = batches.get("t", "b1")
    assert found is not None and (found.lines, found.output_file, found.error_file) == (3, "file-2", None)
    assert batches.is_file("file-2")
    assert 5.0 <= found.stamps["in_progress"] - found.stamps["validating"] < 7.0
    assert [one.id for one in batches.unfinished()] == ["b1"]
    assert not batches.forget("t", "b1")
    batches.move("b1", BatchState.FINALIZING, BatchState.COMPLETED, errors=[{"line": 2}])
    assert batches.unfinished() == [] and batches.forget("t", "b1") and batches.get("t", "b1") is None


def test_no_tenant_sees_another_ones_batches_and_files(opened: OpenStore) -> None:
    batches = opened.batches
    for i, tenant in enumerate("ttuut"):
        batches.add(batch(f"b{i}", tenant), 60.0)
        batches.add_file(File(f"f{i}", tenant, "in.jsonl", "batch", 10_000 * i, 0.0))
    assert [one.id for one in batches.list("t")] == ["b4", "b1", "b0"]
    assert [one.id for one in batches.list("t", after="b4", most=1)] == ["b1"]
    assert batches.list("t", after="b2") == []  # another tenant's id says nothing
    assert [one.id for one in batches.files("u")] == ["f3", "f2"]
    assert batches.get("t", "b2") is None and batches.file("t", "f2") is None
    assert not batches.delete_file("t", "f2") and batches.delete_file("u", "f2")
    assert batches.bytes_of("t") == LEAST_BYTES + 50_000 and batches.bytes_of("u") == 30_000
    assert batches.bytes_of("nobody") == 0


def test_a_page_of_batches_counts_their_requests_and_keeps_the_counts_of_those_that_have_ended(
    opened: OpenStore, store: Store
) -> None:
    """A page of 100 asked 100 times for the requests of one batch, those of ended ones as well."""
    for i in range(3):
        opened.batches.add(batch(f"b{i}"), 60.0)
        opened.requests.accept([DurableRequest(f"r{i}{j}", "t", "m", "batch", i, b"", batch=f"b{i}") for j in range(4)])
        claim = opened.requests.claim("a", i, 2 + i, 30.0)
        assert claim is not None
        states = [RequestState.DONE] * 2 + [RequestState.EXPIRED, RequestState.FAILED]
        found = [Result(r.id, 1, state, 200, b"") for r, state in zip(claim.requests, states, strict=False)]
        assert all(opened.requests.finish(found))
    found_ = [(one.id, one.completed, one.failed) for one in opened.batches.list("t")]
    assert found_ == [("b2", 2, 2), ("b1", 2, 1), ("b0", 2, 0)]
    ended = opened.requests.counts("b2")
    assert opened.batches.move("b2", BatchState.VALIDATING, BatchState.COMPLETED, ended=ended)
    opened.requests.forget("b2")
    assert [(one.id, one.completed, one.failed) for one in opened.batches.list("t")] == found_
    assert [(opened.batches.get("t", id), id)[0] for id, _, _ in found_] == opened.batches.list("t")


def test_files_are_counted_as_they_come_and_go(opened: OpenStore) -> None:
    """All of a tenant's files were summed up whenever it sent one: a million small ones have room in its quota."""
    for file in [File(f"f{i}", "t", "", "batch", 5_000, 0.0) for i in (0, 1, 1)]:
        opened.batches.add_file(file)
    assert opened.batches.bytes_of("t") == 10_000, "the same file twice is one"
    opened.batches.add(batch("b"), 60.0)
    output = File("f2", "t", "", "batch_output", 10, 0.0)
    opened.batches.move("b", BatchState.VALIDATING, BatchState.COMPLETED, results=ResultFiles(output))
    assert opened.batches.delete_file("t", "f0") and not opened.batches.delete_file("t", "f0")
    assert opened.batches.bytes_of("t") == 5_000 + LEAST_BYTES


def test_what_a_gateway_of_an_older_version_does_not_count_is_counted_later(opened: OpenStore) -> None:
    """Its uploads were free, their deletion made room for more, and its batches ended with 0 lines done."""
    opened.batches.add_file(File("counted", "t", "", "batch", 5_000, 0.0))
    opened.batches.add(batch("b"), 60.0)
    opened.batches.move("b", BatchState.VALIDATING, BatchState.COMPLETED, lines=1)
    with opened.database.transaction() as session:
        session.change("DELETE FROM file WHERE id = 'counted'")
        for tenant in "tu":
            session.change(
                "INSERT INTO file (id, tenant, name, purpose, bytes, created_s) "
                "VALUES (:tenant, :tenant, '', '', 1, 1)",
                tenant=tenant,
            )
        session.change(
            "INSERT INTO request (id, tenant, batch, model, class, grp, prompt_tokens, output_tokens, created_s, "
            "state) VALUES ('r', 't', 'b', 'm', 'batch', 0, 1, 1, 1, 'done')"
        )
    opened.batches.recount_bytes()
    assert opened.batches.bytes_of("t") == opened.batches.bytes_of("u") == LEAST_BYTES
    assert opened.batches.delete_file("u", "u") and opened.batches.bytes_of("u") == 0
    assert [(one.completed, one.failed) for one in opened.batches.list("t")] == [(1, 0)]


def test_a_store_of_an_older_version_keeps_its_counts(store: Store) -> None:
    database = store.open()
    migrate(database, STEPS[:4])
    rows = {"done": "r0", "expired": "r1", "failed": "r2", "queued": "r3"}
    with database.transaction() as session:
        session.change(
            "INSERT INTO batch (id, tenant, endpoint, time_window, input_file, state, stamps, due_s) VALUES "
            "('b', 't', '/', '1h', 'f', 'completed', '{\"validating\": 1}', 1), "
            "('o', 't', '/', '1h', 'f', 'in_progress', '{\"validating\": 1}', 1)"
        )
        for state, id in rows.items():
            for of in "bo":
                session.change(
                    "INSERT INTO request (id, tenant, batch, model, class, grp, prompt_tokens, output_tokens, "
                    "created_s, state) VALUES (:id, 't', :batch, 'm', 'batch', 0, 1, 1, 1, :state)",
                    id=of + id,
                    batch=of,
                    state=state,
                )
        session.change("INSERT INTO request_result (id, status, body) VALUES ('or0', 200, :body)", body=b"12345")
        for id, size in (("f0", 1), ("f1", 9_000)):
            session.change(
                "INSERT INTO file (id, tenant, name, purpose, bytes, created_s) VALUES (:id, 't', '', '', :size, 1)",
                id=id,
                size=size,
            )
    opened = OpenStore(database)
    assert [(one.id, one.completed, one.failed) for one in opened.batches.list("t")] == [("o", 1, 2), ("b", 1, 2)]
    assert opened.bytes_of("t") == LEAST_BYTES + 9_000 + 5


def test_a_file_expires_by_the_clock_of_the_store(opened: OpenStore, store: Store) -> None:
    opened.batches.add_file(File("f", "t", "in.jsonl", "batch", 10, 0.0), expires_after_s=60.0)
    assert opened.batches.expired_files() == []
    store.pass_s(61.0)
    assert [file.id for file in opened.batches.expired_files()] == ["f"]


def test_all_that_is_kept_is_there_when_it_is_opened_again(opened: OpenStore, store: Store) -> None:
    opened.batches.add(batch("b1"), 60.0)
    assert [one.id for one in OpenStore(store.open()).batches.list("t")] == ["b1"]


def test_a_newer_schema_is_refused_and_an_older_one_goes_forward(opened: OpenStore) -> None:
    step = ("CREATE TABLE more (id text)",)
    migrate(opened.database, (*STEPS, step))
    with opened.database.reading() as session:
        assert session.rows("SELECT count(*) FROM more") == [(0,)]
    with pytest.raises(ConfigError, match=f"schema version {len(STEPS) + 1}.*knows {len(STEPS)}"):
        migrate(opened.database)


def test_a_term_ends_when_its_lease_does(opened: OpenStore, store: Store) -> None:
    assert opened.members.lead("planner", 30.0) == 1
    store.pass_s(29.0)
    assert opened.members.lead("planner", 30.0) == 1
    store.pass_s(30.0)
    assert opened.members.lead("planner", 30.0) == 2, "another may have led meanwhile"


def test_costs_of_switches_are_means_that_follow_the_latest(opened: OpenStore, store: Store) -> None:
    for seconds in (2.0, 4.0, 9.0, 15.0):
        opened.switch_costs.add("h100", "m", "wake_s", seconds)
    store.pass_s(5.0)
    opened.switch_costs.add("h100", "a", "start_s", 30.0)
    opened.switch_costs.add("a100", "m", "wake_s", 1.0)
    wake, start = opened.switch_costs.of("h100")
    assert (wake.model, wake.step, wake.times, wake.mean_s) == ("m", "wake_s", 4, pytest.approx(8.0))
    assert (start.model, start.mean_s) == ("a", 30.0), "the latest at the end"


def test_the_first_mark_of_files_stays(opened: OpenStore) -> None:
    assert opened.files_mark(None) is None
    assert opened.files_mark("a") == opened.files_mark("b") == opened.files_mark(None) == "a"
