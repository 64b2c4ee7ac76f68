"""What is not installed is one line with the extra that brings it, and the base installs none of it."""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sloserve
from sloserve.core import extras
from sloserve.core.extras import EXTRA, explained, install_command
from tests.cli.forked_commands import ForkedCommands, forked_commands, run_afresh
from tests.whole import WHOLE

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
PACKAGE = {
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "python_multipart": "python-multipart",
    "psycopg_pool": "psycopg",
}
"""Packages whose names are not those of their modules."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    """Commands where no extra is installed."""
    with forked_commands(tmp_path_factory.mktemp("base"), sorted(EXTRA)) as commands:
        yield commands


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
        (
            ["fleet", "configs/fleet-tiny.yaml"],
            r"needs \w+, which is not installed: .*'\.\[fleet\]', in .*",
        ),
        (
            ["fleet", "picker", "configs/picker.yaml"],
            r"sloserve fleet picker needs \w+, which is not installed: .*'\.\[picker\]', in .*",
        ),
        (
            ["edge", "--upstream", "https://a:1"],
            r"needs \w+, which is not installed: .*'\.\[http3\]', in .*",
        ),
        (["simulate", "--engine", "model"], r"needs \w+, which is not installed: pip install -e '\.\[sim\]', in .*"),
        (["check-config", "--policy", "sa"], r"policy sa needs scipy, .*'\.\[sim\]', in .*"),
        (["check-config", "--shadow-policy", "qlm"], r"policy qlm needs scipy, .*'\.\[sim\]', in .*"),
        (
            ["check-config", "--policy", "auto:length=gaussian"],
            r"policy auto:length=gaussian needs scipy, .*'\.\[sim\]', in .*",
        ),
        (["serve", "builtin:tiny", "--policy", "sa", "--port", "0"], r"policy sa needs scipy, .*'\.\[sim\]', in .*"),
        (["workloads"], r"needs \w+, which is not installed: pip install -e '\.\[sim\]', in .*"),
    ],
)
def test_the_base_alone_serves_or_says_what_is_missing(
    arguments: list[str], said: str | None, base: ForkedCommands
) -> None:
    ended = run_afresh(arguments, os.environ, sorted(EXTRA)) if WHOLE else base.run(arguments, os.environ)
    if said is None:
        assert ended.returncode == 0, ended.stderr
        return
    assert ended.returncode == 2 and re.fullmatch(f"sloserve: .*{said}\n", ended.stderr), ended.stderr


def test_the_hint_in_a_checkout_installs_the_checkout() -> None:
    assert install_command("ray") == f"pip install -e '.[ray]', in {Path.cwd()}"
    assert install_command() == f"pip install -e '.', in {Path.cwd()}"


class _Installed:
    def __init__(self, url: str | None) -> None:
        self._url = url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._url is None else json.dumps({"url": self._url, "archive_info": {}})


def test_the_hint_of_an_installed_wheel_names_the_file_that_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "my wheels" / "sloserve-0.1.0-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir()
    wheel.touch()
    monkeypatch.setattr(sloserve, "__file__", str(tmp_path / "site-packages" / "sloserve" / "__init__.py"))

    def hint(url: str | None) -> str:
        monkeypatch.setattr(extras, "distribution", lambda name: _Installed(url))
        return install_command("ray")

    assert hint(wheel.as_uri()) == f"pip install '{wheel}[ray]'"
    assert hint(wheel.parent.as_uri()) == f"pip install '.[ray]', in {wheel.parent}"
    unknown = f"pip install './sloserve-{sloserve.__version__}-....whl[ray]', the wheel file that you installed"
    for gone in (None, (tmp_path / "gone.whl").as_uri(), "https://host/sloserve.whl"):
        assert hint(gone) == unknown
