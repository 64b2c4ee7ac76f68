"""Each figure and table of the five papers has a command and its results, or a reason why it has none."""

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from benchmarks.experiments import EXPERIMENTS
from benchmarks.fleet.fleet_qlm import SECTIONS
from benchmarks.page_tables import TABLES, page_table
from benchmarks.paper_tables import PAGES, PAPERS, command, figure, filled, paper_table
from benchmarks.publish import write_json
from tests.docs.pages import ROOT, anchors

REASONS = {"needs a GPU", "needs human subjects", "needs data that cannot be had", "not about the system"}
_TABLE = re.compile(r"(<!-- paper: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_OF_RESULTS = re.compile(r"(<!-- table: ([\w-]+\.\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


_REFERENCE = re.compile(r"\{([^}]+)\}")
_LINK = re.compile(r"\]\(([\w-]*(?:\.md)?)#([\w-]+)\)")
_FILE = re.compile(r"`([\w-]+\.(?:png|txt|csv|json))`")
ROWS = [
    pytest.param(paper, row, id=f"{paper}-{'-'.join(row['of'])}-{i}".replace(" ", ""))
    for paper, entry in PAPERS.items()
    for i, row in enumerate(entry["rows"])
]
RESULTS = ROOT / "benchmarks" / "results"


def _exists(named: str) -> bool:
    module, _, section = named.partition(" ")
    if not module.startswith("benchmarks."):
        return named in EXPERIMENTS
    return (ROOT / f"{module.replace('.', '/')}.py").exists() and (not section or section in SECTIONS)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_and_table_stands_in_the_list(paper: str) -> None:
    entry = PAPERS[paper]
    expected = {f"{kind} {n + 1}" for kind in ("Figure", "Table") for n in range(entry[f"{kind.lower()}s"])}
    assert set(chain.from_iterable(row["of"] for row in entry["rows"])) == expected


@pytest.mark.parametrize(("paper", "row"), ROWS)
def test_each_has_a_command_with_a_figure_of_its_results_or_a_reason(paper: str, row: Mapping[str, Any]) -> None:
    if "command" not in row:
        assert row.get("reason") in REASONS and "ours" not in row
        return
    assert "reason" not in row and _exists(row["command"]) and row["results"]
    assert list(_missing(row)) == [], "named, and not in the row's results"
    assert _answers(paper, row["ours"], row["results"]), "neither {a figure}, nor a picture, nor a section of a page"


@pytest.mark.parametrize(("paper", "row"), ROWS)
def test_the_results_were_made_by_the_command_of_the_row(paper: str, row: Mapping[str, Any]) -> None:
    """Of its first folder; the others are of the same kind, and of commands that exist."""
    for i, name in enumerate(row.get("results", ())):
        path = RESULTS / name / "command.txt"
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")] if path.exists() else []
        if len(lines) == 1:
            made = _made_by(lines[0])
            assert made == row["command"] if i == 0 else _exists(made), f"{name} was made by {lines[0]}"
            assert made.startswith("benchmarks.") == row["command"].startswith("benchmarks.")


def _missing(row: Mapping[str, Any]) -> Iterator[str]:
    """Files and folders of results that a row names and that are not there, or not among its results."""
    yield from (name for name in row["results"] if not _kept(name))
    folders = [RESULTS / name for name in row["results"] if (RESULTS / name).is_dir()]
    for file in _FILE.findall(row["ours"]):
        if file not in row["results"] and not any((folder / file).exists() for folder in folders):
            yield file
    for key in ("ours", "stock", "differs"):
        for reference in _REFERENCE.findall(row.get(key, "")):
            named = [word for word in reference.split() if _kept(word)]
            if not named or named[0].partition("/")[0] not in row["results"]:
                yield reference


def _kept(name: str) -> bool:
    return (RESULTS / name).exists() or (RESULTS / f"{name}.gz").exists()


def _answers(paper: str, ours: str, results: list[str]) -> bool:
    """Whether ``ours`` has a figure that is read from results, or names a picture of them or a section of a page."""
    pictures = [file for file in _FILE.findall(ours) if file.endswith(".png")]
    sections = [
        anchor in anchors(ROOT / "docs" / "benchmarks" / (page or f"{PAGES[paper]}.md"))
        for page, anchor in _LINK.findall(ours)
    ]
    drawn = [any((RESULTS / name / file).exists() for name in results) for file in pictures]
    if "{" in ours:
        return any(re.search(r"\d", filled(found)) for found in re.findall(r"\{[^}]+\}", ours))
    return bool(sections or drawn) and all(sections + drawn)


def _made_by(line: str) -> str:
    """The ``command`` of paper_figures.toml whose published form the line has, whatever options follow."""
    words = shlex.split(line.removeprefix("SLOSERVE_DATA=DATA "))
    if words[:2] == ["python", "-m"]:
        section = words[words.index("--section") + 1 :][:1] if "--section" in words else []
        return " ".join([words[2], *section])
    return words[words.index("--experiment") + 1] if "--experiment" in words else line


@pytest.mark.parametrize(
    ("ours", "enough"),
    [
        ("{router system=paper rule=greedy arrivals=counted reward .2f}", True),
        ("`auto` {? router rule=none reward .2f}", False),
        ("we are better", False),
        ("yes: [swapping](swap.md)", False),
        ("yes: [swapping](swap.md#nowhere)", False),
        ("missed: [planning](engine.md#planning)", True),
        ("see [there](#conditions-of-nobody)", False),
        ("`attainment.png`", True),
        ("`timelines.png`", False),
        ("`table.txt`", False),
        ("9.9 times", False),
    ],
)
def test_words_alone_are_no_answer(ours: str, enough: bool) -> None:
    assert _answers("qos", ours, ["azure-conv"]) is enough


@pytest.mark.parametrize("paper", PAPERS)
def test_the_command_of_a_row_is_one_that_results_can_name(paper: str) -> None:
    for row in PAPERS[paper]["rows"]:
        if "command" in row:
            assert _made_by(command(row["command"])) == row["command"]


@pytest.mark.parametrize("paper", PAPERS)
def test_the_paper_s_page_begins_with_its_table(paper: str, update_docs: bool) -> None:
    page = ROOT / "docs" / "benchmarks" / f"{PAGES[paper]}.md"
    text = page.read_text()
    assert [found[2] for found in _TABLE.finditer(text)] == [paper] and text.index("<!-- paper") < text.index("\n## ")
    new = _TABLE.sub(lambda found: f"{found[1]}{paper_table(paper)}{found[3]}", text)
    if update_docs:
        page.write_text(new)
    assert text == new or update_docs, "what is generated is out of date: pytest tests/docs --update-docs"


@pytest.mark.slow
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
        filled("as {sa_devices.json rows profile=a800-qwen2.5-32b max_batch=1 policy=stock attainment .0%}") == "as 3 %"
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
    write_json(tmp_path / "of.json.gz", told)
    (tmp_path / "of").mkdir()
    (tmp_path / "of" / "table.txt").write_text("| policy | a | b |\n| ours, tuned | 1 | -7 |\n")
    monkeypatch.setattr("benchmarks.paper_tables.RESULTS", tmp_path)
    assert figure(reference) == text
