"""Each figure and table of the five papers has a command and its results, or a reason why it has none; no table of the
benchmarks' pages is typed.
"""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.experiments import EXPERIMENTS
from benchmarks.fleet.fleet_qlm import SECTIONS
from benchmarks.pages.markdown import frame_table
from benchmarks.pages.papers import PAPERS, TEMPLATES, page_table, paper_table
from benchmarks.pages.tables import TABLES
from benchmarks.publish import RESULTS
from tests.docs.pages import ROOT, anchors

pytestmark = pytest.mark.slow

PAGES = ROOT / "docs" / "benchmarks"
REASONS = {
    "needs human subjects",
    "needs data that cannot be had",
    "not about the system",
    "on LMDeploy, for which there is no model",
}
_TABLE = re.compile(r"(<!-- paper: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_OF_RESULTS = re.compile(r"(<!-- table: ([\w-]+\.\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_NUMBERS = re.compile(r"(Fig\.|Table) ([\d, ]*\d)")
_CALL = re.compile(r"\b(?:at_latency|at_qoe|by_seed|compared|means|printed|rows|saved)\(\"([\w./-]+)\"")
_DEFINED = re.compile(r"^{% (?:macro|set) (\w+)(.*)", re.MULTILINE)
_LINK = re.compile(r"\]\(([\w-]*(?:\.md)?)#([\w-]+)\)")
_PICTURE = re.compile(r"`([\w-]+\.png)`")
Row = tuple[str, list[str]]
"""A row of a table as the template has it, and the cells that it shows."""


@cache
def _rows(paper: str) -> list[Row]:
    written = (TEMPLATES / f"{paper}.md.j2").read_text().splitlines()
    return list(
        zip(
            [line for line in written if line.startswith("|")][2:],
            [_cells(line) for line in paper_table(paper).splitlines()[2:]],
            strict=True,
        )
    )


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]


def _results(paper: str, line: str) -> list[str]:
    """The results that a row reads, itself or through what the head of the template defines."""
    text = line
    for name, body in reversed(_DEFINED.findall((TEMPLATES / f"{paper}.md.j2").read_text())):
        text += body if re.search(rf"\b{name}\b", text) else ""
    return _CALL.findall(text)


def _numbers(cell: str) -> set[str]:
    """``Fig. 10, 12; Table 4: what it shows`` as a set of names."""
    names = cell.partition(":")[0]
    return {f"{kind} {number}" for kind, found in _NUMBERS.findall(names) for number in found.split(", ")}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_and_table_stands_in_the_list(paper: str) -> None:
    named = set().union(*(_numbers(cells[0]) for _, cells in _rows(paper)))
    counts = {"Fig.": PAPERS[paper].figures, "Table": PAPERS[paper].tables}
    assert named == {f"{kind} {number + 1}" for kind, count in counts.items() for number in range(count)}


@pytest.mark.parametrize("paper", PAPERS)
def test_each_has_a_command_with_a_figure_of_its_results_or_a_reason(paper: str) -> None:
    for line, cells in _rows(paper):
        if not cells[2]:
            assert cells[5] in REASONS and not cells[3], cells[0]
        else:
            assert _exists(_made_by(cells[2].strip("`"))), cells[2]
            assert _answers(paper, cells[3], _results(paper, line)), cells[0]


@pytest.mark.parametrize("paper", PAPERS)
def test_the_results_were_made_by_the_command_of_the_row(paper: str) -> None:
    """One of the results is of the row's own command; of the others, each is of a command that exists."""
    for line, cells in _rows(paper):
        made = {name: _maker(name) for name in _results(paper, line)}
        assert all(maker is None or _exists(maker) for maker in made.values()), made
        if made and None not in made.values():
            assert _made_by(cells[2].strip("`")) in made.values(), (cells[0], made)


def _maker(name: str) -> str | None:
    """What made a result, as :func:`_made_by` has it; ``None`` where several commands did.

    A file of JSON was made by the module that has its name.
    """
    folder = RESULTS / name.partition("/")[0]
    if not folder.is_dir():
        (module,) = [
            path for path in (ROOT / "benchmarks").rglob("*.py") if f'RESULTS / "{name}.json.gz"' in path.read_text()
        ]
        return ".".join(module.relative_to(ROOT).with_suffix("").parts)
    lines = [line for line in (folder / "command.txt").read_text().splitlines() if not line.startswith("#")]
    return _made_by(lines[0]) if len(lines) == 1 else None


def _made_by(line: str) -> str:
    """The experiment that a command line runs, or the module of benchmarks and its section."""
    words = shlex.split(line.removeprefix("SLOSERVE_DATA=DATA "))
    if words[:2] == ["python", "-m"]:
        return " ".join([words[2], *(words[words.index("--section") + 1 :][:1] if "--section" in words else [])])
    return words[words.index("--experiment") + 1] if "--experiment" in words else line


def _exists(named: str) -> bool:
    module, _, section = named.partition(" ")
    if not module.startswith("benchmarks."):
        return named in EXPERIMENTS
    return (ROOT / f"{module.replace('.', '/')}.py").exists() and (not section or section in SECTIONS)


def _answers(paper: str, ours: str, results: list[str]) -> bool:
    """Whether a row has a figure that is read from results, or names a picture of them or a section of a page."""
    sections = [anchor in anchors(PAGES / (page or f"{PAPERS[paper].page}.md")) for page, anchor in _LINK.findall(ours)]
    drawn = [any((RESULTS / name / file).exists() for name in results) for file in _PICTURE.findall(ours)]
    if results and re.search(r"\d", ours):
        return all(drawn)
    return bool(sections or drawn) and all(sections + drawn)


@pytest.mark.parametrize(
    ("ours", "results", "enough"),
    [
        ("0.94", ["router"], True),
        ("`auto`", ["router"], False),
        ("9.9 times", [], False),
        ("yes: [swapping](swap.md)", [], False),
        ("yes: [swapping](swap.md#nowhere)", [], False),
        ("missed: [planning](engine.md#planning)", [], True),
        ("`attainment.png`", ["azure-conv"], True),
        ("`timelines.png`, 0.94", ["azure-conv"], False),
    ],
)
def test_words_alone_are_no_answer(ours: str, results: list[str], enough: bool) -> None:
    assert _answers("qos", ours, results) is enough


@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_of_a_paper_begins_with_its_table(paper: str, update_docs: bool) -> None:
    page = PAGES / f"{PAPERS[paper].page}.md"
    text = page.read_text()
    assert [found[2] for found in _TABLE.finditer(text)] == [paper] and text.index("<!-- paper") < text.index("\n## ")
    _same(page, _TABLE.sub(lambda found: f"{found[1]}{page_table(paper)}{found[3]}", text), update_docs)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_tables_of_a_page_are_those_of_its_results(page: Path, update_docs: bool) -> None:
    text = page.read_text()
    assert sorted(_named(text)) == sorted(name for name in TABLES if name.partition(".")[0] == page.stem)
    made = _OF_RESULTS.sub(lambda found: f"{found[1]}{frame_table(TABLES[found[2]]())}{found[3]}", text)
    _same(page, made, update_docs)


def test_every_table_stands_on_a_page() -> None:
    assert {name.partition(".")[0] for name in TABLES} <= {page.stem for page in PAGES.glob("*.md")}


def _named(text: str) -> Iterator[str]:
    return (found[2] for found in _OF_RESULTS.finditer(text))


def _same(page: Path, made: str, update_docs: bool) -> None:
    text = page.read_text()
    if update_docs:
        page.write_text(made)
    assert text == made or update_docs, "what is generated is out of date: pytest tests/docs --update-docs"
