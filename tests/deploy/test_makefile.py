"""What the Makefile runs, by ``make --dry-run`` with an environment that is stamps alone."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def recipe(venv: Path, target: str, *arguments: str) -> str:
    """Return the commands that make would run for the target."""
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={venv}", target, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout


def test_serving_installs_the_engine_alone(tmp_path: Path) -> None:
    commands = recipe(tmp_path, "serve")
    assert "-e '.[cpu]'" in commands and "sloserve serve" in commands
    assert "dev" not in commands and "--compile-bytecode" not in commands


def test_the_development_environment_adds_the_rest_and_builds_nothing_again(tmp_path: Path) -> None:
    commands = recipe(tmp_path, "env")
    assert commands.count("--reinstall-package sloserve") == 1
    assert commands.index("-e '.[cpu]'") < commands.index("-r pyproject.toml --extra cpu --extra dev")


def test_a_second_start_installs_nothing(tmp_path: Path) -> None:
    (tmp_path / ".serves-cpu").touch()
    commands = recipe(tmp_path, "serve")
    assert "uv pip" not in commands and "sloserve serve" in commands
    (tmp_path / ".installed-cpu").touch()
    assert "uv pip" not in recipe(tmp_path, "static")


@pytest.mark.parametrize("changed", ["csrc/bindings/module.cpp", "pyproject.toml", "overrides.txt"])
def test_a_change_of_what_is_built_installs_again(changed: str, tmp_path: Path) -> None:
    (tmp_path / ".serves-cpu").touch()
    assert "--reinstall-package sloserve" in recipe(tmp_path, "serve", f"--what-if={changed}")


def test_an_engine_for_gpus_has_all_that_it_asks_for(tmp_path: Path) -> None:
    """The overrides leave Triton out, among others, which a GPU needs."""
    assert "--overrides" in recipe(tmp_path, "serve")
    assert "--overrides" not in recipe(tmp_path, "serve", "ENGINE=gpu")
