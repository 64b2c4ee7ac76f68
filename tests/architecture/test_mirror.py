"""Tests stand where what they test stands: ``tests/FOLDER`` for ``sloserve/FOLDER``."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHERS = {
    "architecture": "what holds for all of the code",
    "avx2": "a CPU without AVX-512 for all other tests",
    "benchmarks": "mirrors benchmarks/",
    "compat": "other versions of vLLM: their environment, and the table of what passed",
    "csrc": "the C++ of csrc/, through its Python names and without",
    "deploy": "what deploy/ holds, by the tools that read it",
    "docs": "pages of docs/, and what they tell readers to run",
    "equality": "real engines whose text is that of stock vLLM",
    "fleet/faults": "whole fleets in virtual time, with faults from a seed",
    "fleet/live_faults": "whole fleets of real processes, whose parts are replaced or killed",
    "fleet/stand_in": "the engines that tests of the fleet put in vLLM's place",
    "fuzz": "bodies and routes of all servers",
    "golden": "decisions of all policies, line by line",
    "grafana": "the dashboard in docs/",
    "interop": "client libraries, as recorded and against a real server",
    "mutants": "whether tests notice a change of the code",
    "parity": "the engine model beside vLLM's scheduler",
    "properties": "what all policies keep to",
    "upstream": "vLLM's own tests, run with our scheduler",
    "vllm": "a server of vLLM's with the plugin, from outside",
}
"""Folders without a package of their name, and what they test."""


def _home(folder: Path) -> Path:
    """Where what is tested in ``folder`` stands."""
    return ROOT / folder if folder.parts[:1] == ("benchmarks",) else ROOT / "sloserve" / folder


def _is_other(folder: Path) -> bool:
    return any(one.as_posix() in OTHERS for one in (folder, *folder.parents)) and folder.parts[:1] != ("benchmarks",)


FOLDERS = sorted({path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")})


def test_each_folder_of_tests_has_the_name_of_what_it_tests() -> None:
    strays = [folder.as_posix() for folder in FOLDERS if not _is_other(folder) and not _home(folder).is_dir()]
    assert strays == [], "move them to the folder of what they test, or say in OTHERS what that is"


@pytest.mark.parametrize("folder", OTHERS)
def test_no_other_folder_is_left_over(folder: str) -> None:
    assert (ROOT / "tests" / folder).is_dir() and (folder == "benchmarks" or not _home(Path(folder)).is_dir())


def test_no_test_stands_beside_the_folders() -> None:
    assert list((ROOT / "tests").glob("test_*.py")) == []
