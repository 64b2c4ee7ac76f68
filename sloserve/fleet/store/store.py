"""The store of a fleet, in SQLite or PostgreSQL as its address says: requests, batches, members, costs, use."""

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
from sloserve.fleet.store.shared_sums import SharedSums
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.switch_costs import SwitchCosts
from sloserve.fleet.store.traffic_reports import TrafficReports
from sloserve.fleet.store.usage import Usage

_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgresql://", "postgres://")


class Store:
    """Everything that a fleet must not lose, in one database of the newest schema."""

    def __init__(self, database: Database) -> None:
        """Open the store on a database and bring its schema up to date.

        Raises: ConfigError where a newer sloserve has used the database, or its user may not upgrade it.
        """
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        self.database = database
        self.requests = Requests(database)
        self.shared_sums = SharedSums(database, self.requests)
        self.members = Members(database)
        self.batches = Batches(database)
        self.switch_costs = SwitchCosts(database)
        self.usage = Usage(database)
        self.traffic = TrafficReports(database)

    def now_s(self) -> float:
        """Return the epoch seconds of the store's clock, which sets all of its times."""
        with self.database.reading() as session:
            return float(session.rows("SELECT store_now()")[0][0])

    def bytes_of(self, tenant: str) -> int:
        """Return the bytes that count in a tenant's quota: its files, and results that are in no file yet."""
        return self.batches.bytes_of(tenant) + self.requests.result_bytes(tenant)

    def files_mark(self, new: str | None) -> str | None:
        """Return the mark of this fleet's files, set to ``new`` if there was none; ``None`` if neither exists."""
        with self.database.transaction() as session:
            if new is not None:
                session.change("INSERT INTO files_mark VALUES (1, :mark) ON CONFLICT (one) DO NOTHING", mark=new)
            found = session.rows("SELECT mark FROM files_mark")
        return str(found[0][0]) if found else None

    def close(self) -> None:
        self.database.close()


def open_store(address: str, clock: Clock | None = None) -> Store:
    """Open the store at ``sqlite:PATH`` or ``postgresql://...``, and make it if it does not exist.

    Only SQLite uses ``clock``: a server has a clock of its own.

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
