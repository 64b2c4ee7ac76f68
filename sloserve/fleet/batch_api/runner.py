"""Brings batches from an uploaded file to files of results, in steps that may be broken off anywhere and done again.

Each step follows from what the store holds. Ids of requests and of files of results follow from the batch's id, so a
step that a crash broke off does nothing twice when it is done again, by this process or another.
"""

import logging
import pickle
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile
from typing import IO, BinaryIO, Final

from sloserve.core.errors import StoreAway, StoreError, StoreFull
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.files import Files
from sloserve.fleet.batch_api.folder import reporting_full
from sloserve.fleet.batch_api.lines import BatchLine, Limits, LineError, read_lines
from sloserve.fleet.batch_api.results import EndedMeanwhile, write_results
from sloserve.fleet.batch_api.setbacks import Setbacks
from sloserve.fleet.batch_api.turns import Slices, Turns
from sloserve.fleet.store.records import Batch, BatchState, DurableRequest, RequestState
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
GONE_S: Final = 30.0
"""Seconds without a sign of life, while others give some, after which a member counts as gone: its uploads and half
files are deleted."""
_UNCONFIRMED_S: Final = 3_600.0
"""Seconds after which an unconfirmed batch is cancelled: its client has been notified that it is not kept."""


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
        salt_of: Returns the ``cache_salt`` of a tenant's lines, given the salt of a line if it has one.
        results_kept_s: Seconds for which an ended batch and its files of results remain available.
        member: Name of this gateway among the members of the fleet.
        to_confirm: Ids of batches that :meth:`confirm_later` has noted; a runner that follows another shares its queue.
    """

    store: Store
    folder: Files
    models_of: Callable[[str], Collection[str]]
    group_of: Callable[[Batch, BatchLine], int] = group_of
    class_of: Callable[[str], str] = lambda tenant: "batch"
    limits: Limits = field(default_factory=Limits)
    quota_of: Callable[[str], Quota] = lambda tenant: Quota()
    salt_of: Callable[[str, str | None], str | None] = lambda tenant, own: own
    results_kept_s: float = 30 * 86_400.0
    member: str = ""
    to_confirm: deque[str] = field(default_factory=deque, repr=False)
    _left_to_others: set[str] = field(default_factory=set, init=False)
    _turns: Turns = field(default_factory=Turns, init=False, repr=False)
    _setbacks: Setbacks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_setbacks", Setbacks(self.store.batches.result_bytes))

    def confirm_later(self, id: str) -> None:
        """Have the next step run this batch, since its client knows that it is kept. Any thread may call this.

        A file says so to the other gateways: if this one ends before the store is back, one of them runs the batch.
        """
        self.to_confirm.append(id)
        try:
            with self.folder.writing(ids.confirmation_file_of(id)) as file:
                file.write(id.encode())
        except (StoreError, OSError) as error:
            logger.warning("batch %s is lost if this gateway ends before the store is back: %s", id, error)

    def step(self) -> bool:
        """Advance the unfinished batches, each tenant's by a slice of work; return whether any moved.

        A batch that cannot advance because of an internal error, or for lack of room on a disk, is logged and left for
        a later step.

        Raises: StoreAway where the store or the files are away.
        """
        self.store.requests.take_back()  # claims of agents that are gone: no other process may do it
        self.store.requests.expire()
        self._confirm()
        moved, unfinished = False, self.store.batches.unfinished()
        self._turns.begin_round(unfinished)
        idle = self.store.requests.idle_batches()  # read later, so that it knows all requests of these batches
        for batch in self._setbacks.in_order(unfinished):
            try:
                moved |= self._step(batch, batch.id in idle)
                self._setbacks.not_away(batch)
            except StoreAway:
                self._setbacks.away(batch)
                raise  # it would fail for the other batches, too
            except StoreFull as error:
                if self._setbacks.no_room(batch, self.store.now_s()):
                    logger.warning("batch %s waits for room: %s", batch.id, error)
            except Exception:  # one batch must not hold up all
                logger.exception("batch %s is stuck, and is tried again", batch.id)
        return moved

    def _confirm(self) -> None:
        while self.to_confirm:
            self._confirmed(self.to_confirm[0])
            self.to_confirm.popleft()

    def _confirmed(self, id: str) -> None:
        self.store.batches.move(id, BatchState.UNCONFIRMED, BatchState.VALIDATING)
        with suppress(StoreError, OSError):  # the file would be deleted as one without a row
            self.folder.delete(ids.confirmation_file_of(id))

    def _confirm_for_others(self, now_s: float) -> None:
        """Run unconfirmed batches with a client that knows about them, and cancel others that are old."""
        for batch in self.store.batches.unconfirmed():
            file = self.folder.open(ids.confirmation_file_of(batch.id))
            if file is not None:
                file.close()
                self._confirmed(batch.id)
            elif batch.stamps[BatchState.VALIDATING] < now_s - _UNCONFIRMED_S:
                self.store.batches.move(batch.id, BatchState.UNCONFIRMED, BatchState.CANCELLED)

    def _step(self, batch: Batch, is_idle: bool) -> bool:
        if self._setbacks.lacks_room and self._setbacks.pauses(batch, self.store.now_s()):
            return False
        if batch.state == BatchState.VALIDATING:
            return self._turns.slice(batch, self._validate)
        if batch.state == BatchState.FINALIZING:
            return self._may_write(batch) and self._turns.slice(batch, self._finish)
        if batch.state == BatchState.IN_PROGRESS:
            return is_idle and self._move(batch, BatchState.FINALIZING)
        self.store.requests.cancel(batch.id)
        if self.store.requests.has_open(batch.id):
            return False
        if batch.errors:
            return self._failed(batch)
        return self._may_write(batch) and self._turns.slice(batch, self._finish)

    def _may_write(self, batch: Batch) -> bool:
        """Return whether results of a batch may be written now: all may, unless any batch lacks room."""
        if not self._setbacks.lacks_room or self._turns.has_begun(batch):
            return True
        free = self.folder.free_bytes()
        return not self._turns.is_writing and (free is None or free >= self._setbacks.size(batch))

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

        This deletes files past their expiry, uploads to gateways that are gone, batches that ended long ago, results of
        ended batches, which remain in their files alone, and bytes that a crash left without a file's row.
        """
        self._confirm()
        now_s = self.store.now_s()
        self._confirm_for_others(now_s)
        self.store.requests.forget_ended()
        alive = self._alive_members()
        cut_off = [file for file in self.store.batches.reserved_files() if file.name and file.name not in alive]
        for file in (*self.store.batches.expired_files(), *cut_off):
            self.store.batches.delete_file(file.tenant, file.id)
            self.folder.delete(file.id)
        for batch in self.store.batches.ended_before(self.results_kept_s):
            self.store.requests.forget(batch.id)
            self.store.batches.forget(batch.tenant, batch.id)
        self.store.batches.recount_bytes()
        self.folder.keep_only(self.store.batches.is_file, now_s - _SURELY_OLD_S, alive)

    def _alive_members(self) -> set[str]:
        """Return the names of this member and of all others with a sign of life not long before the newest.

        All signs of life are old after the store was away.
        """
        ages = {one.id: one.age_s for one in self.store.members.agents() if one.id != self.member}
        newest_s = min(ages.values(), default=0.0)
        return {name for name, age_s in ages.items() if age_s - newest_s < GONE_S} | {self.member}

    # These methods turn the file into requests.

    def _validate(self, batch: Batch) -> Slices:
        opened = self.folder.open(batch.input_file)
        if opened is None:
            return self._without_file(batch)
        with opened as file, TemporaryFile() as checked:
            errors, lines = yield from self._errors(batch, file, checked)
            if errors:
                return self._fail(batch, errors)
            checked.seek(0)
            yield from self._accept(batch, checked, lines)
        # A batch that was cancelled meanwhile stays so: nothing more was accepted, and its steps cancel what had been.
        self._move(batch, BatchState.IN_PROGRESS, lines=lines)
        return True

    def _without_file(self, batch: Batch) -> bool:
        """Leave a batch to another gateway, which may have its file, or fail it if the file is gone or time is up."""
        if self._is_elsewhere(batch):
            return False
        known = self.store.batches.file(batch.tenant, batch.input_file) is not None
        text = "is in no folder of files" if known else "was deleted"
        missing = LineError(None, "file_not_found", f"the file {batch.input_file} {text}", "input_file_id")
        return self._fail(batch, [missing])

    def _errors(
        self, batch: Batch, file: BinaryIO, checked: IO[bytes]
    ) -> Generator[None, None, tuple[list[LineError], int]]:
        """Return the errors of a file, and the number of lines without one, before the first request is accepted.

        As at OpenAI, one error keeps a whole batch from running.

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
        return found[:MOST_ERRORS] or self._beyond_quota(batch, lines, tokens), lines

    def _parts(self, batch: Batch, file: BinaryIO) -> Iterator[list[BatchLine | LineError]]:
        """Yield the lines of the file, in parts of one slice of work."""
        part: list[BatchLine | LineError] = []
        begin = file.tell()
        models, salt = self.models_of(batch.tenant), partial(self.salt_of, batch.tenant)
        for line in read_lines(file, batch.endpoint, models, self.limits, salt):
            part.append(line)
            if len(part) >= _SLICE_LINES or file.tell() - begin >= _SLICE_BYTES:
                yield part
                part, begin = [], file.tell()
        if part:
            yield part

    def _beyond_quota(self, batch: Batch, lines: int, tokens: float) -> list[LineError]:
        """Reserve the quota of lines and tokens; return an error if the tenant's other batches leave too little."""
        quota = self.quota_of(batch.tenant)
        beyond = self.store.batches.reserve_lines(batch, lines, tokens, quota.lines, quota.tokens)
        if beyond is None:
            return []
        open_lines, open_tokens = beyond
        later = "send it again when batches of yours have ended"
        if open_lines + lines > quota.lines:
            text = (
                f"{open_lines} requests wait or run, {lines} are in this file, and the limit is {quota.lines}; {later}"
            )
            return [LineError(None, "request_limit_exceeded", text)]
        text = f"{open_tokens:.0f} tokens wait or run, {tokens:.0f} are in this file, and the limit is {quota.tokens}"
        return [LineError(None, "token_limit_exceeded", f"{text}; {later}")]

    def _accept(self, batch: Batch, checked: IO[bytes], lines: int) -> Generator[None, None, None]:
        accepted = 0
        while accepted < lines:
            if accepted:
                yield
            part: list[BatchLine] = pickle.load(checked)
            left_s = max(batch.due_s - self.store.now_s(), 0.0)
            self.store.requests.accept([self._request(batch, line, left_s) for line in part], batch.id, lines)
            accepted += len(part)

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
        """End a batch that is being validated; cancel what another gateway had accepted of it before it was killed.

        The batch is CANCELLING with errors until none of its requests waits or runs.
        """
        listed = [error.to_json() for error in errors]
        if not self.store.batches.move(batch.id, BatchState.VALIDATING, BatchState.CANCELLING, errors=listed):
            return False
        self.store.requests.cancel(batch.id)
        if not self.store.requests.has_open(batch.id):
            self._failed(batch)
        return True

    def _failed(self, batch: Batch) -> bool:
        self.store.requests.forget(batch.id)
        return self.store.batches.move(batch.id, BatchState.CANCELLING, BatchState.FAILED, lines=0)

    # These methods turn results into files.

    def _finish(self, batch: Batch) -> Slices:
        counts = self.store.requests.counts(batch.id)
        never_accepted = batch.lines - sum(counts.values()) if batch.state == BatchState.CANCELLING else 0
        opened = None
        if never_accepted > 0:
            opened = self.folder.open(batch.input_file)
            if opened is None and self._is_elsewhere(batch):
                return False
        kept_s = self.results_kept_s if batch.outputs_kept_s is None else batch.outputs_kept_s
        with nullcontext() if opened is None else opened:
            try:
                results = yield from write_results(self.store, self.folder, batch, opened, kept_s)
            except EndedMeanwhile:
                return False
        if opened is not None:
            counts[RequestState.CANCELLED] = counts.get(RequestState.CANCELLED, 0) + never_accepted
        if batch.state == BatchState.CANCELLING:
            after = BatchState.CANCELLED
        else:
            after = BatchState.EXPIRED if counts.get(RequestState.EXPIRED) else BatchState.COMPLETED
        lines = sum(counts.values())
        moved = self.store.batches.move(batch.id, batch.state, after, lines=lines, ended=counts, results=results)
        if moved:
            self.store.requests.forget_results(batch.id)
        return moved

    # Both parts use these functions.

    def _is_elsewhere(self, batch: Batch) -> bool:
        """Return whether another gateway may have the batch's file, which this one does not find."""
        known = self.store.batches.file(batch.tenant, batch.input_file) is not None
        if not known or self.store.now_s() >= batch.due_s:
            return False
        if batch.id not in self._left_to_others:
            self._left_to_others.add(batch.id)
            logger.warning("batch %s is left to another gateway, which may have its file", batch.id)
        return True

    def _move(self, batch: Batch, after: BatchState, lines: int | None = None) -> bool:
        return self.store.batches.move(batch.id, batch.state, after, lines=lines)
