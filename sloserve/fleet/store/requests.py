"""Durable requests: accepted once, served at least once, one visible result.

An agent serves what it has claimed. A claim lapses unless the agent renews it; its requests go back into the queue, and
since each claim counts ``attempt`` up, an agent that held it before can change nothing any more.

A request in flight when an engine dies becomes a suspect. Suspects are claimed by halves of the number that were in
flight together, with nothing beside them, until one dies alone: that one has failed, and no other request with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sloserve.fleet.store.database import Database, Session
from sloserve.fleet.store.lease import LONGEST_S
from sloserve.fleet.store.records import Claim, Claimed, NewRequest, QueuedSums, RequestState, Result

MOST_LOST: Final = 10
"""Claims of one request that may lapse, or lose their engine, before it counts as failed: something is wrong by then
that more attempts will not mend, and each one costs an engine's time. What is given back is not lost, nor what an agent
says that it lost by being slow."""

MOST_BYTES: Final = 16_000_000
"""One answer to :meth:`Requests.results` ends with the result that passes so many bytes: a page of long ones fills
memory."""

_POISON: Final = b"the engine died while it served this request and nothing else"
_GIVEN_UP: Final = b"no engine finished this request, however often it was tried"
_SERVER_ERROR: Final = 500
NO_ROOM: Final = 507
"""Status of a request that was not served, since its tenant may keep no more bytes."""


class Renewed(NamedTuple):
    """What an agent still holds. cancelled: ids of requests that it need not go on with."""

    claims: frozenset[int]
    cancelled: frozenset[str]


class Row(NamedTuple):
    """An ended request of a batch, as its line in a file of results. place: pass it on to get the rows after it."""

    place: int
    id: str
    custom_id: str | None
    line: int | None
    state: RequestState
    status: int | None
    body: bytes | None


class Requests:
    """Durable requests of one store. Every method is one transaction; may be called by many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def accept(self, requests: Sequence[NewRequest]) -> int:
        """Keeps requests; when it returns they are on disk. Returns how many were new, going by their ids."""
        with self._database.transaction() as session:
            new = session.each(_ACCEPT, [_columns(request) for request in requests])
            bodies = [
                {"id": r.id, "body": r.body, "route": r.route}
                for r, is_new in zip(requests, new, strict=True)
                if is_new
            ]
            session.each("INSERT INTO request_body (id, body, route) VALUES (:id, :body, :route)", bodies)
        return len(bodies)

    def claim(self, agent: str, group: int, most: int, lease_s: float) -> Claim | None:
        """Takes up to ``most`` queued requests of a group for ``agent``, in order of arrival; ``None`` for none.

        lease_s: the claim lapses then, by the store's clock, unless it is renewed.
        """
        with self._database.transaction() as session:
            claim = _new_claim(session, agent, lease_s, alone=False)
            session.change(_CLAIM, claim=claim, grp=group, most=most)
            return _claimed(session, claim, alone=False)

    def claim_suspects(self, agent: str, model: str, lease_s: float) -> Claim | None:
        """Takes half of the requests that were in flight together when an engine with this model died; ``None`` for
        none. Nothing else may run on the engine until they are finished or it has died too.
        """
        with self._database.transaction() as session:
            first = session.rows(_FIRST_SUSPECT, model=model)
            if not first:
                return None
            claim = _new_claim(session, agent, lease_s, alone=True)
            suspects = int(first[0][0])
            session.change(_CLAIM_SUSPECTS, claim=claim, model=model, suspects=suspects, most=max(suspects // 2, 1))
            return _claimed(session, claim, alone=True)

    def renew(self, agent: str, lease_s: float) -> Renewed:
        """Renews all claims of an agent that have not lapsed. What is not among them belongs to others by now."""
        with self._database.transaction() as session:
            session.change(_DROP_EMPTY_CLAIMS, agent=agent)
            held = session.rows(_RENEW, agent=agent, lease_s=lease_s)
            cancelled = session.rows(_CANCELLED, agent=agent)
        return Renewed(frozenset(int(claim) for (claim,) in held), frozenset(one for (one,) in cancelled))

    def finish(self, results: Sequence[Result]) -> list[bool]:
        """Keeps results; says of each whether it counts. It does not where another attempt has begun or ended."""
        changes = [{"id": r.id, "attempt": r.attempt, "state": r.state.value} for r in results]
        with self._database.transaction() as session:
            counts = [bool(count) for count in session.each(_FINISH, changes)]
            ended = [r for r, counted in zip(results, counts, strict=True) if counted]
            session.each(_RESULT, [{"id": r.id, "status": r.status, "body": r.body} for r in ended])
            _forget_bodies(session, (r.id for r in ended))
        return counts

    def give_back(self, claim: int, progress: Mapping[str, bytes]) -> int:
        """Puts what is unfinished of a claim back into the queue, at its old place. Returns how many requests that is.

        progress: by id, what the next attempt may go on from.
        """
        with self._database.transaction() as session:
            back = [one for (one,) in session.rows("SELECT id FROM request WHERE claim = :claim", claim=claim)]
            kept = [{"id": one, "progress": progress[one]} for one in back if one in progress]
            session.each(_PROGRESS, kept)
            session.change(_REQUEUE, claim=claim)
            session.change("DELETE FROM claim WHERE id = :claim", claim=claim)
        return len(back)

    def engine_died(self, claims: Sequence[int]) -> list[str]:
        """The engine that served these claims, all that it served, is gone: their requests are suspects from now on.

        Returns: ids of requests that have failed by it.
        """
        with self._database.transaction() as session:
            found = [row for claim in claims for row in session.rows(_IN_FLIGHT, claim=claim)]
            alone = len(found) == 1 and bool(found[0][1])
            failed = [str(found[0][0])] if alone else []
            _fail(session, failed, _POISON)
            for claim in claims:
                session.change(_SUSPECT, claim=claim, suspects=len(found))
            _requeue(session, claims)
            session.each("DELETE FROM claim WHERE id = :claim", [{"claim": claim} for claim in claims])
        return failed

    def take_back(self) -> int:
        """Puts the requests of lapsed claims back into the queue; returns how many claims that were."""
        with self._database.transaction() as session:
            lapsed = session.rows(_LAPSED, longest_s=LONGEST_S)
            _requeue(session, [claim for (claim,) in lapsed])
        return len(lapsed)

    def excuse(self, ids: Iterable[str]) -> None:
        """A claim of each of these has lapsed, and been taken back, though its holder lives: they are not to blame."""
        with self._database.transaction() as session:
            session.each(_EXCUSE, [{"id": one} for one in ids])

    def expire(self) -> list[str]:
        """Ends queued requests whose deadline has passed; returns their ids."""
        with self._database.transaction() as session:
            ended = [one for (one,) in session.rows(_EXPIRE)]
            _forget_bodies(session, ended)
        return ended

    def cancel(self, batch: str) -> tuple[int, int]:
        """Cancels the requests of a batch: those in the queue now, those in flight when their agents next renew.

        Returns: how many are cancelled now, and how many are in flight.
        """
        with self._database.transaction() as session:
            ended = session.change(_CANCEL_QUEUED, batch=batch)
            for table in ("request_body", "request_progress"):
                session.change(f"DELETE FROM {table} WHERE id IN ({_OF_BATCH} AND state = 'cancelled')", batch=batch)
            in_flight = session.change(_CANCEL_CLAIMED, batch=batch)
        return ended, in_flight

    def regroup(self, groups: Mapping[str, int]) -> int:
        """Moves queued requests to other groups, by id; returns how many were still queued."""
        moves = [{"id": request, "grp": group} for request, group in groups.items()]
        with self._database.transaction() as session:
            return sum(session.each("UPDATE request SET grp = :grp WHERE id = :id AND state = 'queued'", moves))

    def sums(self) -> list[QueuedSums]:
        """Sums over the queued requests of each group, model and class. It reads all of them: not for a tight loop."""
        with self._database.reading() as session:
            return [QueuedSums(*row) for row in session.rows(_SUMS)]

    def counts(self, batch: str) -> dict[RequestState, int]:
        """How many requests of a batch are in each state."""
        with self._database.reading() as session:
            found = session.rows("SELECT state, count(*) FROM request WHERE batch = :batch GROUP BY state", batch=batch)
        return {RequestState(state): int(count) for state, count in found}

    def has_open(self, batch: str) -> bool:
        """Whether any request of a batch waits or runs."""
        with self._database.reading() as session:
            return bool(session.rows(_ANY_OPEN, batch=batch))

    def open_of(self, tenant: str, without: str) -> tuple[int, float]:
        """How many requests of a tenant's batches wait or run, and how many tokens they have, expected ones too.

        without: a batch that is not counted.
        """
        with self._database.reading() as session:
            lines, tokens = session.rows(_OPEN_OF, tenant=tenant, without=without)[0]
        return int(lines), float(tokens)

    def result_bytes(self, tenant: str) -> int:
        """Bytes of a tenant's results that stand in no file yet. It looks at each of them: not for a tight loop."""
        with self._database.reading() as session:
            return int(session.rows(_RESULT_BYTES, tenant=tenant)[0][0])

    def refuse_queued(self, tenant: str, why: bytes) -> int:
        """Fails what is queued of a tenant's batches, for want of room for the results; returns how many that were."""
        with self._database.transaction() as session:
            refused = [one for (one,) in session.rows(_REFUSE_QUEUED, tenant=tenant)]
            session.each(_RESULT, [{"id": one, "status": NO_ROOM, "body": why} for one in refused])
            _forget_bodies(session, refused)
        return len(refused)

    def results(self, batch: str, after: int = 0, most: int = 256, most_bytes: int = MOST_BYTES) -> list[Row]:
        """The next ended requests of a batch, in the order of its file.

        most_bytes: after the one with which their results pass this, no more of them.
        """
        with self._database.reading() as session:
            found = session.rows(_RESULTS, batch=batch, after=after, most=most, most_bytes=most_bytes)
        return [Row._make((*row[:4], RequestState(row[4]), *row[5:])) for row in found]

    def forget_results(self, batch: str) -> None:
        """Deletes what a batch's requests were answered, once that stands in its files; how they ended is kept."""
        with self._database.transaction() as session:
            session.change(f"DELETE FROM request_result WHERE id IN ({_OF_BATCH})", batch=batch)

    def forget_ended(self) -> int:
        """As :meth:`forget_results` for all batches that have ended. It reads much: for a start, after a crash."""
        with self._database.transaction() as session:
            return session.change(_FORGET_ENDED)

    def forget(self, batch: str) -> int:
        """Deletes a batch's requests, with all that belongs to them; returns how many they were."""
        with self._database.transaction() as session:
            for table in ("request_body", "request_progress", "request_result"):
                session.change(f"DELETE FROM {table} WHERE id IN ({_OF_BATCH})", batch=batch)
            return session.change("DELETE FROM request WHERE batch = :batch", batch=batch)


_ACCEPT: Final = """
    INSERT INTO request (id, tenant, batch, line, custom_id, model, class, grp, prompt_tokens, output_tokens,
        created_s, due_s)
    VALUES (:id, :tenant, :batch, :line, :custom_id, :model, :slo_class, :grp, :prompt_tokens, :output_tokens,
        store_now(), store_now() + :deadline_s)
    ON CONFLICT (id) DO NOTHING"""
_TAKE: Final = """
    UPDATE request SET state = 'claimed', attempt = attempt + 1, claim = :claim
    WHERE seq IN (SELECT seq FROM taken)"""
_ALIVE: Final = "state = 'queued' AND (due_s IS NULL OR due_s > (SELECT store_now()))"
# Materialized: else PostgreSQL may run the subquery more than once, and take more rows than it asks for.
_CLAIM: Final = f"""
    WITH taken AS MATERIALIZED (
        SELECT seq FROM request WHERE {_ALIVE} AND grp = :grp AND suspects = 0
        ORDER BY seq LIMIT :most LOCKING_NEW_ROWS
    ){_TAKE}"""
_FIRST_SUSPECT: Final = f"""
    SELECT suspects FROM request WHERE {_ALIVE} AND model = :model AND suspects > 0
    ORDER BY seq LIMIT 1 LOCKING_NEW_ROWS"""
_CLAIM_SUSPECTS: Final = f"""
    WITH taken AS MATERIALIZED (
        SELECT seq FROM request WHERE {_ALIVE} AND model = :model AND suspects > 0 AND suspects = :suspects
        ORDER BY seq LIMIT :most LOCKING_NEW_ROWS
    ){_TAKE}"""
_CLAIMED: Final = """
    SELECT r.id, r.attempt, b.body, b.route, r.class, r.due_s - store_now(), p.progress FROM request r
    JOIN request_body b ON b.id = r.id LEFT JOIN request_progress p ON p.id = r.id
    WHERE r.claim = :claim ORDER BY r.seq"""
_RENEW: Final = """
    UPDATE claim SET until_s = store_now() + :lease_s WHERE agent = :agent AND until_s > store_now() RETURNING id"""
_DROP_EMPTY_CLAIMS: Final = """
    DELETE FROM claim WHERE agent = :agent AND NOT EXISTS (SELECT 1 FROM request WHERE request.claim = claim.id)"""
_CANCELLED: Final = """
    SELECT r.id FROM request r JOIN claim c ON c.id = r.claim WHERE c.agent = :agent AND r.cancelled = 1"""
_FINISH: Final = """
    UPDATE request SET state = :state, finished_s = store_now(), claim = NULL
    WHERE id = :id AND attempt = :attempt AND state = 'claimed'"""
_RESULT: Final = "INSERT INTO request_result (id, status, body) VALUES (:id, :status, :body)"
_PROGRESS: Final = """
    INSERT INTO request_progress (id, progress) VALUES (:id, :progress)
    ON CONFLICT (id) DO UPDATE SET progress = excluded.progress"""
_IN_FLIGHT: Final = """
    SELECT r.id, c.alone FROM request r JOIN claim c ON c.id = r.claim
    WHERE r.claim = :claim AND r.state = 'claimed' LOCKING_REQUESTS"""
_REQUEUE: Final = "UPDATE request SET state = 'queued', claim = NULL WHERE claim = :claim AND state = 'claimed'"
_SUSPECT: Final = "UPDATE request SET suspects = :suspects WHERE claim = :claim AND state = 'claimed'"
_LOST: Final = "UPDATE request SET lost = lost + 1 WHERE claim = :claim AND state = 'claimed'"
_LAPSED: Final = """
    DELETE FROM claim WHERE until_s <= store_now() OR until_s > store_now() + :longest_s RETURNING id"""
_EXCUSE: Final = "UPDATE request SET lost = lost - 1 WHERE id = :id AND lost > 0"
_WORN_OUT: Final = f"SELECT id FROM request WHERE claim = :claim AND state = 'claimed' AND lost >= {MOST_LOST}"
_FAIL: Final = "UPDATE request SET state = 'failed', finished_s = store_now(), claim = NULL WHERE id = :id"
_EXPIRE: Final = """
    UPDATE request SET state = 'expired', finished_s = store_now()
    WHERE state = 'queued' AND due_s <= (SELECT store_now()) RETURNING id"""
_CANCEL_QUEUED: Final = """
    UPDATE request SET state = 'cancelled', finished_s = store_now()
    WHERE batch = :batch AND state = 'queued'"""
_CANCEL_CLAIMED: Final = "UPDATE request SET cancelled = 1 WHERE batch = :batch AND state = 'claimed'"
_SUMS: Final = """
    SELECT grp, model, class, count(*), CAST(sum(prompt_tokens) AS double precision), sum(output_tokens),
        sum(output_tokens * output_tokens), min(due_s), max(due_s), min(created_s)
    FROM request WHERE state = 'queued' GROUP BY grp, model, class ORDER BY grp, model, class"""
_RESULTS: Final = """
    WITH page AS (
        SELECT r.seq, r.id, r.custom_id, r.line, r.state, coalesce(length(s.body), 0) AS size FROM request r
        LEFT JOIN request_result s ON s.id = r.id
        WHERE r.batch = :batch AND r.seq > :after AND r.state NOT IN ('queued', 'claimed') ORDER BY r.seq LIMIT :most
    ), sized AS (SELECT page.*, sum(size) OVER (ORDER BY seq) - size AS before FROM page)
    SELECT z.seq, z.id, z.custom_id, z.line, z.state, s.status, s.body FROM sized z
    LEFT JOIN request_result s ON s.id = z.id WHERE z.before < :most_bytes ORDER BY z.seq"""
_ANY_OPEN: Final = "SELECT 1 FROM request WHERE batch = :batch AND state IN ('queued', 'claimed') LIMIT 1"
_OPEN_OF: Final = """
    SELECT count(*), coalesce(sum(r.prompt_tokens + r.output_tokens), 0.0)
    FROM batch b JOIN request r ON r.batch = b.id AND r.state IN ('queued', 'claimed')
    WHERE b.tenant = :tenant AND b.id <> :without AND b.state IN ('validating', 'in_progress', 'cancelling')"""
_RESULT_BYTES: Final = """
    SELECT coalesce(sum(length(s.body)), 0)
    FROM batch b JOIN request r ON r.batch = b.id JOIN request_result s ON s.id = r.id
    WHERE b.tenant = :tenant AND b.state IN ('in_progress', 'finalizing', 'cancelling')"""
_REFUSE_QUEUED: Final = """
    UPDATE request SET state = 'failed', finished_s = store_now() WHERE state = 'queued'
        AND batch IN (SELECT id FROM batch WHERE tenant = :tenant AND state = 'in_progress') RETURNING id"""
_FORGET_ENDED: Final = """
    DELETE FROM request_result WHERE id IN (SELECT r.id FROM batch b JOIN request r ON r.batch = b.id
        WHERE b.state IN ('completed', 'expired', 'cancelled', 'failed'))"""
_OF_BATCH: Final = "SELECT id FROM request WHERE batch = :batch"


def _columns(request: NewRequest) -> dict[str, Any]:
    return {
        "id": request.id,
        "tenant": request.tenant,
        "batch": request.batch,
        "line": request.line,
        "custom_id": request.custom_id,
        "model": request.model,
        "slo_class": request.slo_class,
        "grp": request.group,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "deadline_s": request.deadline_s,
    }


def _new_claim(session: Session, agent: str, lease_s: float, *, alone: bool) -> int:
    sql = "INSERT INTO claim (agent, until_s, alone) VALUES (:agent, store_now() + :lease_s, :alone) RETURNING id"
    return int(session.rows(sql, agent=agent, lease_s=lease_s, alone=int(alone))[0][0])


def _claimed(session: Session, claim: int, *, alone: bool) -> Claim | None:
    found = session.rows(_CLAIMED, claim=claim)
    if not found:
        session.change("DELETE FROM claim WHERE id = :claim", claim=claim)
        return None
    return Claim(claim, tuple(Claimed(*row) for row in found), alone)


def _requeue(session: Session, claims: Iterable[int]) -> None:
    """What is unfinished of the claims goes back into the queue, or has failed if that has happened too often."""
    for claim in claims:
        session.change(_LOST, claim=claim)
        _fail(session, [one for (one,) in session.rows(_WORN_OUT, claim=claim)], _GIVEN_UP)
        session.change(_REQUEUE, claim=claim)


def _fail(session: Session, ids: Sequence[str], reason: bytes) -> None:
    session.each(_FAIL, [{"id": one} for one in ids])
    session.each(_RESULT, [{"id": one, "status": _SERVER_ERROR, "body": reason} for one in ids])
    _forget_bodies(session, ids)


def _forget_bodies(session: Session, ids: Iterable[str]) -> None:
    """What has ended is never sent again."""
    ended = [{"id": one} for one in ids]
    for table in ("request_body", "request_progress"):
        session.each(f"DELETE FROM {table} WHERE id = :id", ended)
