"""What is not installed is one line with the extra that brings it, and the base installs none of it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sloserve.core.extras import EXTRA, explained

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
PACKAGE = {"python_multipart": "python-multipart", "psycopg_pool": "psycopg"}
"""Packages whose names are not those of their modules."""

RUNS_WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({gone!r}))
from sloserve.cli import main
sys.argv = ["sloserve", *{arguments!r}]
main()
"""


def _named(requirements: list[str]) -> set[str]:
    return {match[0] for one in requirements if (match := re.match(r"[\w-]+", one))}


def test_each_module_is_of_its_extra_and_not_of_the_base() -> None:
    for module, extra in EXTRA.items():
        package = PACKAGE.get(module, module)
        assert package in _named(PROJECT["optional-dependencies"][extra])
        assert package not in _named(PROJECT["dependencies"])
    assert explained(ModuleNotFoundError(name="no_such_module")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--help"], None),
        (["check-config", "--policy", "edf"], None),
        (["policies"], None),
        (["presets"], None),
        (["fleet", "configs/fleet-tiny.yaml"], r"needs \w+, which is not installed: pip install 'sloserve\[fleet\]'"),
        (["edge", "--upstream", "https://a:1"], r"needs \w+, which is not installed: pip install 'sloserve\[http3\]'"),
        (["simulate", "--engine", "model"], r"needs \w+, which is not installed: pip install 'sloserve\[sim\]'"),
        (["serve", "builtin:tiny", "--port", "0"], r"serving needs scipy, .*'sloserve\[sim\]'"),
        (["workloads"], r"needs \w+, which is not installed: pip install 'sloserve\[sim\]'"),
    ],
)
def test_the_base_alone_serves_or_says_what_is_missing(arguments: list[str], said: str | None) -> None:
    program = RUNS_WITHOUT.format(gone=sorted(EXTRA), arguments=arguments)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    if said is None:
        assert ended.returncode == 0, ended.stderr
        return
    assert ended.returncode == 2 and re.fullmatch(f"sloserve: .*{said}\n", ended.stderr), ended.stderr
