"""What the documentation promises about itself: every block is tagged, links lead somewhere, tables follow the code.

``pytest tests/docs --update-docs`` writes the generated parts anew (the option is known only where this folder is
named); they stand between ``<!-- options: POLICY -->`` and ``<!-- end -->``.
"""

import re
import tomllib
from pathlib import Path

import pytest

from sloserve.scheduler.describe import describe_policy
from sloserve.scheduler.registry import main_policies, policy_class, policy_names
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire import headers
from sloserve.wire.body import NESTED
from sloserve.wire.xargs import KEYS
from tests.docs.pages import (
    EXECUTABLE,
    OTHER_LANGUAGES,
    OTHER_PAGES,
    PAGES,
    ROOT,
    anchors,
    blocks,
    blocks_of,
    links,
)

MOST_NOT_RUN = 10
MOST_README_LINES = 150
POLICY_PAGES = ROOT / "docs" / "policies"
PUBLISHED = POLICY_PAGES / "published.md"
OURS = [name for name in policy_names() if policy_class(name).__module__.startswith(("sloserve.", "benchmarks."))]
"""Without what third parties have installed."""
TO_CHOOSE_FROM = [name for name in main_policies() if name in OURS]
"""The policies that a deployment chooses from, each with a page; the others have a section of ``published.md``."""

