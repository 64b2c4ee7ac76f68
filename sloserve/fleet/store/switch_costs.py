"""Measured costs of model switches, by kind of device: a new host begins with what others have measured."""

from dataclasses import dataclass
from typing import Final

from sloserve.fleet.store.database import Database

LATEST: Final = 0.3
"""Least weight of the latest measurement in a mean."""


@dataclass(frozen=True, slots=True)
class StoredCost:
    """A measured step of switches, as the agent names it.

    Args:
        mean_s: Mean seconds over all hosts of the kind.
        times: Number of measurements.
    """

    model: str
    step: str
    mean_s: float
    times: int


class SwitchCosts:
    """Mean costs of one store. Every method is one transaction; many threads may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, device: str, model: str, step: str, seconds: float) -> None:
        """Record that a host of this device kind took ``seconds`` for a step."""
        with self._database.transaction() as session:
            session.change(_ADD, device=device, model=model, step=step, seconds=seconds, latest=LATEST)

    def of(self, device: str) -> list[StoredCost]:
        """Return the costs of one kind of device, with the latest measured one last."""
        with self._database.reading() as session:
            found = session.rows(_OF, device=device)
        return [StoredCost(model, step, float(mean_s), int(times)) for model, step, mean_s, times in found]


_ADD: Final = """
    INSERT INTO switch_cost (device, model, step, mean_s, times, seen_s)
    VALUES (:device, :model, :step, :seconds, 1, store_now())
    ON CONFLICT (device, model, step) DO UPDATE SET
        mean_s = switch_cost.mean_s + (excluded.mean_s - switch_cost.mean_s)
            * CASE WHEN 1.0 / (switch_cost.times + 1) > :latest THEN 1.0 / (switch_cost.times + 1) ELSE :latest END,
        times = switch_cost.times + 1,
        seen_s = excluded.seen_s"""
_OF: Final = """
    SELECT model, step, mean_s, times FROM switch_cost WHERE device = :device ORDER BY seen_s, model, step"""
