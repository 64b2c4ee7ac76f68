"""The published tables of what QLM's virtual queues gain follow from the published runs."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.fleet.cells import Cell, Plant, Row, run
from benchmarks.fleet.fleet_tables import gains, table
from benchmarks.publish import RESULTS, RUNS, read_runs


def rows_at(policy: str, value: float, carried: dict[int, float]) -> list[Row]:
    """Rates of 4 to 64; all are in time up to what is carried by the seed."""
    return [
        {"policy": policy, "value": value, "seed": seed, "rps": rps, "in_time": 1.0 if rps <= most else 0.8}
        for seed, most in carried.items()
        for rps in (4.0, 8.0, 16.0, 32.0, 64.0)
    ]


@pytest.mark.slow
def test_the_tables_follow_from_the_runs() -> None:
    sections = import_module("benchmarks.fleet.fleet_qlm").SECTIONS
    folders = sorted(RESULTS.glob("fleet-qlm-*"))
    assert len(folders) > 5
    for folder in folders:
        name = folder.name.removeprefix("fleet-qlm-")
        assert sections[name].table(read_runs(folder / RUNS)) == (folder / "table.txt").read_text(), name


def test_what_mixed_devices_add_is_relative_to_one_kind_alone() -> None:
    """Twice the rate on each kind alone, four times on the mixed ones: a gain of 300 % is 3 times one of 100 %."""
    rows = []
    for value, most in ((0.0, 16.0), (1.0, 32.0), (2.0, 32.0), (4.0, 16.0)):
        rows += rows_at("ours", value, {0: most, 1: most})
        rows += rows_at("random", value, {0: 8.0, 1: 8.0})
    (_, heading, ours) = gains("A10s", rows, "random").splitlines()
    assert heading.split()[-4:] == ["mixed", "/", "one", "kind"]
    assert ours.split() == ["ours", "100", "300", "300", "100", "3.0"]


def test_a_table_tells_what_was_tuned_and_leaves_out_what_rows_do_not_have() -> None:
    rows = [row | {"tuned": 64.0, "interactive": 0.5} for row in rows_at("shepherd/stock", 1.0, {0: 64.0})]
    text = table("why", "x", rows, ("interactive", "swaps_per_request"), None)
    assert "tuned: shepherd/stock 64" in text and "50.0" in text and "swaps" not in text


def test_instances_of_two_widths_are_made() -> None:
    sizes = import_module("benchmarks.fleet.fleet_qlm").SIZES
    fleet = sizes.fleet()
    hosts = {host.name: host for _, host in fleet.instances}
    assert {name: len(host.instances) for name, host in hosts.items()} == {"node-a100": 2, "node-a100x4": 1}
    assert set(fleet.models_on(hosts["node-a100x4"])) == {"write", "medical"}


@pytest.mark.slow
def test_a_run_tells_whether_operations_did_anything() -> None:
    plant = Plant({"chat": {"profile": "a100-opt-13b-12gb", "share": 1.0}}, {"a100": 1}, {"drain_max_s": 20.0})
    cell = Cell(plant, "req/s", 10.0, workload="w-b", rps=10.0, seconds=12.0)
    with_swap, without = (run(cell, name, 0) for name in ("qlm-paper/auto", "qlm-paper:swap=false/auto"))
    assert with_swap["swaps_per_request"] > without["swaps_per_request"] == 0.0
    assert without["preemptions_per_request"] > 0.0


def test_long_deadlines_have_long_runs() -> None:
    module = import_module("benchmarks.fleet.fleet_qlm")
    cells = module.at_slo_scale(replace(module.SHORTER, seconds=120.0), (1.0, 11.0))
    assert [cell.seconds for cell in cells] == [120.0, 330.0]


@pytest.mark.slow
def test_every_section_has_a_plot_with_a_line_of_its_own_for_each_name(tmp_path: Path) -> None:
    figures = import_module("benchmarks.fleet.fleet_figure")
    sections = import_module("benchmarks.fleet.fleet_qlm").SECTIONS
    most = max(len(section.names) for section in sections.values() if section.rates)
    assert most <= len(set(figures.COLOURS)) + 1 and most <= len(set(figures.MARKERS)) + 1
    rows = [row for name in sections["throughput"].names for row in rows_at(name, 0.1, {0: 8.0, 1: 16.0})]
    figures.draw(sections["throughput"], rows, tmp_path / "attainment.png", "made here")
    assert (tmp_path / "attainment.png").stat().st_size > 1000
