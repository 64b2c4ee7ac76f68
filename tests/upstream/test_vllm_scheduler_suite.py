"""vLLM's own scheduler tests pass with SLOScheduler wherever they pass with stock AsyncScheduler.

See run.py for how, exceptions.toml for what is skipped and what may differ. EDF, which plans, runs the whole suite;
FCFS, which does not, and stock run what EDF does not pass.
"""

import json
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_forked
from tests.upstream.fetch import CannotFetch, fetched_tests
from tests.upstream.run import run_here, vllm_version

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

HERE = Path(__file__).parent
STOCK = "async"
OURS = ("slo:edf", "slo:fcfs")
# With vLLM 0.32.0 EDF passed 638 and built 251 schedulers; far fewer means that the harness broke.
FEWEST_PASSED = 400
FEWEST_BUILT = 150

Outcomes = Mapping[str, Mapping[str, str]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of the suite over all subjects, in a process that is forked from one that has vLLM."""
    path = tmp_path_factory.mktemp("upstream") / "outcomes.json"
    log = path.with_name("log.txt")
    try:
        root = fetched_tests(vllm_version())
    except CannotFetch as reason:
        pytest.skip(f"cannot fetch vLLM's tests: {reason}")
    try:
        run_forked(partial(run_here, root, ",".join((*OURS, STOCK)), path, ["--where-lost"], log))
    except AssertionError:
        pytest.fail(log.read_text()[-6000:])
    result: dict[str, Any] = json.loads(path.read_text())
    for subject, outcomes in result["outcomes"].items():
        print(
            f"{subject}: {len(_passed(outcomes))} of {len(outcomes)} passed, "
            f"{result['built'].get(subject, 0)} schedulers built"
        )
    return result


def _passed(outcomes: Outcomes) -> set[str]:
    return {case for case, outcome in outcomes.items() if outcome["outcome"] == "passed"}


def _differences() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = tomllib.loads((HERE / "exceptions.toml").read_text())["differs"]
    return listed


def _covers(entry: Mapping[str, Any], case: str, message: str) -> bool:
    return fnmatchcase(case, entry.get("test", "*")) and entry.get("message", "") in message


def _lost(report: dict[str, Any], subject: str) -> dict[str, str]:
    """Cases that pass with stock and not with ``subject``, and why."""
    ours = report["outcomes"][subject]
    missing = {"outcome": "absent", "message": "did not run"}
    cases = sorted(_passed(report["outcomes"][STOCK]) - _passed(ours))
    return {case: ours.get(case, missing)["message"] for case in cases}


def test_the_suite_ran_on_the_schedulers_named(report: dict[str, Any]) -> None:
    first, *others = *OURS, STOCK
    assert len(_passed(report["outcomes"][first])) >= FEWEST_PASSED
    assert report["built"][first] >= FEWEST_BUILT
    for subject in others:
        assert report["built"].get(subject, 0) > 0, subject
        assert report["outcomes"][subject].keys() == report["outcomes"][first].keys()


@pytest.mark.parametrize("subject", OURS)
def test_passes_wherever_stock_passes(report: dict[str, Any], subject: str) -> None:
    entries = [entry for entry in _differences() if subject in entry["subjects"]]
    lost = _lost(report, subject)
    unexplained = {
        case: message for case, message in lost.items() if not any(_covers(e, case, message) for e in entries)
    }
    assert not unexplained


@pytest.mark.parametrize("subject", OURS)
def test_every_listed_difference_still_exists(report: dict[str, Any], subject: str) -> None:
    lost = _lost(report, subject)
    entries = [entry for entry in _differences() if subject in entry["subjects"]]
    assert not [e for e in entries if not any(_covers(e, case, message) for case, message in lost.items())]
