"""The tables, as steps from one version to the next. Steps are only ever added: a store never goes back.

Bodies and results stand in tables of their own, so that claiming and counting never reads them.
"""

from sloserve.core.errors import ConfigError
from sloserve.fleet.store.database import Database

_FIRST = (
    """CREATE TABLE request (
        seq SERIAL_KEY,
        id text NOT NULL UNIQUE,
        tenant text NOT NULL,
        batch text,
        line bigint,
        custom_id text,
        model text NOT NULL,
        class text NOT NULL,
        grp bigint NOT NULL,
        prompt_tokens bigint NOT NULL,
        output_tokens double precision NOT NULL,
        created_s double precision NOT NULL,
        due_s double precision,
        state text NOT NULL DEFAULT 'queued',
        attempt bigint NOT NULL DEFAULT 0,
        claim bigint,
        suspects bigint NOT NULL DEFAULT 0,
        cancelled bigint NOT NULL DEFAULT 0,
        finished_s double precision
    )""",
    "CREATE INDEX request_queued ON request (grp, suspects, seq) WHERE state = 'queued'",
    "CREATE INDEX request_suspect ON request (model, seq) WHERE suspects > 0",
    "CREATE INDEX request_due ON request (due_s) WHERE state = 'queued'",
    "CREATE INDEX request_claimed ON request (claim) WHERE claim IS NOT NULL",
    "CREATE INDEX request_batch ON request (batch, state) WHERE batch IS NOT NULL",
    "CREATE TABLE request_body (id text PRIMARY KEY, body BYTES NOT NULL)",
    "CREATE TABLE request_result (id text PRIMARY KEY, status bigint NOT NULL, body BYTES NOT NULL)",
    "CREATE TABLE request_progress (id text PRIMARY KEY, progress BYTES NOT NULL)",
    """CREATE TABLE claim (
        id SERIAL_KEY,
        agent text NOT NULL,
        until_s double precision NOT NULL,
        alone bigint NOT NULL
    )""",
    "CREATE INDEX claim_agent ON claim (agent)",
    """CREATE TABLE leader (
        role text PRIMARY KEY,
        holder text NOT NULL,
        term bigint NOT NULL,
        until_s double precision NOT NULL
    )""",
    "CREATE TABLE plan (role text PRIMARY KEY, term bigint NOT NULL, version bigint NOT NULL, plan text NOT NULL)",
    "CREATE TABLE agent (id text PRIMARY KEY, state text NOT NULL, beat_s double precision NOT NULL)",
    """CREATE TABLE file (
        seq SERIAL_KEY,
        id text NOT NULL UNIQUE,
        tenant text NOT NULL,
        name text NOT NULL,
        purpose text NOT NULL,
        bytes bigint NOT NULL,
        created_s double precision NOT NULL,
        expires_s double precision
    )""",
    "CREATE INDEX file_tenant ON file (tenant, seq)",
    """CREATE TABLE batch (
        seq SERIAL_KEY,
        id text NOT NULL UNIQUE,
        tenant text NOT NULL,
        endpoint text NOT NULL,
        time_window text NOT NULL,
        input_file text NOT NULL,
        output_file text,
        error_file text,
        state text NOT NULL,
        stamps text NOT NULL,
        due_s double precision NOT NULL,
        lines bigint NOT NULL DEFAULT 0,
        metadata text,
        errors text NOT NULL DEFAULT '[]'
    )""",
    "CREATE INDEX batch_tenant ON batch (tenant, seq)",
    "CREATE INDEX batch_state ON batch (state)",
)

_ROUTES = ("ALTER TABLE request_body ADD COLUMN route text NOT NULL DEFAULT '/v1/chat/completions'",)

_LOST = ("ALTER TABLE request ADD COLUMN lost bigint NOT NULL DEFAULT 0",)

_PLACES = ("CREATE INDEX request_place ON request (batch, seq) WHERE batch IS NOT NULL",)
"""An index with which pages of results follow one another without sorting the whole batch for each."""

_CHEAP_READS = (
    "ALTER TABLE request ADD COLUMN result_bytes bigint NOT NULL DEFAULT 0",
    """UPDATE request SET result_bytes = (SELECT length(s.body) FROM request_result s WHERE s.id = request.id)
        WHERE id IN (SELECT id FROM request_result)""",
    "DROP INDEX request_batch",
    "CREATE INDEX request_batch ON request (batch, state, result_bytes) WHERE batch IS NOT NULL",
    "ALTER TABLE batch ADD COLUMN completed bigint NOT NULL DEFAULT 0",
    "ALTER TABLE batch ADD COLUMN failed bigint NOT NULL DEFAULT 0",
    """UPDATE batch SET
        completed = (SELECT count(*) FROM request r WHERE r.batch = batch.id AND r.state = 'done'),
        failed = (SELECT count(*) FROM request r
            WHERE r.batch = batch.id AND r.state IN ('failed', 'expired', 'cancelled'))
        WHERE state IN ('completed', 'expired', 'cancelled')""",
    "CREATE INDEX batch_of_tenant ON batch (tenant, state)",
    "ALTER TABLE batch ADD COLUMN has_results bigint NOT NULL DEFAULT 1",
    "CREATE INDEX batch_results ON batch (state) WHERE has_results = 1",
    "CREATE TABLE tenant_files (tenant text PRIMARY KEY, bytes bigint NOT NULL)",
    """INSERT INTO tenant_files (tenant, bytes)
        SELECT tenant, sum(CASE WHEN bytes < 4096 THEN 4096 ELSE bytes END) FROM file GROUP BY tenant""",
)
"""Columns and indices that hold what a route returns: a tenant may have a million rows, which take seconds to count."""

