"""Batches and files of OpenAI's Batch API, without the files' bytes. Every read is on behalf of one tenant."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sloserve.fleet.store import batches_sql as sql
from sloserve.fleet.store import files_sql
from sloserve.fleet.store.database import Database
from sloserve.fleet.store.files_sql import LEAST_BYTES
from sloserve.fleet.store.records import Batch, BatchState, File, RequestState
from sloserve.fleet.store.request_sql import OPEN_OF


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files that a batch leaves; an id is ``None`` for a file that would be empty.

    Args:
        kept_s: Seconds for which the files are kept; ``None`` keeps them for good.
    """

    output: File | None = None
    error: File | None = None
    kept_s: float | None = None


class _NoRoom(Exception):
    """Rolls a transaction back, as a tenant's quota has too little room."""


class Batches:
    """Batches and files of one store. Every method is one transaction; many threads may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # These methods handle files.

    def add_file(self, file: File, expires_after_s: float | None = None) -> File:
        """Keep a file's metadata once, however often this is called; return it with its times by the store's clock."""
        with self._database.transaction() as session:
            files_sql.add_file(session, file, expires_after_s)
            return _file(session.rows(f"{files_sql.FILES} WHERE id = :id", id=file.id)[0])

    def reserve_file(self, file: File, most: int, within_s: float) -> bool:
        """Reserve room for a file before its bytes are read; return ``False`` if its tenant's quota has too little.

        The file is in no list before :meth:`keep_file`; :meth:`delete_file` gives its bytes back.

        Args:
            file: The file, with the fewest bytes that it can have, and the member that receives it as its name.
            most: Quota of the tenant in bytes, of files and results.
            within_s: Seconds after which the reservation expires.
        """
        with self._database.transaction() as session:
            if not files_sql.take_bytes(session, file.tenant, max(file.bytes, LEAST_BYTES), most):
                return False
            session.change(
                files_sql.ADD_FILE, **files_sql.described(file), purpose=files_sql.RESERVED, expires_after_s=within_s
            )
        return True

    def resize_file(self, id: str, size: int, most: int) -> bool:
        """Change the bytes of a reservation to ``size``; return ``False`` if it is over, or the quota has too little.

        Args:
            id: The reserved file.
            size: Number of its bytes.
            most: Quota of the tenant in bytes, of files and results.
        """
        try:
            with self._database.transaction() as session:
                found = session.rows(f"{files_sql.FILES} WHERE id = :id", id=id)
                if not found or not session.change(files_sql.RESIZE, id=id, bytes=size, before=found[0][4]):
                    return False
                tenant, more = _file(found[0]).tenant, max(size, LEAST_BYTES) - max(int(found[0][4]), LEAST_BYTES)
                if not files_sql.take_bytes(session, tenant, more, most):
                    raise _NoRoom  # the size goes back, too
        except _NoRoom:
            return False
        return True

    def keep_file(self, file: File, expires_after_s: float | None = None) -> File | None:
        """Make a reserved file one that its tenant sees; return it with its times, or ``None`` if it is no more."""
        values = {"id": file.id, "name": file.name, "purpose": file.purpose, "expires_after_s": expires_after_s}
        with self._database.transaction() as session:
            if not session.change(files_sql.KEEP, **values):
                return None
            return _file(session.rows(f"{files_sql.FILES} WHERE id = :id", id=file.id)[0])

    def reserved_files(self) -> list[File]:
        """Return the reservations of all tenants, each with the member that made it as its name."""
        with self._database.reading() as session:
            return [_file(row) for row in session.rows(f"{files_sql.FILES} WHERE NOT {files_sql.KEPT} ORDER BY seq")]

    def file(self, tenant: str, id: str) -> File | None:
        """Return the file with this id, or ``None`` if there is none or it belongs to another tenant."""
        with self._database.reading() as session:
            found = session.rows(
                f"{files_sql.FILES} WHERE id = :id AND tenant = :tenant AND {files_sql.KEPT}", id=id, tenant=tenant
            )
        return _file(found[0]) if found else None

    def files(
        self,
        tenant: str,
        after: str | None = None,
        most: int = 100,
        purpose: str | None = None,
        oldest_first: bool = False,
    ) -> list[File]:
        """Return a page of a tenant's files, newest first.

        Args:
            tenant: The tenant that owns them.
            after: Id that ended the last page, or ``None`` for the first page.
            most: The most files.
            purpose: Purpose that they have, or ``None`` for any.
            oldest_first: Whether the oldest ones come first.
        """
        which = files_sql.KEPT if purpose is None else f"{files_sql.KEPT} AND purpose = :purpose"
        more = {} if purpose is None else {"purpose": purpose}
        select = _page(files_sql.FILES, "file", after, which, oldest_first)
        with self._database.reading() as session:
            return [_file(row) for row in session.rows(select, **_seen(tenant, after, most), **more)]

    def delete_file(self, tenant: str, id: str) -> bool:
        """Delete a file's row and return whether the tenant had such a file. The caller deletes its bytes."""
        with self._database.transaction() as session:
            found = session.rows(files_sql.DELETE_FILE, id=id, tenant=tenant)
            for (size,) in found:
                files_sql.count_bytes(session, tenant, -max(int(size), LEAST_BYTES))
        return bool(found)

    def expired_files(self) -> list[File]:
        """Return the files past their expiry: the caller deletes their bytes, then calls :meth:`delete_file`."""
        with self._database.reading() as session:
            return [
                _file(row) for row in session.rows(f"{files_sql.FILES} WHERE expires_s <= store_now() ORDER BY seq")
            ]

    def is_file(self, id: str) -> bool:
        """Return whether any tenant has a file with this id."""
        with self._database.reading() as session:
            return bool(session.rows("SELECT 1 FROM file WHERE id = :id", id=id))

    def bytes_of(self, tenant: str) -> int:
        """Return the bytes of all files of a tenant; each small file counts as :data:`LEAST_BYTES`."""
        with self._database.reading() as session:
            found = session.rows("SELECT bytes FROM tenant_files WHERE tenant = :tenant", tenant=tenant)
        return int(found[0][0]) if found else 0

    def recount_bytes(self) -> None:
        """Correct the sums of :meth:`bytes_of` after an upgrade.

        During an upgrade a gateway of schema version 4 adds and deletes files without counting them. Each tenant's
        count is locked before its files are summed: a process that adds or deletes a file meanwhile counts it
        afterwards.
        """
        with self._database.reading() as session:
            tenants = session.rows("SELECT tenant FROM file UNION SELECT tenant FROM tenant_files ORDER BY 1")
        for (tenant,) in tenants:
            with self._database.transaction() as session:
                files_sql.count_bytes(session, tenant, 0)
                session.change(files_sql.RECOUNT_BYTES, tenant=tenant, least=LEAST_BYTES)

    # These methods handle batches.

    def add(self, batch: Batch, window_s: float) -> Batch:
        """Keep a new batch, which expires in ``window_s`` seconds; return it with its times by the store's clock.

        A caller that gets no confirmation, since the store is away, asks its client to send the batch again. So the
        batch is added as UNCONFIRMED, and it runs once a caller that knows about it has moved it to VALIDATING.
        """
        with self._database.transaction() as session:
            now_s = float(session.rows("SELECT store_now()")[0][0])
            session.change(
                sql.ADD_BATCH,
                id=batch.id,
                tenant=batch.tenant,
                endpoint=batch.endpoint,
                time_window=batch.window,
                input_file=batch.input_file,
                state=batch.state.value,
                stamps=json.dumps({BatchState.VALIDATING.value: now_s, **_kept(batch)}),
                due_s=now_s + window_s,
                metadata=None if batch.metadata is None else json.dumps(batch.metadata),
            )
            return _batch(session.rows(f"{sql.BATCHES} WHERE id = :id", id=batch.id)[0])

    def get(self, tenant: str, id: str) -> Batch | None:
        """Return the batch with this id, or ``None`` if there is none or it belongs to another tenant."""
        with self._database.reading() as session:
            found = session.rows(f"{sql.COUNTED} WHERE id = :id AND tenant = :tenant", id=id, tenant=tenant)
        return _batch(found[0]) if found else None

    def list(self, tenant: str, after: str | None = None, most: int = 20) -> list[Batch]:
        """Return at most ``most`` batches of a tenant, newest first, after the id ``after`` that ended a page."""
        with self._database.reading() as session:
            return [
                _batch(row) for row in session.rows(_page(sql.COUNTED, "batch", after), **_seen(tenant, after, most))
            ]

    def unfinished(self) -> Sequence[Batch]:
        """Return the batches of all tenants that need further work, oldest first, without counts of their requests."""
        with self._database.reading() as session:
            return [_batch(row) for row in session.rows(f"{sql.BATCHES} WHERE state IN ({sql.OPEN}) ORDER BY seq")]

    def unconfirmed(self) -> Sequence[Batch]:
        """Return the batches of all tenants that may not run yet, or may never run."""
        with self._database.reading() as session:
            return [_batch(row) for row in session.rows(f"{sql.BATCHES} WHERE state = 'unconfirmed' ORDER BY seq")]

    def result_bytes(self, id: str) -> int:
        """Return the bytes of a batch's results that are in no file yet."""
        with self._database.reading() as session:
            query = "SELECT coalesce(sum(result_bytes), 0) FROM request WHERE batch = :id"
            return int(session.rows(query, id=id)[0][0])

    def ended_before(self, age_s: float) -> Sequence[Batch]:
        """Return ended batches of all tenants with a deadline more than ``age_s`` seconds ago, oldest first."""
        query = f"{sql.BATCHES} WHERE state IN ({sql.ENDED}) AND due_s < store_now() - :age_s ORDER BY seq LIMIT :most"
        with self._database.reading() as session:
            return [_batch(row) for row in session.rows(query, age_s=age_s, most=_MOST_ENDED)]

    def count(self, tenant: str) -> tuple[int, int]:
        """Return how many batches of a tenant have not ended, and how many it has in all."""
        query = f"SELECT coalesce(sum(CASE WHEN state IN ({sql.OPEN}) THEN 1 ELSE 0 END), 0), count(*) FROM batch"
        with self._database.reading() as session:
            unfinished, kept = session.rows(f"{query} WHERE tenant = :tenant", tenant=tenant)[0]
        return int(unfinished), int(kept)

    def confirm(self, batch: Batch, most: int) -> BatchState | None:
        """Move an unconfirmed batch to VALIDATING unless its tenant has ``most`` batches that have not ended.

        Return its state, UNCONFIRMED if it may not run, or ``None`` if there is no such batch. Batches of one tenant
        are confirmed one after another, in whichever processes.
        """
        with self._database.transaction() as session:
            files_sql.count_bytes(session, batch.tenant, 0)  # locks the tenant's row
            session.change(sql.CONFIRM, id=batch.id, tenant=batch.tenant, most=most)
            found = session.rows("SELECT state FROM batch WHERE id = :id", id=batch.id)
        return BatchState(found[0][0]) if found else None

    def reserve_lines(
        self, batch: Batch, lines: int, tokens: float, most_lines: int, most_tokens: float
    ) -> tuple[int, float] | None:
        """Record the lines and tokens of a batch that is validated unless its tenant would then have more than it may.

        Return ``None`` if they are recorded, else how many lines and tokens of the tenant's other batches wait or run,
        or are recorded and not accepted yet.
        """
        others = {"tenant": batch.tenant, "without": batch.id}
        with self._database.transaction() as session:
            files_sql.count_bytes(session, batch.tenant, 0)  # locks the tenant's row
            # Read first: a line that is accepted meanwhile is counted twice, and none is missed.
            accepting = session.rows(sql.ACCEPTING, **others)
            open_lines, open_tokens = session.rows(OPEN_OF, **others)[0]
            for all_lines, left, stamps in accepting:
                open_lines += max(left, 0)
                open_tokens += json.loads(stamps).get(_TOKENS, 0.0) * max(left, 0) / all_lines
            if open_lines + lines > most_lines or open_tokens + tokens > most_tokens:
                return int(open_lines), float(open_tokens)
            found = session.rows("SELECT stamps FROM batch WHERE id = :id", id=batch.id)
            for (stamps,) in found:
                noted = json.dumps({**json.loads(stamps), _TOKENS: tokens})
                session.change(sql.RECORD_LINES, id=batch.id, lines=lines, stamps=noted)
        return None

    def withdraw(self, id: str) -> None:
        """Delete a batch that is unconfirmed."""
        with self._database.transaction() as session:
            session.change("DELETE FROM batch WHERE id = :id AND state = 'unconfirmed'", id=id)

    def move(
        self,
        id: str,
        before: BatchState,
        after: BatchState,
        *,
        lines: int | None = None,
        ended: Mapping[RequestState, int] | None = None,
        errors: Sequence[Mapping[str, Any]] | None = None,
        results: ResultFiles = ResultFiles(),
    ) -> bool:
        """Move a batch to its next state and note the time; return ``False`` if it was no longer in state ``before``.

        What is not given stays as it is.

        Args:
            id: The batch that moves.
            before: The state that it must be in.
            after: The state that it enters.
            lines: Number of requests in the batch.
            ended: Number of its requests in each final state.
            errors: Errors that validation found.
            results: Files of results that exist from this state on.
        """
        failed = (RequestState.FAILED, RequestState.EXPIRED, RequestState.CANCELLED)
        with self._database.transaction() as session:
            found = session.rows("SELECT stamps, store_now() FROM batch WHERE id = :id", id=id)
            if not found:
                return False
            # An earlier stamp stays: a batch was created when it was added, not when it was confirmed.
            stamps = {after.value: float(found[0][1]), **json.loads(found[0][0])}
            moved = session.change(
                sql.MOVE,
                id=id,
                before=before.value,
                after=after.value,
                stamps=json.dumps(stamps),
                lines=lines,
                completed=None if ended is None else ended.get(RequestState.DONE, 0),
                failed=None if ended is None else sum(ended.get(state, 0) for state in failed),
                output_file=None if results.output is None else results.output.id,
                error_file=None if results.error is None else results.error.id,
                errors=None if errors is None else json.dumps(list(errors)),
            )
            for file in (results.output, results.error):
                if moved and file is not None:
                    files_sql.add_file(session, file, results.kept_s)
        return moved > 0

    def forget(self, tenant: str, id: str) -> bool:
        """Delete a batch that has ended; :meth:`Requests.forget` deletes its requests."""
        query = f"DELETE FROM batch WHERE id = :id AND tenant = :tenant AND state IN ({sql.ENDED})"
        with self._database.transaction() as session:
            return session.change(query, id=id, tenant=tenant) > 0


