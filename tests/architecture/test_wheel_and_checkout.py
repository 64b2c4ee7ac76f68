"""Which policies the wheel registers, and which a checkout adds for experiments and tests."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sloserve.scheduler.registry import FOR_EXPERIMENTS, FOR_TESTS, GROUP, policy_class, policy_names

ROOT = Path(__file__).parents[2]
WHEEL = {
    GROUP: {"andes", "auto", "econo", "edf", "fcfs", "priority", "qlm", "sa", "sjf"},
    FOR_EXPERIMENTS: {"andes-paper", "andes-parts", "econo-paper", "econo-parts", "niyama", "sa-batches"},
}
CHECKOUT = {
    FOR_EXPERIMENTS: {"fastserve", "multires", "orca", "rr", "sarathi", "srtf", "sync-coupled"},
    FOR_TESTS: {"chaos"},
}


def _registered(project: Path) -> dict[str, dict[str, str]]:
    """Return the policies that a ``pyproject.toml`` registers, with their classes, by entry point group."""
    groups = tomllib.loads(project.read_text())["project"]["entry-points"]
    return {group: policies for group, policies in groups.items() if group in (GROUP, FOR_EXPERIMENTS, FOR_TESTS)}


@pytest.mark.parametrize(
    ("project", "names", "packages"),
    [("pyproject.toml", WHEEL, ("sloserve.",)), ("benchmarks/pyproject.toml", CHECKOUT, ("benchmarks.", "tests."))],
)
def test_each_distribution_registers_its_own_policies(
    project: str, names: dict[str, set[str]], packages: tuple[str, ...]
) -> None:
    found = _registered(ROOT / project)
    assert {group: set(policies) for group, policies in found.items()} == names
    assert all(path.startswith(packages) for policies in found.values() for path in policies.values())


def test_this_environment_has_both_distributions() -> None:
    assert set(policy_names(for_experiments=True)) >= WHEEL[FOR_EXPERIMENTS] | CHECKOUT[FOR_EXPERIMENTS]
    assert policy_class("chaos").__module__ == "tests.chaos", "run: make env"


@pytest.mark.slow
def test_a_process_anywhere_finds_what_the_checkout_adds(tmp_path: Path) -> None:
    """Engine cores are such processes: they start wherever the server started."""
    code = (
        "from sloserve.scheduler.registry import policy_class as p; print(p('sarathi').__name__, p('chaos').__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("Sarathi Chaos\n", "")
