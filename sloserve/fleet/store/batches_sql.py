"""The SQL of batches; see :mod:`sloserve.fleet.store.database`."""

from typing import Final

from sloserve.fleet.store.records import ENDED_STATES, OPEN_STATES

OPEN: Final = ", ".join(f"'{state}'" for state in OPEN_STATES)
ENDED: Final = ", ".join(f"'{state}'" for state in ENDED_STATES)
BATCHES: Final = """
    SELECT id, tenant, endpoint, time_window, input_file, state, stamps, due_s, lines, completed, failed,
        output_file, error_file, metadata, errors
    FROM batch"""
OF_BATCH: Final = "SELECT count(*) FROM request r WHERE r.batch = batch.id AND r.state"
# Of batches that have not ended the requests are counted, by an index; the others keep their counts, unless a gateway
# of schema version 4 has ended them, which keeps none.
TO_COUNT: Final = f"state IN ({OPEN}) OR completed + failed < lines"
COUNTED: Final = BATCHES.replace(
    "completed, failed",
    f"""CASE WHEN {TO_COUNT} THEN ({OF_BATCH} = 'done') ELSE completed END,
        CASE WHEN {TO_COUNT} THEN ({OF_BATCH} IN ('failed', 'expired', 'cancelled')) ELSE failed END""",
)
ADD_BATCH: Final = """
    INSERT INTO batch (id, tenant, endpoint, time_window, input_file, state, stamps, due_s, metadata)
    VALUES (:id, :tenant, :endpoint, :time_window, :input_file, :state, :stamps, :due_s, :metadata)"""
ACCEPTING: Final = """
    SELECT lines, lines - (SELECT count(*) FROM request r WHERE r.batch = batch.id), stamps FROM batch
    WHERE tenant = :tenant AND id <> :without AND state = 'validating' AND lines > 0"""
RECORD_LINES: Final = """
    UPDATE batch SET lines = :lines, stamps = :stamps WHERE id = :id AND state = 'validating'"""
CONFIRM: Final = f"""
    UPDATE batch SET state = 'validating' WHERE id = :id AND state = 'unconfirmed'
        AND (SELECT count(*) FROM batch b WHERE b.tenant = :tenant AND b.state IN ({OPEN})) < :most"""
MOVE: Final = """
    UPDATE batch SET state = :after, stamps = :stamps,
        lines = coalesce(CAST(:lines AS bigint), lines),
        completed = coalesce(CAST(:completed AS bigint), completed),
        failed = coalesce(CAST(:failed AS bigint), failed),
        output_file = coalesce(CAST(:output_file AS text), output_file),
        error_file = coalesce(CAST(:error_file AS text), error_file),
        errors = coalesce(CAST(:errors AS text), errors)
    WHERE id = :id AND state = :before"""
