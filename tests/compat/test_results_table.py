"""The table of versions in docs/kv-layouts.md parses, and is written from what pytest counted."""

import pytest

from sloserve.vllm_plugin.versions import TESTED_VLLM
from tests.compat.results_table import COLUMNS, PAGE, Cell, Table, column_of, outcomes, read, write

PLUGIN, MODEL, REAL, SERVERS = COLUMNS
FAILURE = '<failure message="1">no</failure>'
RESULTS = f"""<?xml version="1.0"?><testsuites><testsuite name="pytest" timestamp="2026-11-27T07:13:18+00:00">
<testcase classname="tests.vllm_plugin.engine.test_apply" name="test_a" />
<testcase classname="tests.vllm_plugin.engine.test_apply" name="test_b[x|y]">{FAILURE}</testcase>
<testcase classname="tests.vllm_plugin.engine.test_apply" name="test_b[z]">{FAILURE}</testcase>
<testcase classname="tests.golden.test_golden" name="test_c"><skipped message="lacks it" /></testcase>
<testcase classname="tests.golden.test_golden" name="test_d" />
<testcase classname="tests.golden.test_golden" name="test_d"><error message="its fixture failed">no</error></testcase>
<testcase classname="tests.cli.test_scripting.TestIt" name="test_e" />
</testsuite></testsuites>"""


def test_the_table_of_the_page_parses_and_has_every_tested_version() -> None:
    page = PAGE.read_text()
    table = read(page)
    assert sorted(table.rows) == sorted(TESTED_VLLM)
    assert write(page, table) == page


def test_outcomes_are_counted_by_column_and_each_test_once() -> None:
    assert outcomes([RESULTS], "0123abcd") == {
        PLUGIN: Cell(1, 1, ("test_b", "test_d"), "2026-11-27", "0123abcd"),
        SERVERS: Cell(1, 0, (), "2026-11-27", "0123abcd"),
    }


def test_files_of_several_runs_are_counted_together() -> None:
    other = RESULTS.replace("vllm_plugin.engine", "swap_space").replace("golden", "parity")
    both = outcomes([RESULTS, other], "0123abcd")
    assert (both[PLUGIN].passed, both[MODEL].passed, both[SERVERS].passed) == (2, 0, 1)


@pytest.mark.parametrize(
    "cell",
    [
        Cell(12, 0, (), "2026-11-27", "0123abcd"),
        Cell(0, 3, ("test_a", "test_b"), "2026-11-27", "0123abcd+"),
    ],
)
def test_a_cell_is_read_as_it_was_written(cell: Cell) -> None:
    assert Cell.parse(str(cell)) == cell


def test_a_cell_that_somebody_wrote_by_hand_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a cell of the table of versions: 'pass'"):
        Cell.parse("pass")


def test_a_page_without_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="the page has no table between"):
        read("# Page\n")


def test_rows_stand_newest_first_and_what_did_not_run_is_said() -> None:
    cell = Cell(1, 0, (), "2026-11-27", "0123abcd")
    lines = str(Table({"0.9.0": {}, "0.10.0": {REAL: cell}}, "Newest.")).splitlines()
    assert lines[2:] == [
        f"| 0.10.0 | not run | not run | {cell} | not run |",
        "| 0.9.0 | not run | not run | not run | not run |",
        "",
        "Newest.",
    ]


@pytest.mark.parametrize(
    ("classname", "column"),
    [
        ("tests.vllm_plugin.engine.test_apply", PLUGIN),
        ("tests.sim.model.test_agreement", MODEL),
        ("tests.equality.layouts.test_connectors", REAL),
        ("tests.vllm.test_serving", SERVERS),
        ("tests.fleet.stand_in.test_contract", SERVERS),
    ],
)
def test_folders_have_columns(classname: str, column: str) -> None:
    assert column_of(classname) == column
