"""The import contracts of pyproject.toml name every package, and the command line starts without heavy libraries."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

IMPORTERS = {
    "vllm": ["sloserve.vllm_plugin"],
    "torch": ["sloserve.vllm_plugin", "sloserve.fleet.router.learner"],
    "matplotlib": ["sloserve.sim.report"],
    "obstore": ["sloserve.fleet.batch_api.objects"],
    "ray": ["sloserve.fleet.pool.on_ray", "sloserve.fleet.beside.serve_router.router"],
    "aioquic": ["sloserve.http3"],
}
"""The modules that may import a heavy or an optional library."""


@pytest.mark.parametrize("library", sorted(IMPORTERS))
def test_a_library_is_protected_from_all_other_packages(library: str) -> None:
    protected = [c for c in CONTRACTS if library in c.get("protected_modules", [])]
    assert [c["allowed_importers"] for c in protected] == [IMPORTERS[library]]


def test_no_contract_lists_an_exception() -> None:
    assert not [c["name"] for c in CONTRACTS if "ignore_imports" in c]


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "sloserve.cli",
        "sloserve.scheduler.config",
        "sloserve.vllm_plugin",
        "sloserve.scheduler.edf",
        "sloserve.sim.model.engine",
        "sloserve.fleet.router.choose",
    ],
)
def test_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('vllm', 'torch', 'matplotlib', 'scipy') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
