"""Files of results: one line for each request of a batch, in the order of its input file."""

import json
from collections.abc import Generator
from typing import BinaryIO, Final

import msgspec

from sloserve.core.json_lines import as_line
from sloserve.fleet.batch_api import ids
from sloserve.fleet.batch_api.files import Files
from sloserve.fleet.batch_api.lines import read_custom_ids
from sloserve.fleet.store.batches import ResultFiles
from sloserve.fleet.store.records import Batch, File, RequestState
from sloserve.fleet.store.requests import NO_ROOM, ResultRow
from sloserve.fleet.store.store import Store

_PAGE_LINES: Final = 1_000
"""Lines that were never accepted that are written before the turn of another tenant's batch."""
_WHY: Final = {
    RequestState.EXPIRED: ("batch_expired", "the completion window was over before this request was served"),
    RequestState.CANCELLED: ("batch_cancelled", "the batch was cancelled before this request was served"),
}


class EndedMeanwhile(Exception):
    """Another gateway has brought a batch to its end."""


def write_results(
    store: Store, folder: Files, batch: Batch, input_file: BinaryIO | None, kept_s: float
) -> Generator[None, None, ResultFiles]:
    """Write a batch's files of results and of errors, in one pass over its rows; stop after each page.

    Args:
        store: Database with the rows.
        folder: Storage for bytes of files.
        batch: The batch, none of which waits or runs.
        input_file: Input file, if lines after the last row were never accepted: they count as cancelled.
        kept_s: Seconds for which the files are kept.

    Raises: EndedMeanwhile where another gateway has written them, and deleted the results.
    """
    output, error = ids.result_file_of(batch.id, "output"), ids.result_file_of(batch.id, "error")
    successes, others, place, line = 0, 0, 0, 0
    with folder.writing(output) as to_output, folder.writing(error) as to_error:
        while rows := store.requests.results(batch.id, after=place):
            if place:
                yield
            place, line = rows[-1].place, max(line, *(row.line or 0 for row in rows))
            for row in rows:
                if row.status is None and row.state in (RequestState.DONE, RequestState.FAILED):
                    raise EndedMeanwhile
                if _succeeded(row):
                    successes += to_output.write(result_line(row))
                else:
                    others += to_error.write(result_line(row))
        if input_file is not None:
            for count, (number, custom_id) in enumerate(read_custom_ids(input_file, after=line), 1):
                id = ids.request_of(batch.id, number)
                row = ResultRow(0, id, custom_id, number, RequestState.CANCELLED, None, None)
                others += to_error.write(result_line(row))
                if count % _PAGE_LINES == 0:
                    yield
    return ResultFiles(
        _unless_empty(folder, batch, "output", output, successes),
        _unless_empty(folder, batch, "error", error, others),
        kept_s,
    )


def _unless_empty(folder: Files, batch: Batch, kind: str, id: str, written: int) -> File | None:
    if not written:
        folder.delete(id)
        return None
    return File(id, batch.tenant, f"{batch.id}_{kind}.jsonl", "batch_output", written, 0.0)


def _succeeded(row: ResultRow) -> bool:
    return row.state == RequestState.DONE and row.status == 200


def result_line(row: ResultRow) -> bytes:
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
