"""Changes of settings while a server runs: all ranks and all API processes follow, or none does."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError, EngineError
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.process_page import Board, Boards
from sloserve.scheduler.config import SOURCE, source_text
from sloserve.scheduler.settings import PluginSettings, plugin_settings
from sloserve.vllm_plugin.server import engine_control, live_settings
from sloserve.vllm_plugin.server.live_settings import LiveSettings
from tests import bounded

SECTION = {"classes": {"chat": {"rank": 0, "ttft_ms": 500}, "jobs": {"rank": 1}}, "default_class": "chat"}


class Ranks:
    """Stands for the engines, which follow the section that they are sent."""

    def __init__(self) -> None:
        self.section: dict[str, Any] = dict(SECTION)
        self.before: dict[str, Any] = {}
        self.refuses: Exception | None = None
        self.undo_fails = ""

    async def set_settings(self, engine: Any, section: dict[str, Any]) -> str:
        if self.refuses is not None:
            raise self.refuses
        self.before, self.section = self.section, section
        return "change"

    async def undo(self, engine: Any, change: str) -> str:
        assert change == "change"
        self.section = self.before
        return self.undo_fails


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    ranks = Ranks()
    for name in ("set_settings", "undo"):
        monkeypatch.setattr(engine_control, name, getattr(ranks, name))
    return ranks


class Process:
    """One API process: its settings, and what followed them."""

    def __init__(self, number: int, processes: int, folder: Path | None, section: Mapping[str, Any] = SECTION) -> None:
        board = Board(2, 1) if folder is None else Board.published(("chat", "jobs"), 1, number, folder)
        self.clock = ManualClock(1000.0)
        self.live = LiveSettings({"sloserve": section}, processes, Boards(board, self.clock, folder), self.clock)
        self.followed: list[PluginSettings] = []
        self.live.tell(self.followed.append)

    def ttft_s(self) -> float | None:
        return self.live.now.settings.classes["chat"].targets.ttft_s


@pytest.fixture
def alone(ranks: Ranks) -> Process:
    return Process(0, 1, None)


@pytest.fixture
def pair(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    monkeypatch.setattr(page_folder, "page_folder", lambda: tmp_path)
    monkeypatch.setattr(live_settings, "_LOOK_AGAIN_S", 0.0)
    yield [Process(number, 2, tmp_path) for number in range(2)]


PATCH = {"classes": {"chat": {"ttft_ms": 300}}}


def test_a_patch_changes_what_it_names_and_is_logged(
    alone: Process, ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = bounded.run(alone.live.merge(None, {**PATCH, "objectives": {"nightly": "jobs"}}, "PUT from 127.0.0.1"))
    assert alone.ttft_s() == 0.3 and [one.classes["chat"].targets.ttft_s for one in alone.followed] == [0.3]
    assert ranks.section["classes"]["chat"] == {"rank": 0, "ttft_ms": 300}
    assert (answer["version"], answer["changed_by"], answer["changed_at_s"]) == (1, "PUT from 127.0.0.1", 1000.0)
    assert answer["changed"] == {"classes.chat.ttft_ms": [500.0, 300.0], "objectives.nightly": [None, "jobs"]}
    said = "sloserve: settings changed by PUT from 127.0.0.1, version 1: classes.chat.ttft_ms 500.0 -> 300.0; "
    assert capsys.readouterr().out.startswith(said)
    bounded.run(alone.live.merge(None, {"objectives": {"nightly": None}}, "PUT"))
    assert alone.live.now.settings.objectives == {} and alone.live.now.version == 2


def test_null_takes_back_what_was_set_of_the_only_class(ranks: Ranks) -> None:
    process = Process(0, 1, None, {})
    for patch in ({"batch": {"e2e_ms": 60000}}, {"batch": None}):
        bounded.run(process.live.merge(None, {"classes": patch}, "PUT"))
    assert process.live.now.settings == plugin_settings(None) and process.live.now.version == 2


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"polcy": "edf"}, "polcy: is not one of the settings that can change"),
        ({"policy": "edf"}, "policy: is not one of the settings that can change"),
        ({"classes": {"chat": {"ttft_ms": -1}}}, "classes.chat.ttft_ms"),
        ({"classes": {"third": {"rank": 2}}}, "a restart adds, removes and renames classes"),
        ({"tenants": {"acme": "nope"}}, "nope"),
    ],
)
def test_a_change_that_is_not_valid_changes_nothing(
    alone: Process, ranks: Ranks, patch: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        bounded.run(alone.live.merge(None, patch, "PUT"))
    assert says in str(refused.value)
    assert ranks.section == SECTION and alone.followed == [] and alone.live.now.version == 0


def test_a_change_that_a_rank_refuses_changes_nothing(alone: Process, ranks: Ranks) -> None:
    ranks.refuses = EngineError("the settings were not changed: rank 1: dead")
    with pytest.raises(EngineError, match="rank 1: dead"):
        bounded.run(alone.live.merge(None, PATCH, "PUT"))
    assert alone.ttft_s() == 0.5 and alone.followed == [] and alone.live.now.version == 0


def test_all_api_processes_follow_before_the_change_is_answered(pair: list[Process], ranks: Ranks) -> None:
    one, other = pair

    async def change() -> None:
        changing = asyncio.ensure_future(one.live.merge(None, PATCH, "PUT"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not changing.done() and one.ttft_s() == 0.5
        other.live._look()
        await changing

    bounded.run(change())
    assert (one.ttft_s(), other.ttft_s()) == (0.3, 0.3) and len(other.followed) == 1
    assert other.live.now.as_json() == one.live.now.as_json()
    other.live._look()
    assert len(other.followed) == 1, "it follows a version once"
    # A process that started later follows at its first look, and the next change may come from any.
    bounded.run(_with_looks(other.live.merge(None, {"classes": {"chat": {"ttft_ms": 200}}}, "PUT"), one))
    assert (one.ttft_s(), other.ttft_s()) == (0.2, 0.2) and one.live.now.version == 2


async def _with_looks(change: Any, *others: Process) -> Any:
    changing = asyncio.ensure_future(change)
    while not changing.done():
        for other in others:
            other.live._look()
        await asyncio.sleep(0)
    return await changing


def test_if_an_api_process_does_not_follow_in_time_all_go_back(pair: list[Process], ranks: Ranks) -> None:
    one, other = pair

    async def change() -> None:
        changing = asyncio.ensure_future(one.live.merge(None, PATCH, "PUT"))
        for _ in range(5):
            await asyncio.sleep(0)
        one.clock.advance_to(1000.0 + live_settings.FOLLOWED_WITHIN_S)
        with pytest.raises(EngineError, match=r"an API process did not follow within 10 s; all went back"):
            await changing

    bounded.run(change())
    assert ranks.section == SECTION and one.ttft_s() == 0.5
    other.live._look()
    assert other.ttft_s() == 0.5 and other.live.now.version == one.live.now.version == 2


def test_a_patch_is_laid_over_what_was_published_last(pair: list[Process], tmp_path: Path) -> None:
    one, other = pair
    stuck = Process(2, 3, tmp_path)

    async def change() -> None:
        changing = asyncio.ensure_future(one.live.merge(None, PATCH, "PUT"))
        for _ in range(5):
            await asyncio.sleep(0)
        other.live._look()
        assert other.ttft_s() == 0.3
        one.clock.advance_to(1000.0 + live_settings.FOLLOWED_WITHIN_S)
        with pytest.raises(EngineError, match="did not follow"):
            await changing
        await _with_looks(other.live.merge(None, {"max_body_bytes": 7}, "PUT"), one, stuck)

    bounded.run(change())
    assert [process.ttft_s() for process in (one, other, stuck)] == [0.5] * 3, "it was taken back"
    assert stuck.live.now.settings.max_body_bytes == 7


@pytest.mark.parametrize("text", ['{"version": 1, "section": {"polcy"', "[]", '{"version": null, "section": {}}'])
def test_a_published_file_that_cannot_be_read_changes_nothing(
    pair: list[Process], tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    page_folder.settings_file(tmp_path).write_text(text)
    for _ in range(3):
        pair[1].live._look()
    assert pair[1].ttft_s() == 0.5 and pair[1].followed == []
    assert len(caplog.records) == 1, "it is reported once, not at each look"


def test_a_published_file_is_read_again_after_a_fault_of_the_system(
    pair: list[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_folder.settings_file(tmp_path).write_text(
        json.dumps({"version": 1, "section": {"max_body_bytes": 7}, "changed_at_s": 1.0, "changed_by": "PUT"})
    )
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        monkeypatch.setattr(Path, "read_bytes", read)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", fail)
    pair[1].live._look()
    assert pair[1].live.now.version == 0
    pair[1].live._look()
    assert pair[1].live.now.version == 1


def test_a_request_that_is_cancelled_leaves_no_change_half_made(pair: list[Process], ranks: Ranks) -> None:
    one, other = pair

    async def change() -> None:
        request = asyncio.ensure_future(one.live.merge(None, PATCH, "PUT"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert ranks.section != SECTION and one.ttft_s() == 0.5
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await _with_looks(one.live.merge(None, {"max_body_bytes": 7}, "PUT"), other)

    bounded.run(change())
    assert (one.ttft_s(), other.ttft_s(), one.live.now.version) == (0.3, 0.3, 2)


def test_hangup_reads_the_file_again_with_flags_and_preset(
    alone: Process, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangup: None
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
    said: list[str] = []
    for name in ("say", "warn"):
        monkeypatch.setattr(live_settings, name, lambda line, **fields: said.append(line))
    file = tmp_path / "slo.yaml"
    file.write_text(json.dumps({**SECTION, "classes": {"chat": {"rank": 0, "ttft_ms": 300}, "jobs": {"rank": 1}}}))
    text = source_text(file, {"admission": None, "max_waiting": None}, None, None)
    assert text is not None
    monkeypatch.setenv(SOURCE, text)

    async def hang_up() -> None:
        alone.live.listen(None, 0)
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            while not said:
                await asyncio.sleep(0)
            assert alone.ttft_s() == 0.3 and alone.live.now.changed_by == "SIGHUP"
            file.write_text("classes: [")
            os.kill(os.getpid(), signal.SIGHUP)
            while len(said) < 2:
                await asyncio.sleep(0)
            assert said[1].startswith(f"SIGHUP: the settings stay as they are: {file}:") and alone.live.now.version == 1
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    bounded.run(hang_up())


def test_a_server_without_a_file_leaves_hangup_alone(alone: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SOURCE, raising=False)
    before = signal.getsignal(signal.SIGHUP)

    async def listen() -> None:
        alone.live.listen(None, 0)

    bounded.run(listen())
    assert signal.getsignal(signal.SIGHUP) is before
    assert source_text(None, {}, None, None) is None


@pytest.fixture
def hangup() -> Iterator[None]:
    """Keep the handler of SIGHUP as it is."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_server_under_nohup_ignores_hangups_and_so_do_its_engines(
    alone: Process, monkeypatch: pytest.MonkeyPatch, hangup: None
) -> None:
    monkeypatch.setenv(SOURCE, "[]")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    live_settings.pass_on_hangups()
    live_settings.outlast_hangups()

    async def listen() -> None:
        alone.live.listen(None, 0)

    bounded.run(listen())
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "processes that are started inherit this alone"


