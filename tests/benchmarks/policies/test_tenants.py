"""The benchmark of tenants of one engine: which cells are run, and what the file keeps."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.policies import tenants
from benchmarks.policies.tenants import SETTINGS, in_order
from benchmarks.publish import read_json, write_json

Ran = list[tuple[str, str, float, int]]
OLD = {
    "setting": "burst",
    "profile": "h100-llama3-8b",
    "load": 1.2,
    "seed": 0,
    "policy": "stock",
    "shares": False,
    "old": True,
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Runs the benchmark with runs that measure nothing, and returns the cells that it ran, in order."""
    out = tmp_path / "tenants.json.gz"
    write_json(out, {"commit": "old", "runs": [OLD]})

    def run(*arguments: str, last: int = 99) -> Ran:
        found: Ran = []

        def runs(
            setting: tenants.Setting, load: float, seed: int, _: Any, profile: str, shares_only: bool
        ) -> Iterator[dict[str, Any]]:
            if len(found) == last:
                raise KeyboardInterrupt
            found.append((next(name for name in SETTINGS if SETTINGS[name] is setting), profile, load, seed))
            if not shares_only:
                yield {"policy": "stock", "shares": False}
            yield {"policy": "auto", "shares": True}

        monkeypatch.setattr(tenants, "runs", runs)
        monkeypatch.setattr(sys, "argv", ["tenants", "--out", str(out), "--profiles", "h100-llama3-8b", *arguments])
        tenants.main()
        return found

    return run


def test_missing_cells_are_run_seed_by_seed_and_stand_beside_the_rows_of_the_file(
    ran: Callable[..., Ran], tmp_path: Path
) -> None:
    named = ("--settings", "reasoning,burst", "--loads", "1.2,0.7", "--seeds", "2")
    with pytest.raises(KeyboardInterrupt):
        ran(*named, last=2)
    rows = read_json(tmp_path / "tenants.json.gz")["runs"]
    assert rows[0] == OLD and [row["load"] for row in rows[1:]] == [0.7, 0.7, 1.2, 1.2]
    of_seed_1 = [("reasoning", 1.2), ("reasoning", 0.7), ("burst", 1.2), ("burst", 0.7)]
    profile = OLD["profile"]
    assert ran(*named) == [("burst", profile, 0.7, 0), *((name, profile, load, 1) for name, load in of_seed_1)]
    found = read_json(tmp_path / "tenants.json.gz")
    assert found["earlier_commits"] == ["old"] and found["runs"].count(OLD) == 1 and len(found["runs"]) == 15
    assert found["runs"] == sorted(found["runs"], key=in_order)


@pytest.mark.parametrize("again", ["all", "shares"])
def test_a_run_takes_the_place_of_the_same_one_before(ran: Callable[..., Ran], tmp_path: Path, again: str) -> None:
    named = ("--settings", "burst", "--loads", "1.2", "--seeds", "1")
    assert ran(*named) == []
    assert len(ran(*named, "--again", again)) == len(ran(*named, "--again", again)) == 1
    stock, shares = read_json(tmp_path / "tenants.json.gz")["runs"]
    assert (stock["policy"], shares["policy"], shares["shares"]) == ("stock", "auto", True)
    assert (stock == OLD) is (again == "shares")


def test_no_run_with_shares_alone_makes_a_cell(ran: Callable[..., Ran]) -> None:
    assert ran("--settings", "burst", "--loads", "2", "--seeds", "1", "--again", "shares") == []
