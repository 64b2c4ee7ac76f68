"""The report runs every row once a commit, goes on where it was stopped, and says what failed."""

from pathlib import Path

import pytest

from benchmarks.report import RAN, ReportRow, folder_of, page, ran, rows, table


def one(code: str) -> ReportRow:
    return ReportRow("one", "does <it> run?", ("timeit", "-n", "1", "-r", "1", code))


@pytest.mark.parametrize("full", [False, True])
def test_rows_have_names_of_their_own_and_one_folder_each(full: bool) -> None:
    found = list(rows(Path("out"), full=full))
    assert len({row.name for row in found}) == len(found) == len({folder_of(row, Path("out")) for row in found})
    small = [row for row in found if "--seeds" in row.command]
    assert bool(small) is not full


@pytest.mark.slow
def test_a_row_is_run_once_a_commit_and_again_where_it_failed(tmp_path: Path) -> None:
    row, folder = one("print('a < b')"), tmp_path / "one"
    first = ran(row, folder, "abc")
    assert first["status"] == 0 and table(folder).startswith("a < b")
    before = (folder / RAN).stat().st_mtime_ns
    assert ran(row, folder, "abc") == first and (folder / RAN).stat().st_mtime_ns == before
    ran(row, folder, "abd")
    assert (folder / RAN).stat().st_mtime_ns > before
    failed = one("raise SystemExit(3)")
    assert ran(failed, folder, "abe")["status"] == 1 == ran(failed, folder, "abe")["status"]
    shown = page([(failed, ran(failed, folder, "abe"))], tmp_path, "abe")
    assert "Failed with 1" in shown and "does &lt;it&gt; run?" in shown


def test_rows_of_json_are_a_table(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"rows": [{"a": 0.123456, "of": {"b": 1, "c": [2]}}, {"a": null}]}')
    assert table(tmp_path) == "a       of.b\n0.1235     1\nNone\n"
