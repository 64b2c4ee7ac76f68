"""The benchmarks that the documentation and results name are there, and take the flags that these give them."""

import ast
import re
from functools import cache

import pytest

from tests.docs.pages import OTHER_PAGES, PAGES, ROOT

COMMAND = re.compile(r"python -m (benchmarks(?:\.[a-z_0-9]+)+)(?!\.NAME)\b([^`|\n]*)")
NAMING = (*PAGES, *OTHER_PAGES, *(ROOT / "benchmarks" / "results").glob("*/command.txt"))
COMMANDS = sorted({found.groups() for page in NAMING for found in COMMAND.finditer(page.read_text())})
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").rglob("*.py") if '__name__ == "__main__"' in path.read_text())
PARSES = re.compile(r"\b(?:parser_for|is_quick|quick_and_out|add_argument)\(")
INNER = {"quic_endpoints.py", "quic_link.py"}
"""Ends of a link, which ``quic_network`` starts."""


@cache
def arguments(code: str) -> set[str]:
    """The flags that a script takes."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    named = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
    texts = [arg for call in calls if ast.unparse(call.func).endswith("add_argument") for arg in call.args]
    flags = {arg.value for arg in texts if isinstance(arg, ast.Constant) and str(arg.value).startswith("--")}
    by_default = [one.arg for call in calls if ast.unparse(call.func) == "parser_for" for one in call.keywords]
    flags |= {f"--{name.replace('_', '-')}" for name in by_default if name}
    told = {"parser_for": set(), "is_quick": {"--quick"}, "quick_and_out": {"--quick", "--out"}}
    return flags.union(*({"--help", *more} for name, more in told.items() if name in named))


@pytest.mark.parametrize(("module", "given"), COMMANDS)
def test_a_command_names_a_benchmark_and_its_flags(module: str, given: str) -> None:
    script = (ROOT / module.replace(".", "/")).with_suffix(".py")
    assert script in SCRIPTS
    assert set(re.findall(r"--[a-z][a-z-]*", given)) <= arguments(script.read_text())


def test_every_script_has_a_parser_so_that_help_runs_nothing() -> None:
    assert len(COMMANDS) > 20
    assert [path.name for path in SCRIPTS if path.name not in INNER and not PARSES.search(path.read_text())] == []


def test_every_script_has_a_row_in_the_table_of_its_folder() -> None:
    folders = [path for path in SCRIPTS if path.parent.name != "benchmarks" and path.name not in INNER]
    assert [path.name for path in folders if f"`{path.stem}`" not in (path.parent / "README.md").read_text()] == []


def test_results_name_benchmarks_as_modules() -> None:
    assert [path.parent.name for path in NAMING if "python benchmarks/" in path.read_text()] == []
