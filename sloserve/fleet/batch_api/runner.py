"""Brings batches from an uploaded file to files of results, in steps that may be broken off anywhere and done again.

Each step follows from what the store holds. Ids of requests and of files of results follow from the batch's id, so a
step that a crash broke off does nothing twice when it is done again, by this process or another.
"""

import json
import logging
import pickle
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, BinaryIO, Final

import msgspec

from sloserve.core.errors import StoreError
from sloserve.core.json_lines import as_line
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.files import Files
from sloserve.fleet.batch_api.folder import reporting_full
from sloserve.fleet.batch_api.lines import BatchLine, Limits, LineError, read_lines
from sloserve.fleet.batch_api.turns import Slices, Turns
from sloserve.fleet.store.batches import ResultFiles
from sloserve.fleet.store.records import ENDED_STATES, Batch, BatchState, DurableRequest, File, RequestState
from sloserve.fleet.store.requests import NO_ROOM, Row
from sloserve.fleet.store.store import Store
from sloserve.fleet.tenant_limits import Quota

logger = logging.getLogger(__name__)

MOST_ERRORS: Final = 100
"""The most errors that a failed batch lists."""
_SLICE_LINES, _SLICE_BYTES = 1_000, 4_000_000
"""The most lines and bytes that are checked, or accepted in one commit, before the turn of another tenant's batch."""
LINES_OF_GROUP: Final = 256
"""The most lines of a file in one request group: some minutes of an engine's work."""
_SURELY_OLD_S: Final = 86_400.0
"""Seconds after which a file without a row is surely old, whatever the clocks of store and folder say."""
_UNCONFIRMED_S: Final = 3_600.0
"""Seconds after which an unconfirmed batch is cancelled: its client has been notified that it is not kept."""
_WHY: Final = {
    RequestState.EXPIRED: ("batch_expired", "the completion window was over before this request was served"),
    RequestState.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was served"),
}


