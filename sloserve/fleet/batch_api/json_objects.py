"""Files and batches as OpenAI's API writes them."""

from typing import Any, Final

from sloserve.fleet.store.records import Batch, BatchState, File

_STAMPS: Final = tuple(state for state in BatchState if state not in (BatchState.UNCONFIRMED, BatchState.VALIDATING))


def file_json(file: File) -> dict[str, Any]:
    """Return a file as OpenAI's API writes it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_s),
        "expires_at": None if file.expires_s is None else int(file.expires_s),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_json(batch: Batch) -> dict[str, Any]:
    """Return a batch as OpenAI's API writes it."""
    # To a client a batch with errors is validated until it has failed, while what was accepted of it is cancelled.
    is_failing = batch.state is BatchState.CANCELLING and bool(batch.errors)
    is_validated = is_failing or batch.state is BatchState.UNCONFIRMED
    state = BatchState.VALIDATING if is_validated else batch.state
    errors = () if is_failing else batch.errors
    hidden = BatchState.CANCELLING if batch.errors else None
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": list(errors)} if errors else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": state.value,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": int(batch.stamps[BatchState.VALIDATING.value]),
        "expires_at": int(batch.due_s),
        **{f"{one.value}_at": _second(None if one is hidden else batch.stamps.get(one.value)) for one in _STAMPS},
        "request_counts": {
            "total": max(batch.lines, batch.completed + batch.failed),
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "metadata": batch.metadata,
    }


def _second(stamp: float | None) -> int | None:
    return None if stamp is None else int(stamp)
