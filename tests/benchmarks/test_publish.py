"""How benchmarks publish what they measured."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.publish import RESULTS, provenance, read_rows, write_result, write_rows


def test_a_result_says_where_it_was_measured_and_keeps_what_was_noted_at_its_begin(tmp_path: Path) -> None:
    write_result(tmp_path / "new" / "a.json", {"commit": "at the begin", "rows": [1]})
    found = json.loads((tmp_path / "new" / "a.json").read_text())
    assert found == {**json.loads(json.dumps(provenance())), "commit": "at the begin", "rows": [1]}
    assert {"sloserve", "vllm", "python", "hardware"} <= found.keys()


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


@pytest.mark.parametrize("name", ["auto", "auto-parts"])
def test_published_tables_are_as_they_would_be_written_today(name: str, tmp_path: Path) -> None:
    published = RESULTS / name / "runs.csv.gz"
    write_rows(tmp_path / "runs.csv", read_rows(published))
    assert (tmp_path / "runs.csv").read_bytes() == gzip.decompress(published.read_bytes())
