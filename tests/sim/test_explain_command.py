"""``sloserve explain``: a request is named as the live view names it, and doubt has an exit status of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from sloserve.cli import root
from sloserve.core.errors import ConfigError
from sloserve.engine.recording.reading import Recording
from sloserve.sim.replay.explain_course import late_courses
from tests.sim.replay.played import played, workload
from tests.sim.replay.test_explain import written


@pytest.fixture(scope="module")
def recording() -> Recording:
    return played(workload(150, rps=18.0))[0]


@pytest.fixture(scope="module")
def folder(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root.import_commands()
    folder = tmp_path_factory.mktemp("recordings")
    written(recording, folder, "20260101T000000Z-1-rank0")
    written(played(workload(60, rps=1.0), seed=1)[0], folder, "20260101T000000Z-2-rank1")
    return folder


def run(*argv: object) -> Any:
    """Run the command; return its exit status, or nothing."""
    return root.app(["explain", *(str(one) for one in argv)], standalone_mode=False)


@pytest.mark.slow
def test_the_late_ones_are_listed_and_the_worst_is_explained(
    folder: Path, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    late = late_courses(recording)
    run("--late", "--recording", "20260101T000000Z-1-rank0", "--folder", folder)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(late) and lines[1].startswith(f"0-{late[0].request.number} ")
    run("--worst", 1, "--recording", "20260101T000000Z-1-rank0", "--folder", folder, "--seeds", 1)
    out = capsys.readouterr().out
    worst = max(late, key=lambda one: one.late_by_s)
    assert out.startswith(f"request 0-{worst.request.number}: class interactive")
    assert "It would have been in time:" in out and "under edf in place of fcfs" in out
    assert "without the largest request beside it" in out


@pytest.mark.slow
def test_a_request_is_found_by_rank_and_number(
    folder: Path, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    number = max(late_courses(recording), key=lambda one: one.late_by_s).request.number
    run(f"0-{number}", "--folder", folder, "--seeds", 1, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["request"] == f"0-{number}" and told["recording"].endswith("rank0")
    assert told["mistrust"] is None and any(one["saves"] for one in told["tried"])
    assert told["missed"]["ttft"]["was_s"] > told["missed"]["ttft"]["limit_s"]


@pytest.mark.slow
def test_what_cannot_be_replayed_as_it_was_exits_with_3(
    folder: Path, capsys: pytest.CaptureFixture[str], recording: Recording, tmp_path: Path
) -> None:
    number = 5
    late_s = recording.arrived[number].at_s + 90.0
    first = {**recording.first_token_s, number: late_s}
    end = type(recording.ended[number])(number, late_s + 0.1, True, 5, 0, b"")
    odd = Recording(
        recording.head,
        recording.arrived,
        recording.admitted,
        first_token_s=first,
        ended={**recording.ended, number: end},
        steps=recording.steps,
    )
    written(odd, tmp_path, "run-rank0")
    assert run(number, "--folder", tmp_path, "--seeds", 1) == 3
    assert "No cause is named, since the replay of what ran has the request in time" in capsys.readouterr().out


@pytest.mark.slow
def test_names_of_requests_are_checked(folder: Path) -> None:
    for argv, message in (
        (("chatcmpl-7",), "request ids are not recorded"),
        (("7-3",), "rank 7: has no recording"),
        ((), "give a REQUEST, --late or --worst"),
        (("3", "--late"), "give a REQUEST, --late or --worst"),
        (("1-9999",), "is not in the recording"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(*argv, "--folder", folder)
