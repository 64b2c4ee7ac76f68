"""Each figure and table of the five papers has a command and its results, or a reason why it has none."""

import json
import re
from itertools import chain
from pathlib import Path

import pytest

from benchmarks.fleet.fleet_qlm import SECTIONS
from benchmarks.page_tables import TABLES, page_table
from benchmarks.paper_tables import PAGES, PAPERS, figure, filled, paper_table
from sloserve.sim.experiments import EXPERIMENTS
from tests.docs.pages import ROOT

REASONS = {"needs a GPU", "needs human subjects", "needs data that cannot be had", "not about the system"}
_TABLE = re.compile(r"(<!-- paper: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_OF_RESULTS = re.compile(r"(<!-- table: ([\w-]+\.\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def _exists(command: str) -> bool:
    module, _, section = command.partition(" ")
    if not module.startswith("benchmarks."):
        return command in EXPERIMENTS
    return (ROOT / f"{module.replace('.', '/')}.py").exists() and (not section or section in SECTIONS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_and_table_stands_in_the_list(paper: str) -> None:
    entry = PAPERS[paper]
    expected = {f"{kind} {n + 1}" for kind in ("Figure", "Table") for n in range(entry[f"{kind.lower()}s"])}
    assert set(chain.from_iterable(row["of"] for row in entry["rows"])) == expected


@pytest.mark.parametrize("paper", PAPERS)
def test_each_has_a_command_with_results_or_a_reason(paper: str) -> None:
    for row in PAPERS[paper]["rows"]:
        if "command" in row:
            assert _exists(row["command"]), row
            assert row["results"] and row["ours"], row
            assert [r for r in row["results"] if not (ROOT / "benchmarks" / "results" / r).exists()] == [], row
        else:
            assert row.get("reason") in REASONS, row


@pytest.mark.parametrize("paper", PAPERS)
def test_the_paper_s_page_begins_with_its_table(paper: str, update_docs: bool) -> None:
    page = ROOT / "docs" / "benchmarks" / f"{PAGES[paper]}.md"
    text = page.read_text()
    assert [found[2] for found in _TABLE.finditer(text)] == [paper] and text.index("<!-- paper") < text.index("\n## ")
    new = _TABLE.sub(lambda found: f"{found[1]}{paper_table(paper)}{found[3]}", text)
    if update_docs:
        page.write_text(new)
    assert text == new or update_docs, "what is generated is out of date: pytest tests/docs --update-docs"


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_a_page_are_those_of_its_results(name: str, update_docs: bool) -> None:
    page = ROOT / "docs" / "benchmarks" / f"{name}.md"
    text = page.read_text()
    assert sorted(found[2] for found in _OF_RESULTS.finditer(text)) == sorted(
        f"{name}.{table}" for table in TABLES[name]
    )
    new = _OF_RESULTS.sub(lambda found: f"{found[1]}{page_table(found[2])}{found[3]}", text)
    if update_docs:
        page.write_text(new)
    assert text == new or update_docs, "what is generated is out of date: pytest tests/docs --update-docs"


def test_figures_are_read_from_rows_tables_and_json() -> None:
    assert (
        filled("as {sa_devices.json rows profile=a800-qwen2.5-32b max_batch=1 policy=stock attainment .0%}") == "as 1 %"
    )
    assert figure("quic-network condition=burst-constant transport=tcp-n real-time/met per real-time/n .1%") == "24.7 %"
    assert figure("table fleet-qlm-drain fifo") == "35.1 ± 2.3"
    with pytest.raises(ValueError, match="leads to no number"):
        figure("router rule=none reward .2f")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("of.json rows policy=ours speed .1f", "4.0"),
        ("? of.json rows policy=nobody speed .1f", ""),
        ("ratios of.json rows : policy=ours speed : policy=stock speed .2f", "2.50"),
        ("span of.json rows : policy=ours speed : policy=stock speed .1f", "−3.9 to 8.9"),
        ("less of.json rows : policy=stock share : policy=ours share +.1p", "−5.0"),
        ("most of.json by_name : share .0%", "50 %"),
        ("text of.json the_best", "`ours`"),
        ("around of.json rows policy=ours speed .0f", "4 ± 25"),
        ("table of ours,_tuned 2", "−7"),
    ],
)
def test_figures_of_two_rows_are_read(
    reference: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"policy": policy, "speed": speed, "share": share}
        for policy, speed, share in (("stock", 1, 0.5), ("stock", 2, 0.5), ("ours", 2, 0.6), ("ours", 6, 0.5))
    ]
    told = {"rows": rows, "by_name": {"a": {"share": 0.5}, "b": {"share": 0.2}}, "the best": "ours"}
    (tmp_path / "of.json").write_text(json.dumps(told))
    (tmp_path / "of").mkdir()
    (tmp_path / "of" / "table.txt").write_text("| policy | a | b |\n| ours, tuned | 1 | -7 |\n")
    monkeypatch.setattr("benchmarks.paper_tables.RESULTS", tmp_path)
    assert figure(reference) == text
