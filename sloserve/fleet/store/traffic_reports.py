"""Reports of gateways on their recent requests, one row a gateway; the leading planner reads them."""

from typing import Final

from sloserve.fleet.store.database import Database

KEPT_S: Final = 600.0
"""Seconds after which a report is too old to be read, and is removed: its gateway has gone."""


class TrafficReports:
    """Reports of one store. Every method is one transaction; many threads may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, gateway: str, report: str) -> None:
        """Put a gateway's report in the place of its last one, and remove reports that are too old."""
        with self._database.transaction() as session:
            session.change(_WRITE, gateway=gateway, report=report)
            session.change("DELETE FROM traffic WHERE at_s < store_now() - :kept_s", kept_s=KEPT_S)

    def read(self) -> list[tuple[str, float]]:
        """Return the report of each gateway with its age in seconds, in the order of the gateways' names."""
        with self._database.reading() as session:
            found = session.rows(
                "SELECT report, store_now() - at_s FROM traffic WHERE at_s >= store_now() - :kept_s ORDER BY gateway",
                kept_s=KEPT_S,
            )
        return [(str(report), float(age_s)) for report, age_s in found]


_WRITE: Final = """
    INSERT INTO traffic (gateway, report, at_s) VALUES (:gateway, :report, store_now())
    ON CONFLICT (gateway) DO UPDATE SET report = excluded.report, at_s = excluded.at_s"""
