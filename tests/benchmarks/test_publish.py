"""How benchmarks publish what they measured."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.publish import (
    RESULTS,
    RUNS,
    merge_result,
    provenance,
    read_json,
    read_rows,
    read_runs,
    write_result,
    write_rows,
    write_runs,
)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_result_says_where_it_was_measured_and_keeps_what_was_noted_at_its_begin(name: str, tmp_path: Path) -> None:
    assert read_json(tmp_path / "new" / name) == {}
    write_result(tmp_path / "new" / name, {"commit": "at the begin", "rows": [1]})
    found = read_json(tmp_path / "new" / name)
    assert found == {**json.loads(json.dumps(provenance())), "commit": "at the begin", "rows": [1]}
    assert {"sloserve", "vllm", "python", "hardware"} <= found.keys()


def test_a_merged_result_keeps_what_the_file_has_and_names_the_commits_that_measured_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    merge_result(path, {"commit": "a", "rows": [1]})
    assert "earlier_commits" not in read_json(path)
    for commit in "bbcb":
        merge_result(path, {"commit": commit, "more": commit})
    found = read_json(path)
    assert (found["commit"], found["rows"], found["more"]) == ("b", [1], "b")
    assert found["earlier_commits"] == ["a", "c"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_rows_come_back_as_text_and_equal_rows_leave_equal_bytes(name: str, tmp_path: Path) -> None:
    rows = [{"policy": "edf", "ms": 0.25}, {"policy": "fcfs", "kb": None}]
    path = tmp_path / name
    assert read_rows(path) == []
    write_rows(path, rows)
    assert read_rows(path) == [{"policy": "edf", "ms": "0.25", "kb": ""}, {"policy": "fcfs", "ms": "", "kb": ""}]
    written = path.read_bytes()
    write_rows(path, read_rows(path))
    assert path.read_bytes() == written
    write_rows(path, rows, ["policy"])
    assert read_rows(path) == [{"policy": "edf"}, {"policy": "fcfs"}]


def test_runs_come_back_and_equal_runs_leave_equal_bytes(tmp_path: Path) -> None:
    path = tmp_path / "new" / RUNS
    assert read_runs(path) == []
    runs = [{"policy": "edf", "load": 1.5, "by_class": {"chat": {"completed": 3}}}]
    write_runs(path, runs)
    written = path.read_bytes()
    assert read_runs(path) == runs
    write_runs(path, runs)
    assert path.read_bytes() == written and gzip.decompress(written).startswith(b"policy,load,")


@pytest.mark.parametrize("name", ["auto", "auto-parts"])
def test_published_tables_are_as_they_would_be_written_today(name: str, tmp_path: Path) -> None:
    published = RESULTS / name / RUNS
    write_rows(tmp_path / "runs.csv", read_rows(published))
    assert (tmp_path / "runs.csv").read_bytes() == gzip.decompress(published.read_bytes())
