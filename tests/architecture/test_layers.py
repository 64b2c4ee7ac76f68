"""The import contracts of pyproject.toml name every package, and the command line starts without heavy libraries."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PACKAGES = sorted(p.parent.name for p in (ROOT / "sloserve").glob("*/__init__.py"))

MAY_IMPORT = {"vllm": {"vllm_plugin"}, "torch": {"vllm_plugin", "kernels", "fleet"}, "matplotlib": {"report"}}
"""Packages that may import a heavy library."""


@pytest.mark.parametrize("library", sorted(MAY_IMPORT))
def test_every_other_package_is_forbidden_to_import(library: str) -> None:
    (contract,) = [c for c in CONTRACTS if c.get("forbidden_modules") == [library]]
    packages = {f"sloserve.{p}" for p in PACKAGES if p not in MAY_IMPORT[library]}
    assert set(contract["source_modules"]) == packages | {"sloserve.cli", "sloserve.config", "sloserve.settings"}


def test_in_the_fleet_only_the_training_of_its_router_imports_torch() -> None:
    files = sorted((ROOT / "sloserve" / "fleet").rglob("*.py"))
    importing = [f for f in files if re.search(r"^\s*(?:import|from) torch\b", f.read_text(), re.MULTILINE)]
    assert [f.relative_to(ROOT).as_posix() for f in importing] == ["sloserve/fleet/router/train.py"]


def test_no_contract_lists_an_exception() -> None:
    assert not [c["name"] for c in CONTRACTS if "ignore_imports" in c]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "sloserve.cli",
        "sloserve.config",
        "sloserve.vllm_plugin",
        "sloserve.scheduler.edf",
        "sloserve.sim.model.engine",
        "sloserve.fleet.router.choose",
    ],
)
def test_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('vllm', 'torch', 'matplotlib', 'scipy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
