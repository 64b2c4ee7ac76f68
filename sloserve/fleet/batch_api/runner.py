"""Brings batches from an uploaded file to files of results, in steps that may be broken off anywhere and done again.

Each step follows from what the store holds. Ids of requests and of files of results follow from the batch's id, so a
step that a crash broke off does nothing twice when it is done again, by this process or another.
"""

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from sloserve.core.errors import StoreError
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.batch_api.lines import Limits, Line, LineError, read_lines
from sloserve.fleet.store.records import Batch, BatchState, File, NewRequest, RequestState
from sloserve.fleet.store.requests import Row
from sloserve.fleet.store.store import Store

logger = logging.getLogger(__name__)

MOST_ERRORS: Final = 100
"""Errors that a failed batch lists."""
_PART: Final = 1_000
"""Requests accepted in one commit."""
_WHY: Final = {
    RequestState.EXPIRED: ("batch_expired", "the completion window was over before this request was served"),
    RequestState.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was served"),
}
_OPEN: Final = (RequestState.QUEUED, RequestState.CLAIMED)


@dataclass(frozen=True)
class BatchRunner:
    """Runs the batches of a store.

    Args:
        store, folder: where everything is kept.
        models: of the fleet, as they are now.
        group_of: the request group of a tenant's new request.
        slo_class: of all requests.
        limits: of one file.
    """

    store: Store
    folder: Folder
    models: Callable[[], Collection[str]]
    group_of: Callable[[str, Line], int] = lambda tenant, line: 0
    slo_class: str = "batch"
    limits: Limits = field(default_factory=Limits)

    def step(self) -> bool:
        """Brings each unfinished batch as far as it can come now; returns whether one has moved.

        A batch that cannot be brought further by an error of ours is logged and left for the next step.
        """
        self.store.requests.expire()
        moved = False
        for batch in self.store.batches.unfinished():
            try:
                moved |= self._step(batch)
            except StoreError:
                raise  # it would be the same for the others
            except Exception:  # one batch must not hold up all
                logger.exception("batch %s is stuck, and is tried again", batch.id)
        return moved

    def _step(self, batch: Batch) -> bool:
        if batch.state == BatchState.VALIDATING:
            return self._validate(batch)
        if batch.state == BatchState.FINALIZING:
            return self._finish(batch)
        if batch.state == BatchState.CANCELLING:
            self.store.requests.cancel(batch.id)
        counts = self.store.requests.counts(batch.id)
        if any(counts.get(state) for state in _OPEN):
            return False
        return self._finish(batch) if batch.state == BatchState.CANCELLING else self._move(batch, BatchState.FINALIZING)

    # From the file to requests.

    def _validate(self, batch: Batch) -> bool:
        with self._input(batch) as file:
            if file is None:
                missing = LineError(None, "file_not_found", f"the file {batch.input_file} was deleted", "input_file_id")
                return self._fail(batch, [missing])
            errors = self._errors(batch, file)
            if errors:
                return self._fail(batch, errors)
            file.seek(0)
            lines = self._accept(batch, file)
        # If a cancel has come meanwhile, the batch stays cancelling, and the next step cancels what was just accepted.
        self._move(batch, BatchState.IN_PROGRESS, lines=lines)
        return True

    def _errors(self, batch: Batch, file: BinaryIO) -> list[LineError]:
        """Before the first request is accepted: a batch with an error in it is served not at all, as OpenAI does."""
        found: list[LineError] = []
        for line in read_lines(file, batch.endpoint, self.models(), self.limits):
            if isinstance(line, LineError):
                found.append(line)
                if len(found) >= MOST_ERRORS:
                    break
        return found

    def _accept(self, batch: Batch, file: BinaryIO) -> int:
        part: list[NewRequest] = []
        lines = 0
        left_s = max(batch.due_s - self.store.now_s(), 0.0)
        for line in read_lines(file, batch.endpoint, self.models(), self.limits):
            if isinstance(line, LineError):  # a model has left the fleet since
                continue
            part.append(self._request(batch, line, left_s))
            lines += 1
            if len(part) == _PART:
                self.store.requests.accept(part)
                part = []
        self.store.requests.accept(part)
        return lines

    def _request(self, batch: Batch, line: Line, left_s: float) -> NewRequest:
        return NewRequest(
            id=ids.request_of(batch.id, line.number),
            tenant=batch.tenant,
            model=line.model,
            slo_class=self.slo_class,
            group=self.group_of(batch.tenant, line),
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
        return self.store.batches.move(
            batch.id, BatchState.VALIDATING, BatchState.FAILED, errors=[error.to_json() for error in errors]
        )

    # From results to files.

    def _finish(self, batch: Batch) -> bool:
        output, error = (self._result_file(batch, kind, of) for kind, of in (("output", True), ("error", False)))
        counts = self.store.requests.counts(batch.id)
        if batch.state == BatchState.CANCELLING:
            after = BatchState.CANCELLED
        else:
            after = BatchState.EXPIRED if counts.get(RequestState.EXPIRED) else BatchState.COMPLETED
        return self._move(batch, after, output_file=output, error_file=error)

    def _result_file(self, batch: Batch, kind: str, successes: bool) -> str | None:
        """Writes one of a batch's files of results, from its rows; returns its id, ``None`` where it would be empty."""
        id, written, place = ids.result_file_of(batch.id, kind), 0, 0
        with self.folder.writing(id) as file:
            while rows := self.store.requests.results(batch.id, after=place):
                place = rows[-1].place
                for row in rows:
                    if _succeeded(row) == successes:
                        written += file.write(result_line(row))
        if not written:
            self.folder.delete(id)
            return None
        self.store.batches.add_file(File(id, batch.tenant, f"{batch.id}_{kind}.jsonl", "batch_output", written, 0.0))
        return id

    # What both need.

    def _input(self, batch: Batch) -> "_Closing":
        return _Closing(self.folder.open(batch.input_file))

    def _move(self, batch: Batch, after: BatchState, **given: int | str | None) -> bool:
        return self.store.batches.move(batch.id, batch.state, after, **given)  # type: ignore[arg-type]


class _Closing:
    """A file, or none, that is closed at the end."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file

    def __enter__(self) -> BinaryIO | None:
        return self._file

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _succeeded(row: Row) -> bool:
    return row.state == RequestState.DONE and row.status == 200


def result_line(row: Row) -> bytes:
    """A line of a file of results, as OpenAI writes it."""
    line: dict[str, object] = {"id": row.id, "custom_id": row.custom_id, "response": None, "error": None}
    if row.state in _WHY:
        code, message = _WHY[row.state]
        line["error"] = {"code": code, "message": message}
    elif row.state == RequestState.FAILED:
        line["error"] = {"code": "request_failed", "message": (row.body or b"").decode(errors="replace")}
    else:
        line["response"] = {"status_code": row.status, "request_id": row.id, "body": _json(row.body or b"")}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _json(body: bytes) -> object:
    """What an engine answered; one that is not JSON stands there as text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
