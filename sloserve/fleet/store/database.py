"""The one SQL dialect in which the store is written, and what a database must do to speak it.

Parameters are ``:name``. ``store_now()`` is the store's clock in epoch seconds: every lease and deadline is decided by
it, so hosts with different clocks agree. What the two databases spell differently is a word in capitals that each
replaces: ``SERIAL_KEY``, ``BYTES``, ``LOCKING_NEW_ROWS`` (take rows that no other transaction is taking),
``LOCKING_REQUESTS`` (of the table ``r``, once no other transaction changes them), ``NAMES_OF_TABLES`` (rows with the
``name`` of each table). An index is searched for ``(SELECT store_now())``, the time when the statement began; for
``store_now()`` PostgreSQL asks it of each row.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

Params = Mapping[str, Any]
GIVEN: Final = re.compile(r"\b(FROM|ANY) GIVEN\(([^()]+)\)")
"""What :meth:`Session.given` replaces, and the names and types of its columns."""


class Session(Protocol):
    """Statements of one transaction."""

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""

    def change(self, sql: str, **params: Any) -> int:
        """Run a statement and return how many rows it changed."""

    def given(self, sql: str, params: Sequence[Params]) -> list[tuple[Any, ...]]:
        """Run a statement once for many rows of parameters, and return what its RETURNING lists for each changed row.

        It has ``FROM GIVEN(name type, ...)`` once, a table with a row for each of ``params``, of which each column is
        written as ``given.name``; or ``= ANY GIVEN(name type)``, where one column is compared alone. PostgreSQL runs it
        with an array for each column, SQLite once for each row. No order among rows is kept, except that they are
        inserted in this order; so a statement must not change one row of another table for two of them. RETURNING lists
        columns that have the values of columns of the same names in ``params``. The types are ``text``, ``bigint``,
        ``double precision`` and ``BYTES``.
        """


class Database(Protocol):
    """Connections to one store, for use by many threads.

    Each of the three ways to run statements raises StoreAway where the database cannot be reached, StoreFull where its
    disk is full, and ConfigError where its user lacks a right; nothing is changed then.
    """

    def transaction(self) -> AbstractContextManager[Session]:
        """Begin a transaction: it is committed durably when the block is left, and rolled back if the block raises."""

    def reading(self) -> AbstractContextManager[Session]:
        """Begin reading: the block sees one state of the store, changes nothing, and keeps no writer waiting."""

    def alone(self) -> AbstractContextManager[Session]:
        """Begin a transaction that only one process at a time may hold."""

    def close(self) -> None: ...
