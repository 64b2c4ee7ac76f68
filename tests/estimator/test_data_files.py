"""What an installed package adds to profiles and planning costs, and one that is broken."""

import logging
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from sloserve.estimator import data_files
from sloserve.estimator.data_files import GROUP, data_folders
from sloserve.estimator.planning_cost import CostLine, planning_costs
from sloserve.estimator.step_time.profile import load_profile, profile_names

SHIPPED = "h100-llama3-8b"
COSTS = """
hardware: one core
source: made up
policies: {newest: {base_us: 7}, edf: {base_us: 8}}
"""


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """What was found is looked for again, now and after the test."""
    found = (data_folders, profile_names, planning_costs)
    for each in found:
        each.cache_clear()
    yield
    for each in found:
        each.cache_clear()


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package without code that registers itself; beside it, one that is not there."""
    folder = tmp_path / "their_figures"
    (folder / "profiles").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"theirs": folder.name, "gone": "not_installed_figures"}
    found = {name: EntryPoint(name, package, GROUP) for name, package in names.items()}
    monkeypatch.setattr(data_files, "registered", lambda group: found if group == GROUP else {})
    return folder


def test_an_installed_package_adds_profiles_and_replaces_none(added: Path) -> None:
    text = (resources.files("sloserve.estimator") / "profiles" / f"{SHIPPED}.yaml").read_text()
    mine = text.replace(f"name: {SHIPPED}", "name: mine")
    (added / "profiles" / "mine.yaml").write_text(mine)
    (added / "profiles" / f"{SHIPPED}.yaml").write_text(mine)
    (added / "profiles" / "README.md").write_text("no profile")
    assert {"mine", SHIPPED} <= set(profile_names()) and "README" not in profile_names()
    assert load_profile("mine").name == "mine" and load_profile(SHIPPED).name == SHIPPED


def test_an_installed_package_adds_planning_costs_and_replaces_none(added: Path) -> None:
    shipped = planning_costs().of("edf").plan
    planning_costs.cache_clear()
    (added / "planning_cost.yaml").write_text(COSTS)
    assert planning_costs().of("newest").plan == CostLine(base_us=7)
    assert planning_costs().of("edf").plan == shipped and planning_costs().hardware != "one core"


def test_a_package_that_cannot_be_imported_is_logged_and_left_out(
    added: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=data_files.logger.name):
        assert [folder.name for folder in data_folders()] == ["estimator", "their_figures"]
    (said,) = caplog.messages
    assert "package not_installed_figures are missing" in said and "No module named" in said