_MOST_ENDED: Final = 100
_OUTPUTS_KEPT, _TOKENS = "outputs_kept_s", "tokens"
"""Keys in the column of stamps: :attr:`Batch.outputs_kept_s`, and the tokens of a batch that is being accepted."""


def _page(select: str, table: str, after: str | None, which: str = "1 = 1", oldest_first: bool = False) -> str:
    order, later = ("ASC", ">") if oldest_first else ("DESC", "<")
    last = f"(SELECT seq FROM {table} WHERE id = :after AND tenant = :tenant)"
    rest = "" if after is None else f" AND seq {later} {last}"
    return f"{select} WHERE tenant = :tenant AND {which}{rest} ORDER BY seq {order} LIMIT :most"


def _seen(tenant: str, after: str | None, most: int) -> dict[str, Any]:
    return {"tenant": tenant, "most": most} | ({} if after is None else {"after": after})


def _kept(batch: Batch) -> dict[str, float]:
    """Return what stands beside the times of a batch's states; gateways of older versions keep it as it is."""
    return {} if batch.outputs_kept_s is None else {_OUTPUTS_KEPT: batch.outputs_kept_s}


def _file(row: tuple[Any, ...]) -> File:
    return File(*row)


def _batch(row: tuple[Any, ...]) -> Batch:
    id_, tenant, endpoint, window, input_file, state, stamps, due_s, lines, completed, failed, *files_and_notes = row
    output, error, metadata, errors = files_and_notes
    times = json.loads(stamps)
    outputs_kept_s, _ = times.pop(_OUTPUTS_KEPT, None), times.pop(_TOKENS, None)
    return Batch(
        id=id_,
        tenant=tenant,
        endpoint=endpoint,
        window=window,
        input_file=input_file,
        state=BatchState(state),
        stamps=times,
        due_s=float(due_s),
        lines=int(lines),
        completed=int(completed),
        failed=int(failed),
        output_file=output,
        error_file=error,
        metadata=None if metadata is None else json.loads(metadata),
        errors=tuple(json.loads(errors)),
        outputs_kept_s=outputs_kept_s,
    )