def test_a_hangup_before_an_api_process_listens_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, hangup: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SOURCE, raising=False)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    live_settings.outlast_hangups()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL, "a server without a file of settings ends"
    monkeypatch.setenv(SOURCE, "[]")
    live_settings.outlast_hangups()
    os.kill(os.getpid(), signal.SIGHUP)
    assert "SIGHUP: the server still starts" in capsys.readouterr().err


def test_a_hangup_that_reaches_no_api_process_says_why(
    monkeypatch: pytest.MonkeyPatch, hangup: None, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable(*args: object) -> None:
        raise PermissionError(13, "Permission denied", "pages")

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    monkeypatch.setattr(live_settings, "_has_terminal", lambda: False)
    monkeypatch.setattr(live_settings.page_folder, "page_files", unreadable)
    live_settings.pass_on_hangups()
    os.kill(os.getpid(), signal.SIGHUP)
    told = capsys.readouterr().err
    assert "no API process could be asked" in told and "Permission denied" in told
    assert "still starts" not in told


@pytest.mark.parametrize("gone", [True, False])
def test_a_server_ends_with_its_terminal(
    alone: Process, monkeypatch: pytest.MonkeyPatch, hangup: None, capsys: pytest.CaptureFixture[str], gone: bool
) -> None:
    terminal = [True, True, not gone, not gone]
    asked: list[int] = []
    stock = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    monkeypatch.setattr(live_settings, "_has_terminal", lambda: terminal.pop(0))
    monkeypatch.setattr(alone.live, "_reread", lambda engine, source: asyncio.sleep(0, asked.append(0)))
    monkeypatch.setenv(SOURCE, "[]")

    async def hang_up() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        live_settings.pass_on_hangups()
        passing_on = signal.getsignal(signal.SIGHUP)
        alone.live.listen(None, 0)
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            while not asked:
                await asyncio.sleep(0)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, passing_on)
        os.kill(os.getpid(), signal.SIGHUP)

    try:
        bounded.run(hang_up())
    finally:
        signal.signal(signal.SIGTERM, stock)
    assert asked == ([signal.SIGTERM] * 2 if gone else [0])
    assert ("the server still starts" in capsys.readouterr().err) != gone
