"""The store in a PostgreSQL server, for a fleet on several machines. Its clock is the server's."""

import contextlib
import functools
import ipaddress
import logging
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolTimeout

from sloserve.core.errors import ConfigError, StoreAway, StoreFull
from sloserve.core.json_lines import lines_of
from sloserve.core.user_folders import home
from sloserve.fleet.store.database import GIVEN, Params

T = TypeVar("T")

# psycopg warns of each attempt, four times a second while statements wait; StoreAway informs the caller once.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

CONNECTIONS: Final = 2
"""The most connections of one process: renewals go on while another thread reads or writes much."""
_OLDEST: Final = 140000
_CONNECT_S: Final = 4.0
_RETRY_S: Final = 0.5
"""Seconds between attempts to connect while a statement waits for a connection."""
_PATIENCE: Final[Mapping[str, int]] = {
    "connect_timeout": 2,  # a dying server may never respond; another one of the address may
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""Options of connections that detect a server that has vanished; without them that takes hours. An address may state
others."""
_SILENT_S: Final = 30.0
"""Seconds of silence during a statement after which a server is away. One that is stopped, not dead, keeps its
connections open, acknowledges what it receives, and runs no timeout of its own: only the client can see it."""
_PROBE_S: Final = 2.0
"""Seconds of silence after which a second connection is tried. A server that is busy with the statement accepts it at
once; a stopped one does not, and is away by then: a client of the gateway gets its 503 within five seconds."""
_SILENT_ALONE_S: Final = 600.0
"""Seconds of the same limit if the statement waits for others, or builds an index."""
_LOOK_S: Final = 0.1
_ROOT: Final = ".postgresql/root.crt"
"""File in the home folder in which libpq looks for the certificates that it trusts."""
_ABOUT_TLS: Final = re.compile("ssl|certificate", re.IGNORECASE)
_SAY_SSLMODE: Final = (
    "a server on another host must show a certificate of its name (sslmode=verify-full): state sslrootcert=FILE in the "
    "address for an authority of your own, or sslmode=require or disable if the network is trusted"
)
_LOCK: Final = 0x510_5E57E  # of this program's schema changes, among all advisory locks of the database
_WORDS: Final = {
    "SERIAL_KEY": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "BYTES": "bytea",
    "LOCKING_NEW_ROWS": "FOR UPDATE SKIP LOCKED",
    "LOCKING_REQUESTS": "FOR UPDATE OF r",
    "NAMES_OF_TABLES": "(SELECT tablename AS name FROM pg_tables WHERE schemaname = ANY (current_schemas(false))) t",
}
_SPECIAL: Final = re.compile(r'["\\]')
"""Characters that need a backslash within the quotes of an array's element."""
_LOST_WORK: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InvalidSqlStatementName,
)
_NOW: Final = """
    CREATE FUNCTION store_now() RETURNS double precision LANGUAGE sql VOLATILE
    AS 'SELECT extract(epoch FROM clock_timestamp())::double precision'"""


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that is closed when the server is silent for ``silent_s`` seconds during a wait."""

    silent_s = _SILENT_S
    answers: Callable[[], bool] | None = None
    """Returns whether the server takes another connection; ``None`` for no such check."""

    def wait(self, gen: Generator[Any, Any, T], interval: float = _LOOK_S, *args: Any, **kwargs: Any) -> T:
        """Wait as psycopg does, which looks every ``interval`` seconds whether anything has come."""
        return super().wait(self._unless_silent(gen, interval), interval, *args, **kwargs)

    def _unless_silent(self, gen: Generator[Any, Any, T], interval: float) -> Generator[Any, Any, T]:
        silent_s, probed = 0.0, False
        try:
            wants = next(gen)
            while True:
                ready = yield wants
                # Count silence in looks, not by a clock: time in which this process itself was stopped does not count.
                silent_s = 0.0 if ready else silent_s + interval
                is_away = silent_s > self.silent_s
                if not probed and silent_s > _PROBE_S and self.answers is not None:
                    is_away, probed = is_away or not self.answers(), True
                if is_away:
                    self.close()  # a late result would be taken for the next one
                    raise psycopg.OperationalError(f"the server has sent nothing for {silent_s:.0f} s")
                wants = gen.send(ready)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]


class PostgresSession:
    """The statements of a transaction; see :class:`sloserve.fleet.store.database.Session`."""

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        return self._cursor.execute(_spelt(sql), params).fetchall()

    def change(self, sql: str, **params: Any) -> int:
        return self._cursor.execute(_spelt(sql), params).rowcount

    def given(self, sql: str, params: Sequence[Params]) -> list[tuple[Any, ...]]:
        if not params:
            return []
        statement, arrays_of = _given(sql)
        arrays = {name: array([one[name] for one in params]) for name, array in arrays_of.items()}
        cursor = self._cursor.execute(statement, arrays)
        return cursor.fetchall() if cursor.description else []


class PostgresDatabase:
    """A database in a PostgreSQL server; see :class:`sloserve.fleet.store.database.Database`."""

    def __init__(self, address: str, *, connections: int = CONNECTIONS, schema: str | None = None) -> None:
        """Connect to the server.

        Args:
            address: ``postgresql://...``; what it leaves out comes from the environment (PGPASSWORD, PGPASSFILE, ...).
                A server on another host must show a certificate of its name, unless the address or the environment
                states ``sslmode``. Of several hosts (``postgresql://a,b/db``) the writable one is the store; it is
                looked for again whenever a connection is made.
            connections: The most connections, of which one is kept while there is nothing to do. Another one is made
                for a moment where the server is silent.
            schema: Schema of the database, if it is not the server's default; it is made if it does not exist.

        Raises:
            ConfigError: No server is at this address, it is too old, or it does not let its user set it up.
        """
        self._where, stated = _without_password(address), conninfo_to_dict(address)
        verified = _verified(stated)
        options: Mapping[str, Any] = {
            "autocommit": True,
            # A pooler that gives each transaction any of its connections to the server, as PgBouncer does, would look
            # for a prepared statement where it is not. Nothing else here outlives a transaction either.
            "prepare_threshold": None,
            **{key: value for key, value in _PATIENCE.items() if key not in stated},
            **_writable(stated),
            **verified,
        }
        if schema is not None:
            options = {**options, "options": f"-c search_path={schema}"}
        self._address, self._options = address, options
        self._has_hostaddr = "hostaddr" in stated
        try:
            with _Connection.connect(address, **options) as connection:
                _check_version(connection.info.server_version)
                if schema is not None:
                    connection.execute(
                        psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(psycopg.sql.Identifier(schema))
                    )
        except psycopg.Error as error:
            remedy = f"; {_SAY_SSLMODE}" if verified and _ABOUT_TLS.search(str(error)) else ""
            raise ConfigError(f"the store {self._where} cannot be reached: {_line(error)}{remedy}") from None
        self._pool: ConnectionPool[_Connection] = ConnectionPool(
            address,
            connection_class=_Connection,
            kwargs=dict(options),
            min_size=1,
            max_size=connections,
            timeout=_CONNECT_S,
            # The pool waits longer and longer between attempts, and statements that wait when it gives up begin no new
            # attempt.
            reconnect_timeout=_RETRY_S,
            reconnect_failed=_tried_again,
            open=True,
        )
        try:
            with self.alone() as session:
                # Look for it first: a user that may only change rows may not even replace it by itself.
                if session.rows("SELECT to_regprocedure('store_now()')") == [(None,)]:
                    session.change(_NOW)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[PostgresSession]:
        with self._within(_SILENT_S) as session:
            yield session

    @contextlib.contextmanager
    def _within(self, silent_s: float, *, reading: bool = False) -> Iterator[PostgresSession]:
        with self._errors(), self._pool.connection() as connection:
            connection.silent_s, connection.answers = silent_s, partial(self._answers, connection)
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ if reading else None
            connection.read_only = reading or None
            try:
                with connection.transaction(), connection.cursor(binary=True) as cursor:
                    yield PostgresSession(cursor)
            except psycopg.errors.ReadOnlySqlTransaction:
                connection.close()  # another server is the store now: the pool looks for it
                raise

    def _answers(self, asked: _Connection) -> bool:
        """Return whether the server of this connection accepts another; other servers of the address may well do so."""
        info = asked.info
        here = {"host": info.host, "port": info.port, **({"hostaddr": info.hostaddr} if self._has_hostaddr else {})}
        try:
            psycopg.connect(self._address, **{**self._options, **here, "connect_timeout": 2}).close()
        except psycopg.OperationalError as error:
            return "timeout" not in str(error)  # a server that has no connections left says so
        return True

    @contextlib.contextmanager
    def reading(self) -> Iterator[PostgresSession]:
        with self._within(_SILENT_S, reading=True) as session:
            yield session

    @contextlib.contextmanager
    def alone(self) -> Iterator[PostgresSession]:
        with self._within(_SILENT_ALONE_S) as session:
            session.rows(f"SELECT pg_advisory_xact_lock({_LOCK})")
            yield session

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.DiskFull as error:
            raise StoreFull(f"the disk of the store {self._where} is full; free some of it") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"the store {self._where} cannot be set up: {_line(error)}; run `sloserve fleet upgrade FILE` as the "
                "role that owns its tables, or let this one make them (GRANT CREATE, USAGE ON SCHEMA public)"
            ) from error
        except _LOST_WORK as error:
            raise StoreAway(
                f"the store {self._where} lacks what a member has made in it: {_line(error)}; if it was restored or "
                "replaced, start the members again"
            ) from error
        # A server that another has replaced, and that may be read alone, will be gone from this address.
        except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction, PoolTimeout) as error:
            raise StoreAway(f"the store {self._where} does not respond: {_line(error)}") from error

    def close(self) -> None:
        self._pool.close()


def _tried_again(pool: ConnectionPool[Any]) -> None:
    """Make a pool that gave up connecting begin again while statements wait; they would wait until they time out."""
    if pool.get_stats().get("requests_waiting"):
        pool.check()


@functools.cache
def _given(sql: str) -> tuple[Any, Mapping[str, Callable[[Sequence[Any]], Any]]]:
    """Return a statement with an array for each column of ``GIVEN``, and what makes each array of its values."""
    ((word, columns),) = GIVEN.findall(sql)
    types = {name: kind for name, _, kind in (column.strip().partition(" ") for column in columns.split(","))}
    arrays = ", ".join(f"%({name}){'b' if kind == 'BYTES' else 's'}::{kind}[]" for name, kind in types.items())
    table = f"FROM UNNEST({arrays}) AS given({', '.join(types)})" if word == "FROM" else f"ANY({arrays})"
    return _spelt(GIVEN.sub(lambda _: table, sql)), {name: _ARRAYS[kind] for name, kind in types.items()}


def text_array(values: Sequence[str | None]) -> str:
    """Return the values as PostgreSQL reads them as an array, ten times as fast as psycopg writes a list of text."""
    return "{" + ",".join(["NULL" if value is None else f'"{_escaped(value)}"' for value in values]) + "}"


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", value) if '"' in value or "\\" in value else value


def _number_array(kind: type[int | float], values: Sequence[float | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else repr(kind(value)) for value in values]) + "}"


_ARRAYS: Final[Mapping[str, Callable[[Sequence[Any]], Any]]] = {
    "text": text_array,
    "bigint": partial(_number_array, int),
    "double precision": partial(_number_array, float),
    "BYTES": list,
}


@functools.lru_cache(1_024)
def _spelt(sql: str) -> Any:
    sql = re.sub("|".join(_WORDS), lambda word: _WORDS[word.group()], sql)
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql)


def _verified(stated: Mapping[str, Any]) -> dict[str, str]:
    """Return options that make a server on another host show a certificate of its name.

    They are empty where the address, parsed into ``stated``, or the environment says how to connect.
    """
    hosts = str(stated.get("host") or stated.get("hostaddr") or os.environ.get("PGHOST") or "").split(",")
    if "sslmode" in stated or "service" in stated or "PGSSLMODE" in os.environ or all(map(_is_here, hosts)):
        return {}
    at_home = home()
    has_root = "sslrootcert" in stated or "PGSSLROOTCERT" in os.environ
    has_root = has_root or (at_home is not None and (at_home / _ROOT).exists())
    return {"sslmode": "verify-full"} | ({} if has_root else {"sslrootcert": "system"})


def _writable(stated: Mapping[str, Any]) -> dict[str, str]:
    """Return options that choose the writable one of several servers.

    They are empty where the address, parsed into ``stated``, or the environment says which server to choose.
    """
    hosts = str(stated.get("host") or stated.get("hostaddr") or os.environ.get("PGHOST") or "")
    is_stated = "target_session_attrs" in stated or "PGTARGETSESSIONATTRS" in os.environ
    return {} if is_stated or "," not in hosts else {"target_session_attrs": "read-write"}


def _is_here(host: str) -> bool:
    """Return whether the host is a socket or an address of this machine alone."""
    if not host or host == "localhost" or host[0] in "/@":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_version(version: int) -> None:
    if version < _OLDEST:
        raise ConfigError(f"PostgreSQL {version // 10000} is too old for the store; 14 is the oldest that works")


def _without_password(address: str) -> str:
    try:
        parts = conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"the store's address cannot be read: {_line(error)}") from None
    hosts, ports = (str(parts.get(name) or "").split(",") for name in ("host", "port"))
    ports = ports * len(hosts) if len(ports) == 1 else ports
    shown = ",".join(f"{host or 'localhost'}:{port or 5432}" for host, port in zip(hosts, ports, strict=False))
    return f"postgresql://{shown}/{parts.get('dbname', '')}"


def _line(error: Exception) -> str:
    return lines_of(str(error))[0] if str(error) else type(error).__name__
