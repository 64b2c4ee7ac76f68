"""Durable requests: one suite for every database."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sloserve.core.errors import StoreAway
from sloserve.fleet.store.database import Database
from sloserve.fleet.store.records import Batch, BatchState, Claim, DurableRequest, RequestState, Result
from sloserve.fleet.store.request_sql import DUE, LAST_OF_PIECE, RESULT_BYTES, RESULTS, end_queued
from sloserve.fleet.store.requests import MOST_LOST, NO_ROOM, Requests
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store as OpenStore
from tests import bounded
from tests.fleet.store.databases import Store

LEASE_S = 30.0


@pytest.fixture
def requests(store: Store) -> Requests:
    return OpenStore(store.open()).requests


def new(id: str, group: int = 1, **given: object) -> DurableRequest:
    values = {"tenant": "t", "model": "m", "slo_class": "batch", "body": id.encode(), "batch": "b", **given}
    return DurableRequest(id=id, group=group, **values)  # type: ignore[arg-type]


def add(requests: Requests, n: int, **given: object) -> list[str]:
    ids = [f"r{i:03}" for i in range(n)]
    assert requests.accept([new(id, **given) for id in ids]) == n
    return ids


def claimed(requests: Requests, most: int, agent: str = "a", group: int = 1) -> Claim:
    claim = requests.claim(agent, group, most, LEASE_S)
    assert claim is not None
    return claim


def done(claim: Claim, status: int = 200) -> list[Result]:
    return [Result(r.id, r.attempt, RequestState.DONE, status, b"out " + r.body) for r in claim.requests]


def test_results_count_until_they_stand_in_files_and_what_waits_can_be_refused(store: Store) -> None:
    opened = OpenStore(store.open())
    for id, tenant in (("b", "t"), ("c", "other")):
        opened.batches.add(Batch(id, tenant, "/v1/embeddings", "1h", "f", BatchState.IN_PROGRESS, {}, 0.0), 3_600.0)
    add(opened.requests, 3)
    opened.requests.accept([new("x", group=2, batch="c", tenant="other")])
    claim = claimed(opened.requests, 1)
    opened.requests.finish([Result("r000", 1, RequestState.DONE, 200, "\u00e9".encode() * 500)])
    claimed(opened.requests, 1)
    assert opened.bytes_of("t") == 1_000 and opened.bytes_of("other") == 0 and claim.requests[0].id == "r000"
    assert opened.requests.refuse_queued("t", b"no room") == 1
    rows = {row.id: (row.state, row.status, row.body) for row in opened.requests.results("b")}
    assert rows["r002"] == (RequestState.FAILED, NO_ROOM, b"no room") and NO_ROOM == 507  # insufficient storage
    assert opened.requests.counts("b")[RequestState.CLAIMED] == 1, "what runs is finished"
    assert opened.requests.counts("c") == {RequestState.QUEUED: 1}
    opened.requests.forget_results("b")
    assert opened.bytes_of("t") == 0


def test_a_group_is_claimed_in_order_of_arrival_and_no_request_twice(requests: Requests) -> None:
    ids = add(requests, 5)
    requests.accept([new("other", group=2)])
    first, second = claimed(requests, 3), claimed(requests, 3, agent="b")
    assert [r.id for r in first.requests] == ids[:3]
    assert [r.id for r in second.requests] == ids[3:]
    assert first.requests[0].body == b"r000" and first.requests[0].attempt == 1
    assert requests.claim("a", 1, 3, LEASE_S) is None
    assert [(s.group, s.requests) for s in requests.sums()] == [(2, 1)]


def test_a_claim_says_the_route_the_class_and_the_time_that_is_left(requests: Requests, store: Store) -> None:
    requests.accept([new("x", route="/v1/embeddings", slo_class="nightly", deadline_s=60.0), new("y")])
    store.pass_s(10.0)
    x, y = claimed(requests, 2).requests
    assert (x.route, x.slo_class, y.route, y.left_s) == ("/v1/embeddings", "nightly", "/v1/chat/completions", None)
    assert x.left_s is not None and 45.0 < x.left_s <= 50.0


def test_a_request_accepted_twice_is_one(requests: Requests) -> None:
    add(requests, 1)
    assert requests.accept([new("r000", body=b"again"), new("x")]) == 1
    assert [r.body for r in claimed(requests, 9).requests] == [b"r000", b"r000"[:0] + b"x"]


def test_results_come_in_the_order_of_the_batch_and_in_pages(requests: Requests) -> None:
    add(requests, 3)
    assert requests.has_open("b") and not requests.has_open("c")
    claim = claimed(requests, 3)
    assert requests.has_open("b") and requests.finish(list(reversed(done(claim)))) == [True] * 3
    first = requests.results("b", most=2)
    rest = requests.results("b", after=first[-1].place)
    assert [(row.id, row.status, row.body) for row in [*first, *rest]] == [
        (r.id, 200, b"out " + r.body) for r in claim.requests
    ]
    assert requests.counts("b") == {RequestState.DONE: 3} and not requests.has_open("b")


def test_a_page_of_long_results_is_short(requests: Requests) -> None:
    """256 replies of 16 MB would be 4 GB in the memory of a gateway."""
    add(requests, 5)
    claim = claimed(requests, 4)
    requests.finish(done(claim))
    size, sizes, place = len(b"out r000"), list[int](), 0
    while page := requests.results("b", after=place, most_bytes=size + 1):
        place = page[-1].place
        sizes.append(len(page))
    assert sizes == [2, 2]


def test_a_lapsed_claim_is_claimed_anew_and_its_old_holder_changes_nothing(requests: Requests, store: Store) -> None:
    add(requests, 2)
    old = claimed(requests, 2, agent="old")
    store.pass_s(LEASE_S + 1)
    assert requests.renew("old", LEASE_S).claims == frozenset()
    assert requests.take_back() == 1
    new_ = claimed(requests, 2, agent="new")
    assert [r.attempt for r in new_.requests] == [2, 2]
    assert requests.finish(done(old)) == [False, False]
    assert requests.finish(done(new_)) == [True, True]
    assert requests.finish(done(new_)) == [False, False]
    assert [row.status for row in requests.results("b")] == [200, 200]


def test_a_late_result_counts_while_nobody_else_has_begun(requests: Requests, store: Store) -> None:
    add(requests, 1)
    claim = claimed(requests, 1)
    store.pass_s(LEASE_S + 1)
    assert requests.finish(done(claim)) == [True]
    assert requests.take_back() == 1
    assert requests.counts("b") == {RequestState.DONE: 1}


def test_a_renewed_claim_does_not_lapse(requests: Requests, store: Store) -> None:
    add(requests, 1)
    claim = claimed(requests, 1)
    for _ in range(3):
        store.pass_s(LEASE_S - 1)
        assert requests.renew("a", LEASE_S).claims == {claim.id}
        assert requests.take_back() == 0
    assert requests.finish(done(claim)) == [True]
    assert requests.renew("a", LEASE_S).claims == frozenset()


def test_a_claim_is_not_kept_for_as_long_as_the_clock_of_the_store_was_set_back(
    requests: Requests, store: Store
) -> None:
    add(requests, 2)
    claimed(requests, 1)
    living = claimed(requests, 1, agent="b")
    store.pass_s(-86_400.0)
    assert requests.renew("b", LEASE_S).claims == {living.id}
    assert requests.take_back() == 1 and [s.requests for s in requests.sums()] == [1]


def test_what_is_given_back_keeps_its_place_and_its_progress(requests: Requests) -> None:
    ids = add(requests, 3)
    claim = claimed(requests, 2)
    assert requests.give_back(claim.id, {ids[1]: b"tokens", "elsewhere": b""}) == 2
    again = claimed(requests, 3)
    assert [(r.id, r.progress) for r in again.requests] == [(ids[0], None), (ids[1], b"tokens"), (ids[2], None)]


def test_some_of_a_claim_are_given_back_and_the_others_stay(requests: Requests) -> None:
    ids = add(requests, 3)
    claim, other = claimed(requests, 2), claimed(requests, 1, agent="b")
    assert requests.give_back_some(claim.id, {ids[1]: b"tokens", ids[2]: b"of another claim"}) == 1
    again = claimed(requests, 3)
    assert [(r.id, r.attempt, r.progress) for r in again.requests] == [(ids[1], 2, b"tokens")]
    assert requests.give_back_some(again.id, {ids[1]: None}) == 1
    assert [r.progress for r in claimed(requests, 3).requests] == [b"tokens"], "what was there is kept"
    assert requests.finish([*done(claim), *done(other)]) == [True, False, True]


def test_a_claim_counts_as_no_attempt_at_what_was_never_sent(requests: Requests) -> None:
    """Lines that were claimed ahead, and given back for a more urgent group, counted as evicted themselves."""
    ids = add(requests, 2)
    first = claimed(requests, 2)
    assert requests.give_back(first.id, {ids[0]: b"tokens"}, [ids[1], "elsewhere"]) == 2
    second = claimed(requests, 2)
    assert [(r.id, r.attempt) for r in second.requests] == [(ids[0], 2), (ids[1], 1)]
    assert requests.give_back_some(second.id, {ids[0]: None, ids[1]: None}, [ids[1]]) == 2
    assert requests.give_back_some(second.id, {ids[1]: None}, [ids[1]]) == 0, "it is told again, and counts once"
    third = claimed(requests, 2)
    assert [(r.id, r.attempt) for r in third.requests] == [(ids[0], 3), (ids[1], 1)]
    assert requests.give_back_some(second.id, {ids[1]: None}, [ids[1]]) == 0, "another has it"
    assert requests.finish(done(third)) == [True, True]


def test_a_late_result_does_not_count_after_a_claim_that_sent_nothing(requests: Requests, store: Store) -> None:
    (only,) = add(requests, 1)
    late = claimed(requests, 1)
    store.pass_s(LEASE_S + 1)
    requests.take_back()
    requests.give_back(claimed(requests, 1, agent="b").id, {}, [only])
    assert requests.finish(done(late)) == [False], "it waits"
    served = claimed(requests, 1, agent="c")
    assert [r.attempt for r in served.requests] == [2]
    assert requests.finish(done(late)) == [False] and requests.finish(done(served)) == [True]


@pytest.mark.slow
def test_one_that_no_attempt_finishes_fails_with_a_reason(requests: Requests, store: Store) -> None:
    add(requests, 1)
    for _ in range(MOST_LOST + 1):  # with a model that leaves again and again nothing is wrong
        requests.give_back(claimed(requests, 1).id, {})
    for _ in range(MOST_LOST):
        claimed(requests, 1)
        store.pass_s(LEASE_S + 1.0)
        requests.take_back()
    assert requests.claim("a", 1, 1, LEASE_S) is None
    (row,) = requests.results("b")
    assert row.state == RequestState.FAILED and row.status == 500 and b"no engine finished" in (row.body or b"")


@pytest.mark.slow
def test_claims_that_lapse_while_their_holder_lives_are_no_loss(requests: Requests, store: Store) -> None:
    """An agent that is slow to renew, or far from its store, does not make its requests fail."""
    (only,) = add(requests, 1)
    for _ in range(2 * MOST_LOST):
        claimed(requests, 1)
        store.pass_s(LEASE_S + 1.0)
        requests.take_back()
        requests.excuse([only])
    assert requests.finish(done(claimed(requests, 1))) == [True]


@pytest.mark.slow
def test_one_poison_among_many_fails_alone(requests: Requests) -> None:
    """Each engine that serves it dies; the others all get their result."""
    ids = add(requests, 200)
    poison, deaths, alone = ids[77], 0, 0
    while True:
        claims = [claim for _ in range(4) if (claim := requests.claim("a", 1, 16, LEASE_S)) is not None]
        if not claims:
            one = requests.claim_suspects("a", "m", LEASE_S)
            if one is None:
                break
            assert one.alone
            claims, alone = [one], alone + 1
        in_flight = {r.id for claim in claims for r in claim.requests}
        if poison in in_flight:
            deaths += 1
            failed = requests.engine_died([claim.id for claim in claims])
            assert failed in ([], [poison])
        else:
            for claim in claims:
                assert all(requests.finish(done(claim)))
    assert requests.counts("b") == {RequestState.DONE: 199, RequestState.FAILED: 1}
    assert deaths <= 8
    (row,) = [row for row in requests.results("b", most=200) if row.state == RequestState.FAILED]
    assert row.id == poison and b"the engine died" in (row.body or b"")


def test_one_that_was_alone_by_chance_is_tried_again(requests: Requests) -> None:
    add(requests, 1)
    assert requests.engine_died([claimed(requests, 1).id]) == []
    claim = requests.claim_suspects("a", "m", LEASE_S)
    assert claim is not None and requests.finish(done(claim)) == [True]


def test_a_cancelled_batch_ends_in_the_queue_at_once_and_in_flight_at_the_next_renewal(requests: Requests) -> None:
    ids = add(requests, 3)
    claim = claimed(requests, 1)
    assert requests.cancel("b") == (2, 1)
    assert requests.renew("a", LEASE_S).cancelled == {ids[0]}
    ended = Result(ids[0], claim.requests[0].attempt, RequestState.CANCELLED, 499, b"")
    assert requests.finish([ended]) == [True]
    assert requests.counts("b") == {RequestState.CANCELLED: 3}


def test_a_deadline_ends_what_is_queued_by_the_clock_of_the_store(requests: Requests, store: Store) -> None:
    requests.accept([new("early", deadline_s=10.0), new("late", deadline_s=100.0), new("never")])
    store.pass_s(11.0)
    assert [r.id for r in claimed(requests, 1).requests] == ["late"]  # what is over is not begun
    assert requests.expire() == ["early"]
    assert requests.counts("b")[RequestState.EXPIRED] == 1
    assert [r.id for r in claimed(requests, 9).requests] == ["never"]


def test_a_passed_deadline_is_found_by_its_index(store: Store) -> None:
    """PostgreSQL asked the clock of every queued request, twice a second."""
    database = store.open()
    OpenStore(database)
    with database.transaction() as session:
        values, statement = {"state": "expired", "size": 0, "most": 9}, end_queued(DUE)
        if isinstance(database, SqliteDatabase):
            plan, found = session.rows(f"EXPLAIN QUERY PLAN {statement}", **values), "request_due (due_s<?)"
        else:
            session.change("SET LOCAL enable_seqscan = off")
            plan, found = session.rows(f"EXPLAIN {statement}", **values), "Index Cond: (due_s <="
    assert any(found in str(row[-1]) for row in plan), plan


@pytest.mark.parametrize("statement", [RESULTS, LAST_OF_PIECE])
def test_pages_of_results_and_deletions_follow_the_index_of_ended_requests(store: Store, statement: str) -> None:
    """Without it each page would sort its whole batch; it is of ended requests, so that claims do not change it."""
    database = store.open()
    OpenStore(database)
    values = {"batch": "b", "after": 0, "most": 9} | ({"most_bytes": 9} if statement is RESULTS else {})
    with database.transaction() as session:
        if isinstance(database, SqliteDatabase):
            plan = session.rows(f"EXPLAIN QUERY PLAN {statement}", **values)
        else:
            session.change("SET LOCAL enable_seqscan = off")
            session.change("SET LOCAL enable_sort = off")
            plan = session.rows(f"EXPLAIN {statement}", **values)
    assert any("request_place" in str(row[-1]) for row in plan), plan


def test_what_a_tenant_keeps_is_read_from_an_index_of_its_open_batches_alone(store: Store) -> None:
    """The bodies of all its results were asked for their lengths, within a route that has 4 s for it."""
    database = store.open()
    OpenStore(database)
    with database.transaction() as session:
        if isinstance(database, SqliteDatabase):
            plan, found = session.rows(f"EXPLAIN QUERY PLAN {RESULT_BYTES}", tenant="t"), "COVERING INDEX request_batch"
        else:
            session.change("SET LOCAL enable_seqscan = off")
            session.change("SET LOCAL enable_bitmapscan = off")
            plan, found = session.rows(f"EXPLAIN {RESULT_BYTES}", tenant="t"), "Index Only Scan using request_batch"
    assert any(found in str(row[-1]) for row in plan), plan
    assert any("batch_of_tenant" in str(row[-1]) for row in plan), plan


class BreaksOff:
    """A database that is away after so many transactions."""

    def __init__(self, database: Database, left: int) -> None:
        self._database, self.left = database, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def transaction(self) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StoreAway("away")
        return self._database.transaction()


@pytest.mark.parametrize("what", ["cancel", "expire", "refuse_queued", "forget_results", "forget", "forget_ended"])
def test_what_changes_many_requests_goes_on_where_it_was_broken_off(
    what: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one statement it took longer than a server may be silent: it was broken off, and began anew, for ever."""
    monkeypatch.setattr("sloserve.fleet.store.requests.PIECE", 2)
    opened = OpenStore(store.open())
    has_results, ended = what.startswith("forget"), what == "forget_ended"
    state = BatchState.COMPLETED if ended else BatchState.IN_PROGRESS
    opened.batches.add(Batch("b", "t", "/v1/embeddings", "1h", "f", state, {}, 0.0), 3_600.0)
    add(opened.requests, 7, deadline_s=60.0)
    if has_results:
        assert all(opened.requests.finish(done(claimed(opened.requests, 7))))
    store.pass_s(60.0)
    arguments = {"refuse_queued": ("t", b"why"), "expire": (), "forget_ended": ()}.get(what, ("b",))
    table = "request" if what == "forget" else "request_result" if has_results else "request_body"

    def left() -> int:
        with opened.database.reading() as session:
            return int(session.rows(f"SELECT count(*) FROM {table}")[0][0])

    with pytest.raises(StoreAway):
        getattr(Requests(BreaksOff(opened.database, 2)), what)(*arguments)
    assert left() == 3
    getattr(opened.requests, what)(*arguments)
    assert left() == 0


