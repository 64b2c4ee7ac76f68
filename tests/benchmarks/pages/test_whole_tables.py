"""Pages show parts of tables, and ``benchmarks.whole_tables`` prints the whole of each."""

import subprocess
import sys

import pytest

from benchmarks.pages.papers import PAPERS, page_table, paper_table
from benchmarks.pages.tables import TABLES, WHOLE
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow
PARTS = sorted(name for name in TABLES if TABLES[name]().size < WHOLE[name]().size)


@pytest.mark.parametrize("name", PARTS)
def test_a_page_shows_cells_of_the_whole_table(name: str) -> None:
    part, whole = TABLES[name](), WHOLE[name]()
    assert part.equals(whole.loc[part.index, part.columns])
    assert set(TABLES) <= set(WHOLE) and len(PARTS) > 10


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_shows_rows_of_the_paper_without_their_commands(paper: str) -> None:
    whole = [row.split("|") for row in paper_table(paper).splitlines()]
    part = [row.split("|") for row in page_table(paper).splitlines()]
    assert part == [row for row in ([*cells[:3], *cells[4:]] for cells in whole) if row in part]
    assert 5 < len(part) < len(whole)


def test_the_script_prints_tables_and_names_them_all() -> None:
    assert _printed("qos") == (0, paper_table("qos"))
    assert _printed("promises.parts")[1].count("\n") == 12
    status, text = _printed("promises.part")
    assert status == 2 and "'promises.parts'" in text and "'econo'" in text


def _printed(name: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.whole_tables", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout or done.stderr
