import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from sloserve.fleet.store import store as store_module
from sloserve.fleet.store.database import Database
from sloserve.fleet.store.migrations import migrate
from sloserve.fleet.store.sqlite import SqliteDatabase
from tests.fleet.store.databases import Store, postgres, server, sqlite

_NUMBER = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def _tables_are_made_once() -> Iterator[None]:
    """A new store in a file becomes a copy of the first: sixty statements take it longer than most tests need it."""
    made: list[sqlite3.Connection] = []

    def copied(database: Database) -> None:
        if not isinstance(database, SqliteDatabase):
            migrate(database)
            return
        with database.alone() as session:
            is_new = not session.rows("SELECT 1 FROM sqlite_master")
        if is_new and made:
            made[0].backup(database._writer)
        migrate(database)
        if is_new and not made:
            made.append(sqlite3.connect(":memory:", check_same_thread=False))
            database._writer.backup(made[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "migrate", copied)
        yield
    for connection in made:
        connection.close()


@pytest.fixture(scope="session")
def postgres_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("postgres")) as address:
        yield address


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        with sqlite(tmp_path) as opened:
            yield opened
    else:
        with postgres(request.getfixturevalue("postgres_address"), f"test_{os.getpid()}_{next(_NUMBER)}") as opened:
            yield opened