_GENERATED = re.compile(r"<!-- options: (\S+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
SHARED_OPTIONS = {"length": "predicted", "length_error": "0.0", "step_budget": "false"}
"""Options of many policies, with their usual defaults; `docs/serve.md` explains them once."""
_BENCHMARK = re.compile(r"\b(benchmarks(?:\.[a-z]\w*)+)\b(?!\.NAME)")
STARTED_BY_OTHERS = ("quic_endpoints", "quic_link")
"""Benchmarks' own processes, which no person starts."""
_SOURCE = re.compile(r"`((?:sloserve|csrc|tests|benchmarks|configs|examples|clients)/[\w./*-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_has_a_language_and_what_can_be_executed_a_tag(page: Path) -> None:
    found = blocks_of(page)
    assert [str(b) for b in found if b.language not in EXECUTABLE + OTHER_LANGUAGES] == []
    assert [str(b) for b in found if b.language in EXECUTABLE and b.tag is None] == []
    assert [str(b) for b in found if b.language not in EXECUTABLE and (b.tag or b.shows)] == []


def test_few_blocks_are_not_run() -> None:
    assert len(blocks("not-run")) <= MOST_NOT_RUN
    assert len(blocks("run", "quick", "long")) > len(blocks("not-run"))


def test_tables_stand_outside_lists_which_the_site_would_not_go_on_with() -> None:
    assert [page.name for page in PAGES if re.search(r"^ +\| -", page.read_text(), re.MULTILINE)] == []


def test_the_page_on_installing_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert {name for name in extras if f"| `{name}` |" not in page} == {"dev"}


def test_the_readme_is_short_and_its_figures_are_measured() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= MOST_README_LINES
    table = text.split("<!-- figures -->")[1].split("<!-- end -->")[0]
    measured = set(re.findall(r"\d[\d.,]*\d|\d", (ROOT / "docs" / "benchmarks" / "README.md").read_text()))
    assert set(re.findall(r"\d[\d.,]*\d|\d", table)) <= measured


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_source_files_that_are_named_exist() -> None:
    named = [(page, name) for page in PAGES for name in _SOURCE.findall(page.read_text())]
    missing = [f"{page.relative_to(ROOT)}: {name}" for page, name in named if not list(ROOT.glob(name))]
    assert named and missing == []


def test_benchmarks_that_are_named_exist() -> None:
    named = {name for page in [*PAGES, *OTHER_PAGES] for name in _BENCHMARK.findall(page.read_text())}
    missing = [name for name in named if not (ROOT / f"{name.replace('.', '/')}.py").exists()]
    assert len(named) > 20 and missing == []


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/README.md")))
def test_every_benchmark_stands_in_the_table_of_its_folder(folder: str) -> None:
    sources = {path.stem: path.read_text() for path in (ROOT / "benchmarks" / folder).glob("*.py")}
    scripts = {name for name, text in sources.items() if "def main(" in text and name not in STARTED_BY_OTHERS}
    rows = re.findall(r"^\| (`.+?`) \|", (ROOT / "benchmarks" / folder / "README.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == scripts


def test_the_table_of_packages_has_each_of_them() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.split("## Packages")[1].split("\n## ")[0]
    named = re.findall(r"`([\w.]+)/?`", "".join(re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)))
    packages = [path.parent.name for path in (ROOT / "sloserve").glob("*/__init__.py")]
    modules = [path.name for path in (ROOT / "sloserve").glob("[a-z]*.py")]
    assert sorted(named) == sorted(packages + modules)


def test_every_policy_has_its_page() -> None:
    pages = {page.stem: page for page in POLICY_PAGES.glob("*.md")}
    assert set(pages) == {*TO_CHOOSE_FROM, "published"}
    for name in TO_CHOOSE_FROM:
        text = pages[name].read_text()
        assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:1] == ["Why"], name
        assert {"Options", "Trade-offs", "Evidence"} <= set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    published = re.findall(r"^## (.+)$", pages["published"].read_text(), re.MULTILINE)
    assert sorted([*TO_CHOOSE_FROM, *published]) == sorted(OURS)
    readme = (ROOT / "README.md").read_text()
    in_readme = re.findall(r"^\| \[`([\w-]+)`\]\(docs/policies/\1\.md\)", readme, re.MULTILINE)
    assert in_readme[0] == TO_CHOOSE_FROM[0] and sorted(in_readme) == sorted(TO_CHOOSE_FROM)


@pytest.mark.parametrize("name", TO_CHOOSE_FROM)
def test_options_are_those_of_the_code(name: str, update_docs: bool) -> None:
    page = POLICY_PAGES / f"{name}.md"
    text = page.read_text()
    assert [found for found, _ in _GENERATED.findall(text)] == [name]

    def generated(match: re.Match[str]) -> str:
        return f"<!-- options: {match[1]} -->\n{_options(match[1])}<!-- end -->\n"

    new = _GENERATED.sub(generated, text)
    if update_docs:
        page.write_text(new)
    assert text == new or update_docs, "what is generated is out of date: pytest tests/docs --update-docs"


def _options(name: str) -> str:
    """Return the table of the options of a policy, and the names of the shared ones below it."""
    found = describe_policy(name).options
    shared = [o for o in found if SHARED_OPTIONS.get(o.name) == _text(o.default)]
    rows = [f"| `{o.name}` | `{_text(o.default)}` | {_cell(o.meaning)} |" for o in found if o not in shared]
    lines = ["| option | default | meaning |", "| --- | --- | --- |", *rows, ""] if rows else []
    if shared:
        named = ", ".join(f"`{o.name}`" for o in shared)
        lines += [f"[Shared options](../serve.md#shared-options): {named}.", ""]
    return "\n".join(lines)


def _text(default: object) -> str:
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def test_every_name_on_the_wire_is_described() -> None:
    text = (ROOT / "docs" / "slos-on-the-wire.md").read_text()
    named = [*headers.FIELDS, *headers.TENANTS, *headers.OBJECTIVES, headers.REPORT, headers.PRIORITY, headers.TTL]
    named += [*headers.ANSWERS, *NESTED, *KEYS]
    assert [name for name in named if f"`{name}" not in text and f"{name}`" not in text] == []


def test_every_setting_is_in_the_file_that_the_docs_point_to() -> None:
    text = (ROOT / "configs" / "serve.yaml").read_text()
    assert [key for key in PluginSettings.model_fields if not re.search(rf"^{key}:", text, re.MULTILINE)] == []
