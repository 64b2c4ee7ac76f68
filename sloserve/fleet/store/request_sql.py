"""The SQL statements of :mod:`sloserve.fleet.store.requests`; see :mod:`sloserve.fleet.store.database`."""

from typing import Final


def end_queued(which: str) -> str:
    """Return a statement that ends ``:most`` queued requests under the condition ``which`` and returns their ids."""
    return f"""
    WITH taken AS MATERIALIZED (
        SELECT seq FROM request WHERE state = 'queued' AND {which} LIMIT :most LOCKING_NEW_ROWS
    ) UPDATE request SET state = :state, finished_s = store_now(), result_bytes = :size
    WHERE seq IN (SELECT seq FROM taken) RETURNING id"""


ACCEPT: Final = """
    INSERT INTO request (id, tenant, batch, line, custom_id, model, class, grp, prompt_tokens, output_tokens,
        created_s, due_s)
    SELECT given.id, given.tenant, given.batch, given.line, given.custom_id, given.model, given.slo_class, given.grp,
        given.prompt_tokens, given.output_tokens, store_now(), store_now() + given.deadline_s
    FROM GIVEN(id text, tenant text, batch text, line bigint, custom_id text, model text, slo_class text, grp bigint,
        prompt_tokens bigint, output_tokens double precision, deadline_s double precision)
    WHERE true
    ON CONFLICT (id) DO NOTHING RETURNING id"""
# The change locks the batch's row: it cannot be cancelled until the lines that are accepted with it are committed.
ACCEPTING: Final = "UPDATE batch SET lines = :lines WHERE id = :batch AND state = 'validating'"
TAKE: Final = """
    UPDATE request SET state = 'claimed', attempt = attempt + 1, claim = :claim
    WHERE seq IN (SELECT seq FROM taken)"""
ALIVE: Final = "state = 'queued' AND (due_s IS NULL OR due_s > (SELECT store_now()))"
# Materialized: else PostgreSQL may run the subquery more than once, and take more rows than it asks for.
CLAIM: Final = f"""
    WITH taken AS MATERIALIZED (
        SELECT seq FROM request WHERE {ALIVE} AND grp = :grp AND suspects = 0
        ORDER BY seq LIMIT :most LOCKING_NEW_ROWS
    ){TAKE}"""
FIRST_SUSPECT: Final = f"""
    SELECT suspects FROM request WHERE {ALIVE} AND model = :model AND suspects > 0
    ORDER BY seq LIMIT 1 LOCKING_NEW_ROWS"""
CLAIM_SUSPECTS: Final = f"""
    WITH taken AS MATERIALIZED (
        SELECT seq FROM request WHERE {ALIVE} AND model = :model AND suspects > 0 AND suspects = :suspects
        ORDER BY seq LIMIT :most LOCKING_NEW_ROWS
    ){TAKE}"""
CLAIMED: Final = """
    SELECT r.id, r.attempt, b.body, b.route, r.class, r.due_s - store_now(), p.progress, r.tenant FROM request r
    JOIN request_body b ON b.id = r.id LEFT JOIN request_progress p ON p.id = r.id
    WHERE r.claim = :claim ORDER BY r.seq"""
NEW_CLAIM: Final = """
    INSERT INTO claim (agent, until_s, alone) VALUES (:agent, store_now() + :lease_s, :alone) RETURNING id"""
RENEW: Final = """
    UPDATE claim SET until_s = store_now() + :lease_s WHERE agent = :agent AND until_s > store_now() RETURNING id"""
DROP_EMPTY_CLAIMS: Final = """
    DELETE FROM claim WHERE agent = :agent AND NOT EXISTS (SELECT 1 FROM request WHERE request.claim = claim.id)"""
CANCELLED: Final = """
    SELECT r.id FROM request r JOIN claim c ON c.id = r.claim WHERE c.agent = :agent AND r.cancelled = 1"""
FINISH: Final = """
    UPDATE request SET state = given.state, finished_s = store_now(), claim = NULL, result_bytes = given.size
    FROM GIVEN(id text, attempt bigint, state text, size bigint)
    WHERE request.id = given.id AND request.attempt = given.attempt AND request.state = 'claimed'
    RETURNING request.id, request.attempt"""
BODY: Final = """
    INSERT INTO request_body (id, body, route)
    SELECT given.id, given.body, given.route FROM GIVEN(id text, body BYTES, route text)"""
RESULT: Final = """
    INSERT INTO request_result (id, status, body)
    SELECT given.id, given.status, given.body FROM GIVEN(id text, status bigint, body BYTES)"""
PROGRESS: Final = """
    INSERT INTO request_progress (id, progress)
    SELECT given.id, given.progress FROM GIVEN(id text, progress BYTES) WHERE true
    ON CONFLICT (id) DO UPDATE SET progress = excluded.progress"""
NO_PROGRESS: Final = "DELETE FROM request_progress WHERE id = ANY GIVEN(id text)"
NO_BODY: Final = "DELETE FROM request_body WHERE id = ANY GIVEN(id text)"
IN_FLIGHT: Final = """
    SELECT r.id, c.alone FROM request r JOIN claim c ON c.id = r.claim
    WHERE r.claim = :claim AND r.state = 'claimed' LOCKING_REQUESTS"""
