"""What stands in braces in the pages' tables is read as its reader says: means, pairs and intervals of few numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import paper_tables
from benchmarks.paper_tables import figure, filled
from benchmarks.publish import save_text, write_json

RUNS = """policy,load,seed,in time
stock,1,0,0.50
stock,1,1,0.60
auto,1,1,0.90
auto,1,0,0.70
auto,2,0,0.10
auto,2,1,
"""
TABLE = """in time   load 1   load 2
auto      80 +- 3  -1.5

QoE
auto      0.9      0.8
"""
CASES = {
    "commit": "abc",
    "rows": [
        {"policy": "auto", "tokens": 4.0, "steps": 2.0, "plan": None, "bound": None},
        {"policy": "auto", "tokens": 9.0, "steps": 3.0, "plan": None, "bound": None},
        {"policy": "edf", "tokens": 2.0, "steps": 1.0, "plan": None, "bound": None},
        {"policy": "edf", "tokens": 3.0, "steps": 1.0, "plan": "sjf", "bound": None},
    ],
    "cell": {"auto": {"met": 0.25}, "edf": {"met": 0.75}},
    "load": [{"policy": "auto", "at": {"value": 1.5, "bound": "at least", "low": None, "high": None}}],
}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "few"
    folder.mkdir()
    save_text(folder / "runs.csv.gz", RUNS)
    (folder / "table.txt").write_text(
        "in time   load 1   load 2\nauto      80 +- 3  -1.5\n\nQoE\nauto      0.9      0.8\n"
    )
    write_json(tmp_path / "few.json.gz", CASES)
    monkeypatch.setattr(paper_tables, "RESULTS", tmp_path)
    paper_tables._result.cache_clear()
    yield
    paper_tables._result.cache_clear()


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("few policy=auto load=1 in_time .2f", "0.80"),
        ("few policy=auto load=1 in_time .1%", "80.0 %"),
        ("few policy=auto load=1 in_time .1p", "80.0"),
        ("few policy=auto load=2 in_time .2f", "0.10"),  # one run has no figure
        ("few.json rows policy=auto tokens per steps .1f", "2.6"),  # of means: 6.5 / 2.5
        ("ratios few.json rows : policy=auto tokens : policy=edf tokens .2f", "2.50"),  # of pairs: 2, 3
        ("less few.json rows : policy=auto tokens : policy=edf tokens .1f", "4.0"),
        ("most few.json cell : met .1%", "75.0 %"),
        ("text few.json rows 3 plan", "`sjf`"),
        ("text few.json rows 0 plan", "none"),
        ("bounded few.json load policy=auto at", "≥ 1.50"),
        ("gain few load=1 policy=auto in_time", "+45.5 %"),  # 0.80 / 0.55
        ("table few auto 1", "80 ± 3"),
        ("table few auto 2", "−1.5"),
        ("table few auto 1 2", "0.9"),
        # Differences 0.2 and 0.3, of which half the interval is 12.706 x 0.05; each mean alone has more.
        ("paired few load=1 : policy=stock in_time : policy=auto in_time .1p", " (+25.0 ± 63.5)"),
        ("paired few : policy=stock load=1 in_time : policy=auto load=1 in_time .1p", " (+25.0 ± 63.5)"),
        ("paired few : policy=auto load=1 in_time : policy=auto load=1 in_time .1p", ""),
        ("around few policy=auto load=1 in_time .1p", "80.0 ± 127.1"),
        ("span few.json rows : policy=auto tokens : policy=edf tokens .2f", "−3.85 to 8.85"),
        ("? few policy=sjf in_time .2f", ""),
    ],
)
def test_what_a_reference_stands_for(reference: str, text: str) -> None:
    assert figure(reference) == text


@pytest.mark.parametrize(
    "reference",
    [
        "few policy=sjf in_time .2f",
        "few policy=auto latency .2f",
        "paired few : policy=stock load=1 in_time : policy=auto load=2 in_time .1p",
        "around few load=2 in_time .1p",
        "none.json rows .1f",
    ],
)
def test_one_that_leads_to_nothing_is_an_error(reference: str) -> None:
    with pytest.raises((ValueError, KeyError, OSError)):
        figure(reference)


def test_a_text_is_filled_with_each() -> None:
    assert filled("{few policy=stock in_time .1p}; {table few auto 1}") == "55.0; 80 ± 3"
