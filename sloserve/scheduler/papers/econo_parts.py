"""Econo with single parts taken away: what its order, its look ahead and pausing contribute.

Source: EconoServe, Sec. 3; pausing is its offload-free preemption. None of these options is worth setting on a server
(docs/benchmarks/econo.md, "Parts and rivals").
"""

from dataclasses import dataclass, replace
from typing import Final

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.rows import Rows
from sloserve.lso.decode_first import unfinished
from sloserve.lso.pausing import short_of_blocks
from sloserve.scheduler.econo.policy import Econo
from sloserve.scheduler.econo.victim import ServiceOrder
from sloserve.scheduler.policy import Plan, Snapshot

ORDERS: Final = ("stretch", "fcfs")


class EconoParts(Econo):
    """Econo with options for its order, its prediction of KV usage and pausing."""

    needs = Econo.needs | {"pausable"}

    @dataclass(frozen=True)
    class Settings(Econo.Settings):
        order: str = "stretch"
        """``stretch`` or ``fcfs``"""
        foresee: bool = True
        """whether to look ahead at all"""
        pause: bool = False
        """whether requests without a next block are paused rather than preempted"""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.order not in ORDERS:
                raise ValueError(f"order: {self.order!r} is not one of {', '.join(ORDERS)}")

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        made = super().plan(snapshot, now_s)
        if made is Plan.IDENTITY:
            return made
        if not self.settings.foresee:
            made = replace(made, max_running=None)
        return replace(made, pause=self._pause(snapshot, made)) if self.settings.pause else made

    def _key(self, rows: Rows, slots: IntArray, work: FloatArray, target_s: FloatArray) -> FloatArray:
        by_arrival: FloatArray = rows.arrival_s[slots]
        return by_arrival if self.settings.order == "fcfs" else super()._key(rows, slots, work, target_s)

    def _room(self, snapshot: Snapshot, waiting: ServiceOrder, running: ServiceOrder) -> tuple[int | None, int]:
        return super()._room(snapshot, waiting, running) if self.settings.foresee else (None, 0)

    def _pause(self, snapshot: Snapshot, made: Plan) -> IntArray:
        rows, stay = snapshot.rows, made.running
        assert stay is not None
        return stay[
            short_of_blocks(
                rows.computed_tokens[stay],
                ~unfinished(rows, stay),
                rows.pausable[stay],
                layout=snapshot.engine.layout,
                decode_tokens=snapshot.engine.decode_tokens,
                free_blocks=snapshot.engine.free_blocks,
            )
        ]