def test_a_result_that_is_being_committed_when_its_engine_dies_is_kept(store: Store) -> None:
    """PostgreSQL let the death count what the other transaction was changing, and broke off over it."""
    database, other = store.open(), OpenStore(store.open()).requests
    requests = OpenStore(database).requests
    add(requests, 1)
    claim = claimed(requests, 1)
    finished = "UPDATE request SET state = 'done', finished_s = store_now(), claim = NULL"
    kept = "INSERT INTO request_result (id, status, body) VALUES ('r000', 200, :body)"
    with database.transaction() as session:
        session.change("UPDATE claim SET alone = 1")
    with bounded.within("two transactions, of which the second waits for the first"), ThreadPoolExecutor(1) as thread:
        with database.transaction() as session:
            session.change(finished)
            session.change(kept, body=b"out")
            died = thread.submit(other.engine_died, [claim.id])
            while not isinstance(database, SqliteDatabase) and not died.done():
                if session.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                    break
        assert died.result() == []
    assert [row.body for row in requests.results("b")] == [b"out"]


def test_sums_are_those_of_the_queued_requests(requests: Requests) -> None:
    requests.accept([new("x", prompt_tokens=10, output_tokens=3.0), new("y", prompt_tokens=20, output_tokens=4.0)])
    (sums,) = requests.sums()
    assert (sums.group, sums.model, sums.slo_class, sums.requests) == (1, "m", "batch", 2)
    assert (sums.prompt_tokens, sums.output_tokens, sums.output_tokens2) == (30.0, 7.0, 25.0)
    assert sums.first_due_s is None and sums.first_arrival_s > 0
    requests.accept([new("z", group=7)])
    assert [s.group for s in requests.sums()] == [1, 7]


