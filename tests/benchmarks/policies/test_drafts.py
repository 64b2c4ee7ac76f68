"""The campaign with drafts: what its rows say, and that "before" sees what was seen before."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.policies.drafts import (
    BEFORE,
    COUNTERS,
    FIGURES,
    STEP_TIMES,
    WORKLOADS,
    DraftCell,
    Found,
    before,
    experiment,
    rows_of,
)
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.model.planned import PlannedScheduler
from sloserve.sim.model.step import StepBatch

CELL = DraftCell("reasoning", 0.75, 3)


def found(stock: float, auto: float) -> Found:
    plain = dict.fromkeys((*FIGURES, *COUNTERS, "accepted_share"), 1.0)
    return {(1.3, name): plain | {"slo_attainment": x} for name, x in (("stock", stock), ("auto", auto))}


def test_differences_are_paired_by_seed() -> None:
    stock, auto = rows_of(CELL, [found(0.2, 0.5), found(0.6, 0.9), found(0.4, 0.7)])
    assert stock["attainment_less_stocks"] == stock["attainment_half_95"] == 0.0
    assert (auto["slo_attainment"], auto["attainment_less_stocks"], auto["attainment_half_95"]) == (0.7, 0.3, 0.0)
    assert (auto["drafts"], auto["load"], auto["tokens_over_stock"]) == (3, 1.3, 1.0)


def test_before_decodes_with_drafts_were_chunks_that_brought_one_token() -> None:
    batch = StepBatch(
        requests=np.array([0, 1]), tokens=np.array([4, 4]), computed=np.array([100, 200]),
        samples=np.array([True, True]), num_tokens=8, drafts=np.array([3, 3]),
    )  # fmt: skip
    seen = PlannedScheduler._load_seen
    scheduler = object.__new__(PlannedScheduler)
    load = PlannedScheduler._load_seen(scheduler, batch)
    port = object.__new__(ModelPort)
    port._num_drafts = 3
    with before(BEFORE):
        old = PlannedScheduler._load_seen(scheduler, batch)
        assert port.num_drafts == 0
    with before(STEP_TIMES):
        assert PlannedScheduler._load_seen(scheduler, batch) == load and port.num_drafts == 0
    assert port.num_drafts == 3
    assert (load.decode_seqs, load.draft_tokens, load.prefill_tokens) == (2, 6, 0)
    assert (old.decode_seqs, old.draft_tokens, old.prefill_tokens) == (0, 0, 8)
    assert PlannedScheduler._load_seen is seen


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_cell_can_be_built_without_a_trace(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLOSERVE_DATA", raising=False)
    ours = experiment(DraftCell(workload, 0.9, 5), 300, (1.0,), 30, tmp_path)
    assert ours.engine.drafts is not None and ours.engine.drafts.num_tokens == 5
