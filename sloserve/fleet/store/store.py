"""The store of a fleet, in SQLite or PostgreSQL as its address says: requests, batches, members, costs of switches."""

from pathlib import Path
from typing import Final
from urllib.parse import unquote

from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.extras import not_installed
from sloserve.fleet.store.batches import Batches
from sloserve.fleet.store.database import Database
from sloserve.fleet.store.members import Members
from sloserve.fleet.store.migrations import migrate
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.switch_costs import SwitchCosts

_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgresql://", "postgres://")


class Store:
    """Everything that a fleet must not lose, in one database of the newest schema."""

    def __init__(self, database: Database) -> None:
        """Raises: ConfigError where a newer sloserve has used the database, or its user may not upgrade it."""
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        self.database = database
        self.requests = Requests(database)
        self.members = Members(database)
        self.batches = Batches(database)
        self.switch_costs = SwitchCosts(database)

    def now_s(self) -> float:
        """Epoch seconds by the store's clock, by which all of its times are."""
        with self.database.reading() as session:
            return float(session.rows("SELECT store_now()")[0][0])

    def bytes_of(self, tenant: str) -> int:
        """What counts in a tenant's quota: bytes of its files, and of results that stand in no file yet."""
        return self.batches.bytes_of(tenant) + self.requests.result_bytes(tenant)

    def files_mark(self, new: str | None) -> str | None:
        """The mark of the files of this fleet, which is ``new`` where there was none; ``None`` where neither is."""
        with self.database.transaction() as session:
            if new is not None:
                session.change("INSERT INTO files_mark VALUES (1, :mark) ON CONFLICT (one) DO NOTHING", mark=new)
            found = session.rows("SELECT mark FROM files_mark")
        return str(found[0][0]) if found else None

    def close(self) -> None:
        self.database.close()


def open_store(address: str, clock: Clock | None = None) -> Store:
    """The store at ``sqlite:PATH`` or ``postgresql://...``, made if it is not there.

    clock: for SQLite; a server has one of its own.
    Raises: ConfigError where it cannot be opened.
    """
    if address.startswith(_SQLITE):
        return Store(SqliteDatabase(Path(unquote(address.removeprefix(_SQLITE))), clock))
    if address.startswith(_POSTGRES):
        try:
            from sloserve.fleet.store.postgres import PostgresDatabase
        except ImportError:
            raise not_installed("a store in PostgreSQL", "psycopg", "fleet") from None
        return Store(PostgresDatabase(address))
    raise ConfigError(f"store: {address.split(':')[0]!r} is not a kind of store; give sqlite:PATH or postgresql://...")