def test_nothing_is_left_of_a_batch_that_is_forgotten(store: Store) -> None:
    opened = OpenStore(store.open())
    add(opened.requests, 2)
    opened.requests.finish(done(claimed(opened.requests, 2)))
    assert opened.requests.forget("b") == 2
    with opened.database.reading() as session:
        for table in ("request", "request_body", "request_result", "request_progress"):
            assert session.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    assert BatchState.COMPLETED not in opened.requests.counts("b")


def test_half_of_the_suspects_are_claimed_until_one_dies_alone(requests: Requests) -> None:
    ids = add(requests, 4)
    assert requests.engine_died([claimed(requests, 4).id]) == []
    for left in (ids[:2], ids[:1]):
        claim = requests.claim_suspects("a", "m", LEASE_S)
        assert claim is not None and claim.alone and [r.id for r in claim.requests] == left
        failed = requests.engine_died([claim.id])
    assert failed == ids[:1]
    assert requests.counts("b") == {RequestState.QUEUED: 3, RequestState.FAILED: 1}


@pytest.mark.slow
def test_a_lapsed_claim_is_no_loss_of_others(requests: Requests, store: Store) -> None:
    lost, held = add(requests, 2)
    claimed(requests, 1)
    healthy = claimed(requests, 1, agent="b")
    for _ in range(MOST_LOST):
        store.pass_s(LEASE_S - 1.0)
        requests.renew("b", LEASE_S)
        store.pass_s(2.0)
        assert requests.take_back() == 1
        requests.renew("b", LEASE_S)
        requests.claim("a", 1, 1, LEASE_S)
    assert [(row.id, row.state) for row in requests.results("b")] == [(lost, RequestState.FAILED)]
    assert [r.id for r in healthy.requests] == [held]
    store.pass_s(LEASE_S + 1.0)
    requests.take_back()
    assert [r.id for r in claimed(requests, 1).requests] == [held], "it has lapsed once"