_FENCE = (
    "ALTER TABLE agent ADD COLUMN holder text",
    "ALTER TABLE agent ADD COLUMN place text",
    "ALTER TABLE agent ADD COLUMN until_s double precision NOT NULL DEFAULT 0",
)
"""Records which process is the agent of a host, where it holds the host's lock, and when its lease ends."""

_FILES_MARK = ("CREATE TABLE files_mark (one bigint PRIMARY KEY, mark text NOT NULL)",)
"""One row with a mark: a gateway compares it to learn whether it has the same files as the others."""

_SWITCH_COSTS = (
    """CREATE TABLE switch_cost (
        device text NOT NULL,
        model text NOT NULL,
        step text NOT NULL,
        mean_s double precision NOT NULL,
        times bigint NOT NULL,
        seen_s double precision NOT NULL,
        PRIMARY KEY (device, model, step)
    )""",
)

_TOLD_TO_END = ("ALTER TABLE agent ADD COLUMN told_to_end bigint NOT NULL DEFAULT 0",)
"""Drains an agent that others started, and that only the store reaches."""

_TENANT_USAGE = (
    """CREATE TABLE tenant_usage (
        tenant text NOT NULL,
        hour_s bigint NOT NULL,
        requests bigint NOT NULL,
        prompt_tokens bigint NOT NULL,
        output_tokens bigint NOT NULL,
        PRIMARY KEY (tenant, hour_s)
    )""",
    "CREATE INDEX tenant_usage_hour ON tenant_usage (hour_s)",
)

_TRAFFIC = ("CREATE TABLE traffic (gateway text PRIMARY KEY, report text NOT NULL, at_s double precision NOT NULL)",)
"""Recent requests of each gateway, apart from its sign of life: only the leading planner reads them."""

_QUEUED_SUMS = (
    """CREATE TABLE queued_sums (
        one bigint PRIMARY KEY,
        read_s double precision NOT NULL,
        due_s double precision NOT NULL,
        sums text NOT NULL
    )""",
)
"""One row with the sums over the queue that one member has read for all."""

_PROMISES = tuple(
    f"ALTER TABLE tenant_usage ADD COLUMN promises_{outcome} bigint NOT NULL DEFAULT 0"
    for outcome in ("kept", "broken", "withdrawn")
)
"""A gateway of an older version goes on adding rows, without promises."""

_USE_OF_LINES = tuple(
    f"ALTER TABLE tenant_usage ADD COLUMN batch_{count} bigint NOT NULL DEFAULT 0"
    for count in ("lines", "prompt_tokens", "output_tokens", "engine_ms")
)
"""Lines of batches that an agent of an older version serves are not in the rows."""

_ENDED_PLACES = (
    "DROP INDEX request_place",
    "CREATE INDEX request_place ON request (batch, seq) WHERE finished_s IS NOT NULL",
)
"""The same index of ended requests alone, which are all that pages and deletions read: accepting and claiming a request
do not change it."""

STEPS: tuple[tuple[str, ...], ...] = (
    _FIRST,
    _ROUTES,
    _LOST,
    _PLACES,
    _CHEAP_READS,
    _FENCE,
    _FILES_MARK,
    _SWITCH_COSTS,
    _TOLD_TO_END,
    _TENANT_USAGE,
    _TRAFFIC,
    _QUEUED_SUMS,
    _PROMISES,
    _USE_OF_LINES,
    _ENDED_PLACES,
)
"""Steps of the schema; step n leads from version n to n + 1."""


def migrate(database: Database, steps: tuple[tuple[str, ...], ...] = STEPS) -> None:
    """Bring a store to the newest version that this code knows; concurrent processes do it one after another.

    A store of the newest version is only read: the user that runs the fleet need not have the right to make tables.

    Raises: ConfigError where the store is of a newer version, or the database's user may not change an older one.
    """
    with database.alone() as session:
        if not session.rows("SELECT 1 FROM NAMES_OF_TABLES WHERE name = 'schema_version'"):
            session.change("CREATE TABLE schema_version (version bigint NOT NULL)")
        version = int(session.rows("SELECT coalesce(max(version), 0) FROM schema_version")[0][0])
        if version > len(steps):
            raise ConfigError(
                f"the store has schema version {version}, and this sloserve knows {len(steps)}: a newer one has used "
                "it; upgrade sloserve, or give another store"
            )
        for step in steps[version:]:
            for statement in step:
                session.change(statement)
        if version < len(steps):
            session.change("DELETE FROM schema_version")
            session.change("INSERT INTO schema_version VALUES (:version)", version=len(steps))
