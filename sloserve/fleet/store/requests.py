"""Durable requests: accepted once, served at least once, one visible result.

An agent serves what it has claimed. A claim lapses unless the agent renews it; its requests go back into the queue, and
since each claim counts ``attempt`` up, an agent that held it before can change nothing any more. A claim that is given
back does not count for requests that were never sent to an engine, since no result of that claim can come any more.

A request in flight when an engine dies becomes a suspect. Suspects are claimed by halves of the number that were in
flight together, with nothing beside them, until one dies alone: that one has failed, and no other request with it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sloserve.fleet.store import request_sql as sql
from sloserve.fleet.store.database import Database, Session
from sloserve.fleet.store.lease import LONGEST_S
from sloserve.fleet.store.records import Claim, Claimed, DurableRequest, QueuedSums, RequestState, Result
from sloserve.fleet.store.usage import add_use

MOST_LOST: Final = 10
"""Claims of one request that may lapse, or lose their engine, before it counts as failed: by then something is wrong
that more attempts will not mend, and each one costs an engine's time. A claim that is given back does not count, nor
one that an agent reports as lost because the agent was slow."""

MOST_BYTES: Final = 16_000_000
"""One page of :meth:`Requests.results` ends with the result that passes this many bytes, to limit memory."""

PIECE: Final = 256
"""The most requests that one transaction ends, or deletes: interrupted work continues from there, and no statement is
silent long enough for its database to be considered away."""

_POISON: Final = b"the engine died while it served this request and nothing else"
_GIVEN_UP: Final = b"no engine finished this request, however often it was tried"
_SERVER_ERROR: Final = 500
NO_ROOM: Final = 507
"""Status of a request that was not served, since its tenant may keep no more bytes."""


class Renewed(NamedTuple):
    """The claims that an agent still holds.

    Args:
        cancelled: Ids of requests that it need not continue.
    """

    claims: frozenset[int]
    cancelled: frozenset[str]


class ResultRow(NamedTuple):
    """An ended request of a batch, as its line in a file of results.

    Args:
        place: Position of the row; pass it on to get the rows after it.
    """

    place: int
    id: str
    custom_id: str | None
    line: int | None
    state: RequestState
    status: int | None
    body: bytes | None


class RecentLine(NamedTuple):
    """A request that was accepted lately, whatever has become of it.

    Args:
        age_s: Seconds since it was accepted.
        due_after_s: Seconds from then to its deadline; ``None`` for none.
    """

    age_s: float
    model: str
    slo_class: str
    prompt_tokens: int
    output_tokens: float
    due_after_s: float | None


class Requests:
    """Durable requests of one store. Every method is one transaction; many threads may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def accept(self, requests: Sequence[DurableRequest], batch: str | None = None, lines: int = 0) -> int:
        """Keep requests durably on disk, and return how many were new, judged by their ids.

        Args:
            requests: The requests to keep.
            batch: Batch that they belong to: nothing is kept unless it is being validated now.
            lines: Number of requests that this batch has in all, which is recorded.
        """
        with self._database.transaction() as session:
            if batch is not None and not session.change(sql.ACCEPTING, batch=batch, lines=lines):
                return 0
            new = session.given(sql.ACCEPT, [_columns(r) for r in requests])
            bodies = {r.id: r for r in reversed(requests)}  # the first request with an id is kept
            kept = [bodies[id] for (id,) in new]
            session.given(sql.BODY, [{"id": r.id, "body": r.body, "route": r.route} for r in kept])
        return len(kept)

    def claim(self, agent: str, group: int, most: int, lease_s: float) -> Claim | None:
        """Take up to ``most`` queued requests of a group for ``agent`` in order of arrival, or return ``None``.

        By the store's clock, the claim is over after ``lease_s`` seconds unless it is renewed.
        """
        with self._database.transaction() as session:
            claim = _new_claim(session, agent, lease_s, alone=False)
            session.change(sql.CLAIM, claim=claim, grp=group, most=most)
            return _claimed(session, claim, alone=False)

    def claim_suspects(self, agent: str, model: str, lease_s: float) -> Claim | None:
        """Take half of the requests that were in flight when an engine with this model died, or return ``None``.

        Nothing else may run on the engine until they are finished or it has died too.
        """
        with self._database.transaction() as session:
            first = session.rows(sql.FIRST_SUSPECT, model=model)
            if not first:
                return None
            claim = _new_claim(session, agent, lease_s, alone=True)
            suspects = int(first[0][0])
            session.change(sql.CLAIM_SUSPECTS, claim=claim, model=model, suspects=suspects, most=max(suspects // 2, 1))
            return _claimed(session, claim, alone=True)

    def renew(self, agent: str, lease_s: float) -> Renewed:
        """Renew all claims of an agent that have not lapsed. A claim that is not returned belongs to others by now."""
        with self._database.transaction() as session:
            session.change(sql.DROP_EMPTY_CLAIMS, agent=agent)
            held = session.rows(sql.RENEW, agent=agent, lease_s=lease_s)
            cancelled = session.rows(sql.CANCELLED, agent=agent)
        return Renewed(frozenset(int(claim) for (claim,) in held), frozenset(one for (one,) in cancelled))

    def finish(self, results: Sequence[Result]) -> list[bool]:
        """Keep results, and return for each whether it counts: it does not if another attempt has begun or ended.

        What the requests used is added to their tenants' use in the same transaction, so that it is counted once.
        """
        first = {(r.id, r.attempt): r for r in reversed(results)}  # the first result of an attempt counts
        changes = [
            {"id": r.id, "attempt": r.attempt, "state": r.state.value, "size": len(r.body)} for r in first.values()
        ]
        with self._database.transaction() as session:
            ended = [first[id, attempt] for id, attempt in session.given(sql.FINISH, changes)]
            session.given(sql.RESULT, [{"id": r.id, "status": r.status, "body": r.body} for r in ended])
            _forget_bodies(session, (r.id for r in ended))
            _count_use(session, ended)
        counted = {id(r) for r in ended}
        return [id(r) in counted for r in results]

    def give_back(self, claim: int, progress: Mapping[str, bytes], unsent: Iterable[str] = ()) -> int:
        """Return the unfinished requests of a claim to their old places in the queue, and return their number.

        Args:
            claim: The claim that is given back.
            progress: Partial work by request id, from which the next attempt may continue.
            unsent: Ids of requests that were never sent to an engine: the claim does not count as an attempt.
        """
        with self._database.transaction() as session:
            back = [one for (one,) in session.rows("SELECT id FROM request WHERE claim = :claim", claim=claim)]
            kept = [{"id": one, "progress": progress[one]} for one in back if one in progress]
            session.given(sql.PROGRESS, kept)
            session.given(sql.UNCOUNT, [{"id": one, "claim": claim} for one in unsent])
            session.change(sql.REQUEUE, claim=claim)
            session.change("DELETE FROM claim WHERE id = :claim", claim=claim)
        return len(back)

    def give_back_some(self, claim: int, progress: Mapping[str, bytes | None], unsent: Iterable[str] = ()) -> int:
        """Return some requests of a claim to their old places in the queue, and return their number.

        Args:
            claim: Claim that keeps its other requests.
            progress: The requests by id, each with partial work from which the next attempt may continue, or ``None``
                to leave what is kept of earlier attempts.
            unsent: Ids of requests that were never sent to an engine: the claim does not count as an attempt.
        """
        with self._database.transaction() as session:
            session.given(sql.UNCOUNT, [{"id": one, "claim": claim} for one in unsent])
            back = session.given(sql.REQUEUE_ONE, [{"id": one, "claim": claim} for one in progress])
            kept = [{"id": one, "progress": work} for (one,) in back if (work := progress[one]) is not None]
            session.given(sql.PROGRESS, kept)
        return len(back)

    def engine_died(self, claims: Sequence[int]) -> list[str]:
        """Mark the requests of these claims, all that a dead engine served, as suspects; return failed ids."""
        with self._database.transaction() as session:
            found = [row for claim in claims for row in session.rows(sql.IN_FLIGHT, claim=claim)]
            alone = len(found) == 1 and bool(found[0][1])
            failed = [str(found[0][0])] if alone else []
            _fail(session, failed, _POISON)
            for claim in claims:
                session.change(sql.SUSPECT, claim=claim, suspects=len(found))
            _requeue(session, claims)
            session.given(sql.DROP_CLAIMS, [{"id": claim} for claim in claims])
        return failed

    def take_back(self) -> int:
        """Put the requests of lapsed claims back into the queue, and return how many claims had lapsed."""
        with self._database.transaction() as session:
            lapsed = session.rows(sql.LAPSED, longest_s=LONGEST_S)
            _requeue(session, [claim for (claim,) in lapsed])
        return len(lapsed)

    def take_from(self, agent: str) -> int:
        """Put back, as :meth:`take_back` does, all claims of an agent known to have ended; return their number."""
        with self._database.transaction() as session:
            held = session.rows("DELETE FROM claim WHERE agent = :agent RETURNING id", agent=agent)
            _requeue(session, [claim for (claim,) in held])
        return len(held)

    def excuse(self, ids: Iterable[str]) -> None:
        """Clear these requests of blame: their claims lapsed and were taken back, though the holder is alive."""
        with self._database.transaction() as session:
            session.given(sql.EXCUSE, [{"id": one} for one in ids])

    def expire(self) -> list[str]:
        """End queued requests past their deadline, and return their ids."""
        return self._end_queued(sql.DUE, RequestState.EXPIRED)

    def cancel(self, batch: str) -> tuple[int, int]:
        """Cancel a batch's requests: queued ones now, ones in flight when their agents next renew.

        Return how many are cancelled now, and how many are in flight.
        """
        ended = self._end_queued("batch = :batch", RequestState.CANCELLED, batch=batch)
        with self._database.transaction() as session:
            return len(ended), session.change(sql.CANCEL_CLAIMED, batch=batch)

    def sums(self) -> list[QueuedSums]:
        """Return sums over the queued requests of each group, model and class. It reads all of them, slowly."""
        with self._database.reading() as session:
            return [QueuedSums(*row) for row in session.rows(sql.SUMS)]

    def recent(self, within_s: float, most: int) -> list[RecentLine]:
        """Return the requests that were accepted within the last seconds, at most the newest ``most``."""
        with self._database.reading() as session:
            rows = session.rows(sql.RECENT, most=most)
        return [line for row in rows if (line := RecentLine(*row)).age_s <= within_s]

    def counts(self, batch: str) -> dict[RequestState, int]:
        """Return how many requests of a batch are in each state."""
        with self._database.reading() as session:
            found = session.rows("SELECT state, count(*) FROM request WHERE batch = :batch GROUP BY state", batch=batch)
        return {RequestState(state): int(count) for state, count in found}

    def has_open(self, batch: str) -> bool:
        """Return whether any request of a batch waits or runs."""
        with self._database.reading() as session:
            return bool(session.rows(sql.ANY_OPEN, batch=batch))

    def idle_batches(self) -> frozenset[str]:
        """Return the batches in progress of which no request waits or runs: one statement, however many there are."""
        with self._database.reading() as session:
            return frozenset(batch for (batch,) in session.rows(sql.IDLE_BATCHES))

    def result_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's results that are in no file yet."""
        with self._database.reading() as session:
            return int(session.rows(sql.RESULT_BYTES, tenant=tenant)[0][0])

    def refuse_queued(self, tenant: str, why: bytes) -> int:
        """Fail the queued requests of a tenant's batches, for lack of room for results; return how many they were."""
        return len(self._end_queued(sql.OF_TENANT, RequestState.FAILED, (NO_ROOM, why), tenant=tenant))

    def _end_queued(
        self, which: str, state: RequestState, result: tuple[int, bytes] | None = None, **params: Any
    ) -> list[str]:
        """End queued requests, :data:`PIECE` of them in a transaction, and return their ids.

        Args:
            which: Condition in SQL that selects them, with the parameters ``params``.
            state: The final state that they get.
            result: Result of each request as HTTP status and body, if it has one.
            **params: Values of the parameters of ``which``.
        """
        ended: list[str] = []
        values = {"state": state.value, "size": 0 if result is None else len(result[1]), "most": PIECE, **params}
        while True:
            with self._database.transaction() as session:
                piece = [one for (one,) in session.rows(sql.end_queued(which), **values)]
                if result is not None:
                    session.given(sql.RESULT, [{"id": one, "status": result[0], "body": result[1]} for one in piece])
                _forget_bodies(session, piece)
            ended += piece
            if len(piece) < PIECE:
                return ended

    def results(self, batch: str, after: int = 0, most: int = 256, most_bytes: int = MOST_BYTES) -> list[ResultRow]:
        """Return the next ended requests of a batch, in the order of its file.

        Args:
            batch: Id of the batch.
            after: Place of the last row of the page before, 0 for the first page.
            most: The most rows.
            most_bytes: The page ends with the row that takes the bytes of its results past this.
        """
        with self._database.reading() as session:
            found = session.rows(sql.RESULTS, batch=batch, after=after, most=most, most_bytes=most_bytes)
        return [ResultRow._make((*row[:4], RequestState(row[4]), *row[5:])) for row in found]

    def forget_results(self, batch: str) -> None:
        """Delete the responses of a batch's requests, once its files hold them; the final states are kept."""
        self._delete(batch, ("request_result",))
        with self._database.transaction() as session:
            session.change("UPDATE batch SET has_results = 0 WHERE id = :batch", batch=batch)

    def forget_ended(self) -> int:
        """Call :meth:`forget_results` for all ended batches of which a crash left results; return their number."""
        with self._database.reading() as session:
            found = session.rows(sql.ENDED_WITH_RESULTS)
        for (batch,) in found:
            self.forget_results(batch)
        return len(found)

    def forget(self, batch: str) -> int:
        """Delete a batch's requests, which have ended, with all that belongs to them; return how many they were."""
        return self._delete(batch, ("request_body", "request_progress", "request_result", "request"))

    def _delete(self, batch: str, tables: Sequence[str]) -> int:
        """Delete the rows of a batch's ended requests in ``tables``, :data:`PIECE` of them in a transaction.

        Return the number of rows deleted from the last table.
        """
        after, deleted = 0, 0
        while True:
            with self._database.transaction() as session:
                (last,) = session.rows(sql.LAST_OF_PIECE, batch=batch, after=after, most=PIECE)[0]
                if last is None:
                    return deleted
                for table in tables:
                    gone = session.change(
                        f"DELETE FROM {table} WHERE {sql.IN_PIECE}", batch=batch, after=after, last=last
                    )
            after, deleted = last, deleted + gone


def _columns(request: DurableRequest) -> dict[str, Any]:
    """Return the request as a row without its body."""
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
    return int(session.rows(sql.NEW_CLAIM, agent=agent, lease_s=lease_s, alone=int(alone))[0][0])


def _claimed(session: Session, claim: int, *, alone: bool) -> Claim | None:
    found = session.rows(sql.CLAIMED, claim=claim)
    if not found:
        session.change("DELETE FROM claim WHERE id = :claim", claim=claim)
        return None
    return Claim(claim, tuple(Claimed(*row) for row in found), alone)


def _count_use(session: Session, ended: Iterable[Result]) -> None:
    used: dict[str, Counter[str]] = {}
    for use in (result.used for result in ended if result.used is not None):
        used.setdefault(use.tenant, Counter()).update(
            batch_lines=1,
            batch_prompt_tokens=use.prompt_tokens,
            batch_output_tokens=use.output_tokens,
            batch_engine_ms=use.engine_ms,
        )
    if used:
        add_use(session, used)


def _requeue(session: Session, claims: Iterable[int]) -> None:
    """Put unfinished requests of the claims back into the queue, or fail ones that were lost too often."""
    for claim in claims:
        session.change(sql.LOST, claim=claim)
        _fail(session, [one for (one,) in session.rows(sql.WORN_OUT, claim=claim, most_lost=MOST_LOST)], _GIVEN_UP)
        session.change(sql.REQUEUE, claim=claim)


def _fail(session: Session, ids: Sequence[str], reason: bytes) -> None:
    session.given(sql.FAIL, [{"id": one, "size": len(reason)} for one in ids])
    session.given(sql.RESULT, [{"id": one, "status": _SERVER_ERROR, "body": reason} for one in ids])
    _forget_bodies(session, ids)


def _forget_bodies(session: Session, ids: Iterable[str]) -> None:
    """Delete the bodies and progress of ended requests, which are never sent again."""
    ended = [{"id": one} for one in ids]
    session.given(sql.NO_BODY, ended)
    session.given(sql.NO_PROGRESS, ended)
