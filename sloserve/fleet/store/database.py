"""The one SQL dialect in which the store is written, and what a database must do to speak it.

Parameters are ``:name``. ``store_now()`` is the store's clock in epoch seconds: every lease and deadline is decided by
it, so hosts whose clocks differ agree. What the two databases spell differently is a word in capitals that each
replaces: ``SERIAL_KEY``, ``BYTES``, ``LOCKING_NEW_ROWS`` (take rows that no other transaction is taking),
``LOCKING_REQUESTS`` (of the table ``r``, once no other transaction changes them), ``NAMES_OF_TABLES`` (rows with the
``name`` of each table). An index is searched for
``(SELECT store_now())``, the time when the statement began; for ``store_now()`` PostgreSQL asks it of each row.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Params = Mapping[str, Any]


class Session(Protocol):
    """Statements of one transaction."""

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        """What a statement returns."""

    def change(self, sql: str, **params: Any) -> int:
        """How many rows a statement changed."""

    def each(self, sql: str, params: Sequence[Params]) -> list[int]:
        """How many rows a statement changed with each of ``params``."""


class Database(Protocol):
    """Connections to one store; may be used by many threads.

    Each of the three ways to run statements raises StoreAway where the database cannot be reached, StoreFull where its
    disk is full, and ConfigError where its user lacks a right; nothing is changed then.
    """

    def transaction(self) -> AbstractContextManager[Session]:
        """Committed, and safe from a power cut, when the block is left; rolled back if it raises."""

    def reading(self) -> AbstractContextManager[Session]:
        """Sees one state of the store, changes nothing, and keeps no writer waiting."""

    def alone(self) -> AbstractContextManager[Session]:
        """A transaction that only one process at a time gets."""

    def tell(self) -> None:
        """Ends calls of :meth:`wait`. A hint: it may get lost."""

    def wait(self, limit_s: float) -> None:
        """Returns when there was a :meth:`tell`, after ``limit_s`` at the latest. It may return for no reason."""

    def close(self) -> None: ...
