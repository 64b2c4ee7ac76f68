"""Fleets with faults, from seeds: nothing lost, nothing twice, nothing stuck. ``make whole`` runs ten minutes of them.

``SLOSERVE_FAULTS_S`` says how long that is, in seconds of CPU time; ``SLOSERVE_FAULTS_SEED`` where it begins. Python
needs greenlet for them, which ``make env`` installs.
"""

import os
from pathlib import Path

import pytest

import sloserve.fleet
from tests.fleet.faults.mutants import MUTANTS
from tests.fleet.faults.runs import outcome_of, run_seeds
from tests.whole import sampled

SECONDS = float(os.environ.get("SLOSERVE_FAULTS_S", "600"))
SEED = int(os.environ.get("SLOSERVE_FAULTS_SEED", "0"))
_HOURS = 0.02


def test_each_planted_fault_changes_one_place() -> None:
    """Else a run of the planted faults would measure the product as it is."""
    folder = Path(sloserve.fleet.__path__[0])
    for mutant in MUTANTS:
        text = (folder / f"{mutant.module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert text.count(mutant.before) == 1 and mutant.after != mutant.before, mutant.name
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", sampled(range(6), range(3)))
def test_a_fleet_survives_its_faults(seed: int) -> None:
    outcome = outcome_of(seed, _HOURS)
    assert not outcome.broken, "\n".join([*outcome.broken, f"repeat it: {outcome.command}"])
    assert outcome.counts["lines begun"] > 5 and outcome.simulated_h > 0.04


@pytest.mark.slow
def test_a_seed_is_repeated_exactly() -> None:
    one, other = outcome_of(4, _HOURS), outcome_of(4, _HOURS)
    assert one.digest == other.digest and one.events == other.events


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS + 600.0)
def test_ten_minutes_of_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        assert run_seeds(range(SEED, SEED + 100_000), 0.25, SECONDS / 60.0) == 0
