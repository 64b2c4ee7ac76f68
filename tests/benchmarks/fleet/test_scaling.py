"""Hosts that come and go in virtual time: a small day."""

from collections.abc import Callable

import pytest

from benchmarks.fleet.scaling import DAY_S, PEAK_RPS, QUICK_S, day

pytestmark = pytest.mark.slow


def test_hosts_come_and_go(printed: Callable[..., str]) -> None:
    *runs, _, want, fixed = printed("fleet.scaling", "--quick").splitlines()
    assert len(runs) == 2 and all("'lost': 0" in run for run in runs)
    assert want.split()[0] == "want" and float(want.split()[-3]) > 3.0, "more hosts than at the start"
    assert fixed.startswith("fixed 3") and fixed.split()[-3:] == ["3.0", f"{float(fixed.split()[-2]):.2f}", "100"]


def test_a_day_has_its_peak_in_the_afternoon() -> None:
    arrivals_s = [one.arrival_s for one in day(0, DAY_S)]
    hours = [sum(h / 24 <= at_s / DAY_S < (h + 3) / 24 for at_s in arrivals_s) for h in (2, 14)]
    assert arrivals_s == sorted(arrivals_s) and arrivals_s[-1] < DAY_S
    assert hours[1] > 4 * hours[0] and hours[1] > 0.9 * PEAK_RPS * DAY_S / 8
    assert day(0, QUICK_S) != day(1, QUICK_S)
