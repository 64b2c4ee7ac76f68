"""The phases of a large batch: a small run goes through all of them, and the published table follows from its runs."""

from collections.abc import Callable

import pytest

from benchmarks.fleet.batch_phases import PHASES, table
from benchmarks.publish import RESULTS, read_json

pytestmark = pytest.mark.slow


def test_a_small_batch_goes_through_all_phases(printed: Callable[..., str]) -> None:
    lines = printed("fleet.batch_phases", "--quick").splitlines()
    assert [line.rsplit(maxsplit=3)[0] for line in lines[1:]] == list(PHASES)


def test_the_table_follows_from_the_runs() -> None:
    published = read_json(RESULTS / "fleet_batch_phases.json.gz")
    assert table(published["runs"]).splitlines() == published["table"]