REQUEUE: Final = "UPDATE request SET state = 'queued', claim = NULL WHERE claim = :claim AND state = 'claimed'"
REQUEUE_ONE: Final = """
    UPDATE request SET state = 'queued', claim = NULL FROM GIVEN(id text, claim bigint)
    WHERE request.id = given.id AND request.claim = given.claim AND request.state = 'claimed' RETURNING request.id"""
UNCOUNT: Final = """
    UPDATE request SET attempt = attempt - 1 FROM GIVEN(id text, claim bigint)
    WHERE request.id = given.id AND request.claim = given.claim AND request.state = 'claimed'"""
SUSPECT: Final = "UPDATE request SET suspects = :suspects WHERE claim = :claim AND state = 'claimed'"
LOST: Final = "UPDATE request SET lost = lost + 1 WHERE claim = :claim AND state = 'claimed'"
LAPSED: Final = """
    DELETE FROM claim WHERE until_s <= store_now() OR until_s > store_now() + :longest_s RETURNING id"""
EXCUSE: Final = """
    UPDATE request SET lost = lost - 1 FROM GIVEN(id text) WHERE request.id = given.id AND request.lost > 0"""
DROP_CLAIMS: Final = "DELETE FROM claim WHERE id = ANY GIVEN(id bigint)"
WORN_OUT: Final = "SELECT id FROM request WHERE claim = :claim AND state = 'claimed' AND lost >= :most_lost"
FAIL: Final = """
    UPDATE request SET state = 'failed', finished_s = store_now(), claim = NULL, result_bytes = given.size
    FROM GIVEN(id text, size bigint) WHERE request.id = given.id"""
DUE: Final = "due_s <= (SELECT store_now())"
OF_TENANT: Final = "batch IN (SELECT id FROM batch WHERE tenant = :tenant AND state = 'in_progress')"
CANCEL_CLAIMED: Final = "UPDATE request SET cancelled = 1 WHERE batch = :batch AND state = 'claimed'"
SUMS: Final = """
    SELECT grp, model, class, count(*), CAST(sum(prompt_tokens) AS double precision), sum(output_tokens),
        sum(output_tokens * output_tokens), min(due_s), max(due_s), min(created_s)
    FROM request WHERE state = 'queued' GROUP BY grp, model, class ORDER BY grp, model, class"""
# As the index request_place has it: pages and deletions read ended requests alone.
_HAS_ENDED: Final = "finished_s IS NOT NULL"
RESULTS: Final = f"""
    WITH page AS (
        SELECT seq, id, custom_id, line, state, result_bytes FROM request
        WHERE batch = :batch AND seq > :after AND {_HAS_ENDED} ORDER BY seq LIMIT :most
    ), sized AS (SELECT page.*, sum(result_bytes) OVER (ORDER BY seq) - result_bytes AS before FROM page)
    SELECT z.seq, z.id, z.custom_id, z.line, z.state, s.status, s.body FROM sized z
    LEFT JOIN request_result s ON s.id = z.id WHERE z.before < :most_bytes ORDER BY z.seq"""
ANY_OPEN: Final = "SELECT 1 FROM request WHERE batch = :batch AND state IN ('queued', 'claimed') LIMIT 1"
IDLE_BATCHES: Final = """
    SELECT id FROM batch WHERE state = 'in_progress'
        AND NOT EXISTS (SELECT 1 FROM request r WHERE r.batch = batch.id AND r.state IN ('queued', 'claimed'))"""
OPEN_OF: Final = """
    SELECT count(*), coalesce(sum(r.prompt_tokens + r.output_tokens), 0.0)
    FROM batch b JOIN request r ON r.batch = b.id AND r.state IN ('queued', 'claimed')
    WHERE b.tenant = :tenant AND b.id <> :without AND b.state IN ('validating', 'in_progress', 'cancelling')"""
RESULT_BYTES: Final = """
    SELECT coalesce(sum(r.result_bytes), 0)
    FROM batch b JOIN request r ON r.batch = b.id AND r.state IN ('done', 'failed', 'expired', 'cancelled')
    WHERE b.tenant = :tenant AND b.has_results = 1 AND b.state IN ('in_progress', 'finalizing', 'cancelling')"""
ENDED_WITH_RESULTS: Final = """
    SELECT id FROM batch WHERE has_results = 1 AND state IN ('completed', 'expired', 'cancelled', 'failed')"""
LAST_OF_PIECE: Final = f"""
    SELECT max(seq) FROM (
        SELECT seq FROM request WHERE batch = :batch AND seq > :after AND {_HAS_ENDED} ORDER BY seq LIMIT :most
    ) AS piece"""
IN_PIECE: Final = (
    f"id IN (SELECT id FROM request WHERE batch = :batch AND seq > :after AND seq <= :last AND {_HAS_ENDED})"
)
RECENT: Final = """
    SELECT store_now() - created_s, model, class, prompt_tokens, output_tokens, due_s - created_s
    FROM request ORDER BY seq DESC LIMIT :most"""