def group_of(batch: Batch, line: BatchLine) -> int:
    """Return the group of a line: one per model and part of the file, so that a planner can spread a batch.

    The number is always the same, and below 2**53, so that every JSON reader keeps it whole.
    """
    return ids.number_of(batch.id, line.model, str(line.number // LINES_OF_GROUP))


@dataclass(frozen=True)
class BatchRunner:
    """Runs the batches of a store.

    Args:
        store: Database in which everything but bytes of files is kept.
        folder: Storage for bytes of files.
        models_of: Returns the models that a tenant may use now.
        group_of: Returns the request group of a batch's new request.
        class_of: Returns the class of a tenant's requests.
        limits: Limits of one file.
        quota_of: Returns the quota of a tenant.
        results_kept_s: Seconds for which an ended batch and its files of results remain available.
    """

    store: Store
    folder: Files
    models_of: Callable[[str], Collection[str]]
    group_of: Callable[[Batch, BatchLine], int] = group_of
    class_of: Callable[[str], str] = lambda tenant: "batch"
    limits: Limits = field(default_factory=Limits)
    quota_of: Callable[[str], Quota] = lambda tenant: Quota()
    results_kept_s: float = 30 * 86_400.0
    _left_to_others: set[str] = field(default_factory=set, init=False)
    _to_confirm: deque[str] = field(default_factory=deque, init=False)
    _turns: Turns = field(default_factory=Turns, init=False, repr=False)

    def confirm_later(self, id: str) -> None:
        """Have the next step run this batch, since its client knows that it is kept. Any thread may call this."""
        self._to_confirm.append(id)

    def step(self) -> bool:
        """Advance the unfinished batches, each tenant's by a slice of work; return whether any moved.

        A batch that cannot advance because of an internal error is logged and left for the next step.
        """
        self.store.requests.take_back()  # claims of agents that are gone: no other process may do it
        self.store.requests.expire()
        self._confirm()
        moved, unfinished = False, self.store.batches.unfinished()
        self._turns.begin_round(unfinished)
        for batch in unfinished:
            try:
                moved |= self._step(batch)
            except StoreError:
                raise  # it would fail for the other batches, too
            except Exception:  # one batch must not hold up all
                logger.exception("batch %s is stuck, and is tried again", batch.id)
        return moved

    def _confirm(self) -> None:
        while self._to_confirm:
            self.store.batches.move(self._to_confirm[0], BatchState.UNCONFIRMED, BatchState.VALIDATING)
            self._to_confirm.popleft()

    def _step(self, batch: Batch) -> bool:
        if batch.state == BatchState.VALIDATING:
            return self._turns.slice(batch, self._validate)
        if batch.state == BatchState.FINALIZING:
            return self._turns.slice(batch, self._finish)
        if batch.state == BatchState.CANCELLING:
            self.store.requests.cancel(batch.id)
        if self.store.requests.has_open(batch.id):
            return False
        if batch.state == BatchState.CANCELLING:
            return self._turns.slice(batch, self._finish)
        return self._move(batch, BatchState.FINALIZING)

    def hold_to_quotas(self) -> None:
        """Fail the waiting lines of tenants with more bytes of files and results than their quota."""
        unfinished = self.store.batches.unfinished()
        for tenant in sorted({batch.tenant for batch in unfinished if batch.state == BatchState.IN_PROGRESS}):
            used, most = self.store.bytes_of(tenant), self.quota_of(tenant).bytes
            if used > most:
                text = (
                    f"not served: your files and results take {used} bytes, and {most} may be kept; delete files of "
                    "yours, and send this request in another batch"
                )
                if refused := self.store.requests.refuse_queued(tenant, text.encode()):
                    text = "tenant %s exceeded its storage quota: failing %d batch lines (%d of %d bytes used)"
                    logger.warning(text, tenant, refused, used, most)

    def tidy(self) -> None:
        """Delete what has had its time, and count the bytes of the files that remain.

        This deletes files past their expiry, batches that ended long ago, results of ended batches, which remain in
        their files alone, and bytes that a crash left without a file's row.
        """
        self._confirm()
        now_s = self.store.now_s()
        for batch in self.store.batches.unconfirmed():
            if batch.stamps[BatchState.VALIDATING] < now_s - _UNCONFIRMED_S:
                self.store.batches.move(batch.id, BatchState.UNCONFIRMED, BatchState.CANCELLED)
        self.store.requests.forget_ended()
        for file in self.store.batches.expired_files():
            self.store.batches.delete_file(file.tenant, file.id)
            self.folder.delete(file.id)
        for batch in self.store.batches.ended_before(self.results_kept_s):
            self.store.requests.forget(batch.id)
            self.store.batches.forget(batch.tenant, batch.id)
        self.store.batches.recount_bytes()
        self.folder.keep_only(self.store.batches.is_file, now_s - _SURELY_OLD_S)

    # These methods turn the file into requests.

    def _validate(self, batch: Batch) -> Slices:
        opened = self.folder.open(batch.input_file)
        if opened is None:
            return self._without_file(batch)
        with opened as file, TemporaryFile() as checked:
            errors = yield from self._errors(batch, file, checked)
            if errors:
                return self._fail(batch, errors)
            checked.seek(0)
            lines = yield from self._accept(batch, checked)
        # If a cancel has come meanwhile, the batch stays cancelling, and the next step cancels what was just accepted.
        if not self._move(batch, BatchState.IN_PROGRESS, lines=lines):
            now = self.store.batches.get(batch.tenant, batch.id)
            if now is None or now.state in ENDED_STATES:  # by another gateway
                self.store.requests.cancel(batch.id)
        return True

    def _without_file(self, batch: Batch) -> bool:
        """Leave a batch to another gateway, which may have its file, or fail it if the file is gone or time is up."""
        known = self.store.batches.file(batch.tenant, batch.input_file) is not None
        if known and self.store.now_s() < batch.due_s:
            if batch.id not in self._left_to_others:
                self._left_to_others.add(batch.id)
                logger.warning("batch %s is left to another gateway, which may have its file", batch.id)
            return False
        text = "is in no folder of files" if known else "was deleted"
        missing = LineError(None, "file_not_found", f"the file {batch.input_file} {text}", "input_file_id")
        return self._fail(batch, [missing])

    def _errors(self, batch: Batch, file: BinaryIO, checked: IO[bytes]) -> Generator[None, None, list[LineError]]:
        """Find errors before the first request is accepted: as at OpenAI, one error keeps a whole batch from running.

        Args:
            batch: The batch.
            file: Input file of the batch.
            checked: Receives the lines without an error, which are parsed as JSON only this once.
        """
        found: list[LineError] = []
        lines, tokens = 0, 0.0
        for number, part in enumerate(self._parts(batch, file)):
            if number:
                yield
            found += [line for line in part if isinstance(line, LineError)]
            right = [line for line in part if isinstance(line, BatchLine)]
            with reporting_full("batches in validation (TMPDIR)"):
                pickle.dump(right, checked)
            lines += len(right)
            tokens += sum(line.prompt_tokens + line.output_tokens for line in right)
            if len(found) >= MOST_ERRORS:
                break
        return found[:MOST_ERRORS] or self._beyond_quota(batch, lines, tokens)

    def _parts(self, batch: Batch, file: BinaryIO) -> Iterator[list[BatchLine | LineError]]:
        """Yield the lines of the file, in parts of one slice of work."""
        part: list[BatchLine | LineError] = []
        begin = file.tell()
        for line in read_lines(file, batch.endpoint, self.models_of(batch.tenant), self.limits):
            part.append(line)
            if len(part) >= _SLICE_LINES or file.tell() - begin >= _SLICE_BYTES:
                yield part
                part, begin = [], file.tell()
        if part:
            yield part

    def _beyond_quota(self, batch: Batch, lines: int, tokens: float) -> list[LineError]:
        """Return an error if the batch exceeds what the other batches of its tenant leave of the quota."""
        quota = self.quota_of(batch.tenant)
        open_lines, open_tokens = self.store.requests.open_of(batch.tenant, without=batch.id)
        later = "send it again when batches of yours have ended"
        if open_lines + lines > quota.lines:
            text = (
                f"{open_lines} requests wait or run, {lines} are in this file, and the limit is {quota.lines}; {later}"
            )
            return [LineError(None, "request_limit_exceeded", text)]
        if open_tokens + tokens > quota.tokens:
            text = (
                f"{open_tokens:.0f} tokens wait or run, {tokens:.0f} are in this file, and the limit is {quota.tokens}"
            )
            return [LineError(None, "token_limit_exceeded", f"{text}; {later}")]
        return []

    def _accept(self, batch: Batch, checked: IO[bytes]) -> Generator[None, None, int]:
        lines = 0
        while True:
            try:
                part: list[BatchLine] = pickle.load(checked)
            except EOFError:
                return lines
            if lines:
                yield
            left_s = max(batch.due_s - self.store.now_s(), 0.0)
            self.store.requests.accept([self._request(batch, line, left_s) for line in part])
            lines += len(part)

    def _request(self, batch: Batch, line: BatchLine, left_s: float) -> DurableRequest:
        return DurableRequest(
            id=ids.request_of(batch.id, line.number),
            tenant=batch.tenant,
            model=line.model,
            slo_class=self.class_of(batch.tenant),
            group=self.group_of(batch, line),
            body=line.body,
            prompt_tokens=line.prompt_tokens,
            output_tokens=line.output_tokens,
            deadline_s=left_s,
            batch=batch.id,
            line=line.number,
            custom_id=line.custom_id,
            route=batch.endpoint,
        )

    def _fail(self, batch: Batch, errors: list[LineError]) -> bool:
        listed = [error.to_json() for error in errors]
        return self.store.batches.move(batch.id, BatchState.VALIDATING, BatchState.FAILED, errors=listed)

    # These methods turn results into files.

    def _finish(self, batch: Batch) -> Slices:
        try:
            results = yield from self._result_files(batch)
        except _EndedMeanwhile:
            return False
        counts = self.store.requests.counts(batch.id)
        if batch.state == BatchState.CANCELLING:
            after = BatchState.CANCELLED
        else:
            after = BatchState.EXPIRED if counts.get(RequestState.EXPIRED) else BatchState.COMPLETED
        moved = self.store.batches.move(batch.id, batch.state, after, ended=counts, results=results)
        if moved:
            self.store.requests.forget_results(batch.id)
        return moved

    def _result_files(self, batch: Batch) -> Generator[None, None, ResultFiles]:
        """Write a batch's files of results and of errors, in one pass over its rows.

        Raises: _EndedMeanwhile where another gateway has written them, and deleted the results.
        """
        output, error = ids.result_file_of(batch.id, "output"), ids.result_file_of(batch.id, "error")
        successes, others, place = 0, 0, 0
        with self.folder.writing(output) as to_output, self.folder.writing(error) as to_error:
            while rows := self.store.requests.results(batch.id, after=place):
                if place:
                    yield
                place = rows[-1].place
                for row in rows:
                    if row.status is None and row.state in (RequestState.DONE, RequestState.FAILED):
                        raise _EndedMeanwhile
                    if _succeeded(row):
                        successes += to_output.write(result_line(row))
                    else:
                        others += to_error.write(result_line(row))
        return ResultFiles(
            self._unless_empty(batch, "output", output, successes),
            self._unless_empty(batch, "error", error, others),
            self.results_kept_s,
        )

    def _unless_empty(self, batch: Batch, kind: str, id: str, written: int) -> File | None:
        if not written:
            self.folder.delete(id)
            return None
        return File(id, batch.tenant, f"{batch.id}_{kind}.jsonl", "batch_output", written, 0.0)

    # Both parts use these functions.

    def _move(self, batch: Batch, after: BatchState, lines: int | None = None) -> bool:
        return self.store.batches.move(batch.id, batch.state, after, lines=lines)


class _EndedMeanwhile(Exception):
    """Another gateway has brought a batch to its end."""


def _succeeded(row: Row) -> bool:
    return row.state == RequestState.DONE and row.status == 200


def result_line(row: Row) -> bytes:
    """Return a line of a file of results, as OpenAI writes it; one line to ``str.splitlines`` as well."""
    line: dict[str, object] = {"id": row.id, "custom_id": row.custom_id, "response": None, "error": None}
    if row.state in _WHY:
        code, message = _WHY[row.state]
        line["error"] = {"code": code, "message": message}
    elif row.state == RequestState.FAILED:
        code = "storage_limit_exceeded" if row.status == NO_ROOM else "request_failed"
        line["error"] = {"code": code, "message": (row.body or b"").decode(errors="replace")}
    else:
        body = row.body or b""
        response = {"status_code": row.status, "request_id": row.id}
        if b"\n" not in body and b"\r" not in body:
            try:
                # The body is copied as it stands: to parse and write 16 MB of it again would keep all else in this
                # process waiting.
                line["response"] = {**response, "body": msgspec.json.decode(body, type=msgspec.Raw)}
                return as_line(msgspec.json.encode(line))
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                pass
        line["response"] = {**response, "body": _json(body)}
    return as_line(json.dumps(line, separators=(",", ":")).encode())


def _json(body: bytes) -> object:
    """Return the response of an engine as JSON, or as text if it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
