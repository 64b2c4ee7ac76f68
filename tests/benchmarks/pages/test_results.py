"""Published results become frames and texts as tables show them: means, pairs and intervals of few numbers."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.pages import results
from benchmarks.pages.markdown import frame_table, typeset
from benchmarks.pages.papers import fmt
from benchmarks.publish import RUNS, save_text, write_json

pytestmark = pytest.mark.slow

CSV = """policy,load,seed,in_time,split/waiting_s
stock,1,0,0.50,
stock,1,1,0.60,
auto,1,1,0.90,2
auto,1,0,0.70,4
auto,2,0,0.10,
auto,2,1,,
"""
PRINTED = """in time   load 1   load 2
auto      80 +- 3  -1.5

QoE
auto      0.9      0.8
"""
MARKDOWN = """About these cells

| cell | met |
| --- | --- |
| 1: code, short | -1.5 |

| cell | QoE |
| --- | --- |
| 2 | 0.9 |
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    save_text(tmp_path / "few" / RUNS, CSV)
    save_text(tmp_path / "few" / "table.txt", PRINTED)
    save_text(tmp_path / "cells" / "table.txt", MARKDOWN)
    each = [{"policy": "auto", "met": [0.5, 1.0], "of": {"steps": 3}}, {"policy": "edf", "met": [0.25, 0.5]}]
    write_json(tmp_path / "found.json.gz", {"rows": each, "cases": [{"runs": each[1:]}]})
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    for cached in (results.saved, results._frame):
        cached.cache_clear()
    yield tmp_path
    for cached in (results.saved, results._frame):
        cached.cache_clear()


def test_means_are_of_the_chosen_rows_by_policy_and_leave_out_what_is_missing() -> None:
    mean = results.means("few", load=1)
    assert mean.in_time.to_dict() == pytest.approx({"stock": 0.55, "auto": 0.8})
    assert mean["split/waiting_s"]["auto"] == 3 and pd.isna(mean["split/waiting_s"]["stock"])
    assert results.means("few", by=["policy", "load"]).in_time["auto", 2] == 0.1
    with pytest.raises(ValueError, match="few has no row in which .*'load': 3"):
        results.means("few", load=3)


def test_a_tie_is_not_rounded_by_the_order_of_rows() -> None:
    assert sum([0.1] * 10) / 10 != results.exact_mean(pd.Series([0.1] * 10).to_numpy()) == 0.1


def test_rows_of_json_are_read_with_nested_values_and_the_mean_of_lists() -> None:
    assert results.rows("found").met.tolist() == [0.75, 0.375]
    assert results.rows("found")["of/steps"][0] == 3
    assert results.rows("found", "cases", 0, "runs", policy="edf").met.tolist() == [0.375]
    assert results.saved("found")["rows"][0]["met"] == [0.5, 1.0]


def test_differences_are_paired_by_seed() -> None:
    """They are 0.2 and 0.3, of which half the interval is 12.706 x 0.05; each mean alone has a wider one."""
    assert results.compared("few", "in_time", to="stock", load=1).to_dict() == {
        "stock": "55.0",
        "auto": "80.0 (+25.0 ± 63.5)",
    }
    values = results.by_seed("few", "in_time", load=1)["auto"]
    assert results.around(values, ".1f", ".1f", scale=100) == "80.0 ± 127.1"
    assert results.span(values, ".2f") == "-0.47 to 2.07"
    assert results.of_stock(results.means("few", load=1).in_time)["auto"] == "+45.5%"


def test_loads_that_a_policy_carries_are_written_with_their_bound_and_interval() -> None:
    exact = {"value": 1.5, "bound": "exact", "low": 1.26, "high": 1.74}
    least = {"value": 2.5, "bound": "at least", "low": None, "high": None}
    found = results.capacities(
        [{"policy": "auto", "load": exact, "ratio": exact}, {"policy": "edf", "load": least, "ratio": None}]
    )
    assert found.loc["auto"].to_dict() == {"load": "1.50", "ratio": "1.50 (1.3 to 1.7)"}
    assert found.loc["edf"].to_dict() == {"load": "≥ 2.50", "ratio": "open"}


def test_printed_tables_are_read_by_the_first_cell_of_a_line() -> None:
    assert results.printed("few")["auto"] == ["auto", "80 +- 3", "-1.5"]
    assert results.printed("few", 2)["auto"] == ["auto", "0.9", "0.8"]
    assert results.markdown_table("cells", "cell").met["1: code, short"] == "-1.5"
    assert results.markdown_table("cells", "cell", 2).QoE["2"] == "0.9"


def test_a_frame_is_a_table_of_markdown_and_signs_are_those_of_print() -> None:
    frame = pd.DataFrame({"met": ["12.5%, -3"], "KV": ["80 +- 3"]}, index=["`a-1`"]).rename_axis("policy")
    assert frame_table(frame) == "| policy | met | KV |\n| --- | --- | --- |\n| `a-1` | 12.5 %, −3 | 80 ± 3 |\n"
    assert typeset("--section w-b, 30 %") == "--section w-b, 30 %"
    assert fmt(0.5, ".0%") == "50%" and fmt(pd.Series([1.5, 2]), ".1f") == "1.5, 2.0"