def test_a_deadline_is_over_when_it_is_reached(requests: Requests, store: Store) -> None:
    (only,) = add(requests, 1, deadline_s=60.0)
    store.pass_s(60.0)
    assert requests.claim("a", 1, 1, LEASE_S) is None
    assert requests.expire() == [only]


def test_a_batch_in_progress_is_idle_once_none_of_its_requests_waits_or_runs(store: Store) -> None:
    opened = OpenStore(store.open())
    states = {"b": BatchState.IN_PROGRESS, "empty": BatchState.IN_PROGRESS, "v": BatchState.VALIDATING}
    for id, state in {**states, "e": BatchState.COMPLETED, "c": BatchState.CANCELLING}.items():
        opened.batches.add(Batch(id, "t", "/v1/embeddings", "1h", "f", state, {}, 0.0), 3_600.0)
    add(opened.requests, 2)
    assert opened.requests.idle_batches() == {"empty"}
    opened.requests.finish(done(claimed(opened.requests, 1)))
    claim = claimed(opened.requests, 1)
    assert opened.requests.idle_batches() == {"empty"}
    opened.requests.finish(done(claim))
    assert opened.requests.idle_batches() == {"b", "empty"}


def test_what_a_tenant_has_under_way_is_that_of_its_open_batches(store: Store) -> None:
    opened = OpenStore(store.open())
    open_, ended = BatchState.IN_PROGRESS, BatchState.COMPLETED
    for id, tenant, state in (("b", "t", open_), ("c", "t", open_), ("d", "t", ended), ("e", "other", open_)):
        opened.batches.add(Batch(id, tenant, "/v1/embeddings", "1h", "f", state, {}, 0.0), 3_600.0)
        given = {"batch": id, "tenant": tenant, "prompt_tokens": 30, "output_tokens": 12.0}
        opened.requests.accept([new(f"{id}{i}", **given) for i in range(2)])
    for id, tenant, under_way in (("b", "t", (2, 84.0)), ("", "t", (4, 168.0)), ("", "nobody", (0, 0.0))):
        asked = Batch(id, tenant, "/v1/embeddings", "1h", "f", open_, {}, 0.0)
        assert opened.batches.reserve_lines(asked, 1, 0.0, 0, 0.0) == under_way
    assert (opened.batches.count("t"), opened.batches.count("nobody")) == ((2, 3), (0, 0))
