"""Progress where there is no terminal: few lines, from which a log shows how far the work is."""

import io

import pytest
from rich.console import Console

from sloserve.core.progress_bar import progress


def test_a_log_gets_a_line_for_each_tenth_and_a_terminal_none(capsys: pytest.CaptureFixture[str]) -> None:
    for console in (Console(file=io.StringIO()), Console(file=io.StringIO(), force_terminal=True)):
        with progress("requests", console, total=40) as bar:
            for _ in range(40):
                bar.advance()
        lines = capsys.readouterr().err.splitlines()
        assert [line.partition(",")[0] for line in lines] == (
            [] if console.is_terminal else [f"requests: {4 * i} of 40 ({10 * i}%)" for i in range(1, 11)]
        )


def test_a_slow_step_is_followed_by_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    console = Console(file=io.StringIO(), get_time=lambda: now_s[0])
    with progress("scenarios", console) as bar:
        for done, now_s[0] in ((1, 10.0), (2, 65.0), (3, 70.0), (1000, 75.0)):
            bar.update(done, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "scenarios: 2 of 1000 (0%), 65 s",
        "scenarios: 1000 of 1000 (100%), 75 s",
    ]
