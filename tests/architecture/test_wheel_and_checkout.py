"""Which policies and profiles the wheel has, and which a checkout adds for experiments and tests."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sloserve.core.files.model import read_yaml_model
from sloserve.estimator.planning_cost import PlanningCosts
from sloserve.estimator.step_time.profile import profile_names
from sloserve.scheduler.registry import FOR_EXPERIMENTS, FOR_TESTS, GROUP, policy_class, policy_names

ROOT = Path(__file__).parents[2]
WHEEL = {
    GROUP: {"andes", "auto", "econo", "edf", "fcfs", "priority", "qlm", "sa", "sjf"},
    FOR_EXPERIMENTS: {"andes-paper", "andes-parts", "econo-paper", "econo-parts", "niyama", "sa-batches"},
}
CHECKOUT = {
    FOR_EXPERIMENTS: {
        "atlas", "continuum", "edf-split", "fastserve", "multires", "orca", "plas", "rr", "sarathi", "srtf",
        "sync-coupled", "thunder-agent", "vllm-2023",
    },
    FOR_TESTS: {"chaos"},
}  # fmt: skip
PROFILES = {
    "sloserve": set(
        """
        a100-llama2-7b a100-llama3-70b-tp4 b200-deepseek-v4-pro-dp8 b200-gpt-oss-120b b200-llama3-70b-fp8
        b200-llama3-8b b200x4-deepseek-v4-flash b200x4-qwen3-235b b200x8-deepseek-v4-pro h100-gemma3-12b
        h100-gpt-oss-20b h100-granite4-small h100-llama2-7b h100-llama3-8b h100x2-gpt-oss-120b
        h100x2-qwen3-next-80b h100x4-llama3-70b-fp8 h200-gpt-oss-120b h200-llama3-8b h200x2-llama3-70b-fp8
        h200x4-deepseek-v4-flash h200x4-qwen3-235b h200x8-deepseek-v4-pro
        """.split()
    ),
    "benchmarks": set(
        """
        a10-mistral-7b a100-mistral-7b a100-opt-1.3b a100-opt-125m a100-opt-13b a100-opt-13b-12gb
        a100-opt-2.7b a100-opt-6.7b a100-vicuna-13b a100x2-llama-33b a100x4-opt-175b-int8 a100x4-opt-30b
        a100x4-opt-66b a100x8-opt-175b a10x2-vicuna-13b a40x4-opt-66b a800-qwen2.5-32b a800-qwen2.5-7b
        v100x2-qwen2.5-7b v100x4-qwen2.5-32b
        """.split()
    ),
}
"""Names of profiles by the package that has their files. Papers alone need those of ``benchmarks``."""


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


@pytest.mark.parametrize("package", PROFILES)
def test_each_package_has_its_own_profiles_and_costs_of_its_own_policies(package: str) -> None:
    folder = ROOT / package / "estimator"
    assert {path.stem for path in (folder / "profiles").iterdir()} == PROFILES[package]
    text = (folder / "planning_cost.yaml").read_text()
    priced = read_yaml_model(PlanningCosts, package, text).policies
    assert all(policy_class(name).__module__.startswith(f"{package}.") for name in priced)


def test_this_environment_has_both_distributions() -> None:
    assert set(profile_names()) >= PROFILES["sloserve"] | PROFILES["benchmarks"]
    assert set(policy_names(for_experiments=True)) >= WHEEL[FOR_EXPERIMENTS] | CHECKOUT[FOR_EXPERIMENTS]
    assert policy_class("chaos").__module__ == "tests.chaos", "run: make env"


@pytest.mark.slow
def test_a_process_anywhere_finds_what_the_checkout_adds(tmp_path: Path) -> None:
    """Engine cores are such processes: they start wherever the server started."""
    code = (
        "from sloserve.scheduler.registry import policy_class as p; print(p('sarathi').__name__, p('chaos').__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("Sarathi Chaos\n", "")
