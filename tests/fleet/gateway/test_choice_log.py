"""The log of choices: what is written, who may read it, its size, and what happens if it cannot be written."""

import asyncio
import json
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.file_lock import close_lock, has_locked, open_to_lock
from sloserve.fleet.gateway.choice_log import FILES, ChoiceLog
from sloserve.fleet.router.choice_records import VERSION, ChoiceLine, RunLine, read_choices
from sloserve.fleet.router.features import Schema
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET
from tests.fleet.gateway.test_gateway import line as line_to
from tests.fleet.gateway.test_gateway import run
from tests.fleet.gateway.test_model_sets import ROUTER, TWO

MODELS = ["small", "large"]
SCHEMA = Schema(2)
ABOUT = RunLine(VERSION, "", SCHEMA.as_text(), MODELS, "greedy", 0.1)
LINE = ChoiceLine(
    n=0,
    at_s=5.0,
    task="law",
    weight=2.0,
    x=[0.5] * len(SCHEMA.names),
    allowed=[0, 1],
    best=1,
    chosen=0,
    why="explored",
    p=0.05,
    quality=0.4,
    limit_s=3.0,
    took_s=1.0,
    in_time=True,
    tokens=64,
)


def line(n: int, **changes: object) -> ChoiceLine:
    return msgspec.structs.replace(LINE, n=n, **changes)


def log_to(path: Path, *lines: ChoiceLine, most_bytes: int = 1 << 20) -> ChoiceLog:
    log = ChoiceLog(path, most_bytes, ABOUT)
    assert all([log.add(one) for one in lines])
    log.close()
    return log


def test_choices_come_back_in_order_with_their_rewards(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    log_to(path, line(2, in_time=False), line(0), line(1, in_time=None), line(3, why="conversation", p=1.0))
    found = read_choices([path], SCHEMA.as_text(), MODELS)
    assert found.reward.tolist()[::2] == [0.8, 0.0] and found.reward[1] != found.reward[1]
    assert found.fixed.tolist() == [False, False, False, True] and found.propensity.tolist() == [0.05] * 3 + [1.0]
    assert found.states.shape == (4, len(SCHEMA.names)) and found.allowed.all() and found.lines_left_out == 0


def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    path.touch(0o644)
    log_to(path, line(0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_its_size_is_bounded_and_each_file_can_be_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    log_to(path, *(line(n) for n in range(300)), most_bytes=40_000)
    files = [file for file in sorted(tmp_path.iterdir()) if file.suffix != ".lock"]
    assert len(files) == FILES and sum(file.stat().st_size for file in files) <= 40_000
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    counts = [read_choices([file], SCHEMA.as_text(), MODELS).run.size for file in files]
    together = read_choices(files, SCHEMA.as_text(), MODELS)
    assert together.run.size == sum(counts) > 50 and set(together.run) == {0}


def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    log_to(path, line(0), line(1))
    path.write_bytes(path.read_bytes()[:-20])
    assert read_choices([path], SCHEMA.as_text(), MODELS).lines_left_out == 1
    log_to(path, line(0), line(1))  # a later run goes on in the same file
    found = read_choices([path], SCHEMA.as_text(), MODELS)
    assert (found.run.tolist(), found.lines_left_out) == ([0, 1, 1], 1)


def test_a_line_that_is_no_choice_of_this_router_is_left_out_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    log_to(path, line(0), line(1, chosen=2), line(2, x=[0.5]), line(3, allowed=[1]))
    found = read_choices([path], SCHEMA.as_text(), MODELS)
    assert (found.run.size, found.lines_left_out) == (1, 3)
    with pytest.raises(ConfigError, match="among small, large.*the router has tiny, huge"):
        read_choices([path], SCHEMA.as_text(), ["tiny", "huge"])
    path.write_text("a\n")
    with pytest.raises(ConfigError, match="no choices; set `log`"):
        read_choices([path], SCHEMA.as_text(), MODELS)
    with pytest.raises(ConfigError, match="cannot read the log"):
        read_choices([tmp_path / "none"], SCHEMA.as_text(), MODELS)


def test_a_run_of_another_router_costs_its_own_lines_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "choices.jsonl", msgspec.structs.replace(ABOUT, models=["small", "huge"])
    old = ChoiceLog(path, 1 << 20, other)
    assert old.add(line(0)) and old.add(line(1))
    old.close()
    log_to(path, line(0))
    found = read_choices([path], SCHEMA.as_text(), MODELS)
    assert (found.run.size, found.lines_left_out) == (1, 2)


def test_a_line_that_cannot_be_encoded_ends_the_log_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_to(tmp_path / "choices.jsonl", line(0, task=object()))
    assert log.has_ended and "choices are no longer logged: cannot write" in caplog.text


def test_a_thread_that_cannot_start_ends_the_log_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    log = ChoiceLog(tmp_path / "choices.jsonl", 1 << 20, ABOUT)
    assert not log.add(line(0)) and not log.add(line(1))
    log.close()
    assert [record.message for record in caplog.records] == [
        f"choices are not logged: cannot start the thread that writes {tmp_path / 'choices.jsonl'}: "
        "can't start new thread"
    ]


def test_a_disk_that_is_full_ends_the_log_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes half of the second line: it is torn, and nothing is written after it."""
    path, lines, write = tmp_path / "choices.jsonl", [line(n) for n in range(9)], os.write

    def until_full(fd: int, data: bytes) -> int:
        return write(fd, data[:100] if b'"n":1,' in data else data)

    monkeypatch.setattr(os, "write", until_full)
    log = log_to(path, *lines)
    assert log.has_ended and not log.add(line(9))
    assert [record.message for record in caplog.records] == [
        f"choices are no longer logged: cannot write {path}: [Errno 28] No space left on device"
    ]
    found = read_choices([path], SCHEMA.as_text(), MODELS)
    assert (found.run.size, found.lines_left_out) == (1, 1)


def test_a_pipe_is_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "choices.jsonl"
    os.mkfifo(path)
    log_to(path, line(0))
    assert "not a regular file" in caplog.text


def test_a_folder_that_is_not_there_ends_the_log_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_to(tmp_path / "none" / "choices.jsonl", line(0))
    assert not log.add(line(1))
    assert "choices are no longer logged: cannot write" in caplog.text


def test_a_second_gateway_does_not_write_the_same_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "choices.jsonl"
    lock = open_to_lock(path.with_name("choices.jsonl.lock"))
    assert has_locked(lock)
    log_to(path, line(0))
    close_lock(lock)
    assert not path.exists() and "another gateway writes" in caplog.text


def test_a_record_has_names_of_the_routers_file_and_numbers_alone() -> None:
    written = json.loads(msgspec.json.encode(LINE))
    assert {name for name, value in written.items() if isinstance(value, str)} == {"kind", "task", "why"}
    assert not {"tenant", "prompt", "messages", "key", "conversation", "id"} & written.keys()


async def _asked_and_left(tmp_path: Path, log: Path) -> None:
    text = FLEET + ROUTER.replace("token_ms: 1000", f"token_ms: 1000\n  log: {log}\n  explore: 0.1")
    async with line_to(tmp_path, *TWO, text=text, name="gateway-1") as to:  # by its name no request explores
        to.door.instances["node-a/1"].active = "legal"
        await to.complete(model="legal")  # waits until the gateway knows
        law = {"x-slo-task": "law"}
        for prompt in ("a secret", "another one"):
            await to.complete(prompt, model="auto", headers={**law, "x-slo-network-ms": "100"}, stream=True)
        await to.complete("no time", model="auto", headers={**law, "x-slo-network-ms": "86400000"})
        refused = await to.complete("wrong", model="auto", headers=law, max_tokens="x")
        assert refused.status_code == 400
        to.door.instances["node-a/1"].engines["legal"].faults.step_s = 3_600.0
        asking = asyncio.create_task(to.complete("who leaves", model="auto", headers=law, stream=True))
        await until(lambda: to.door.instances["node-a/1"].in_flight)
        asking.cancel()
        await until(lambda: not to.served.gateway.parts.places.requests)
        assert await to.metric('sloserve:gateway_auto_logged_total{result="written"}') == 4
        assert await to.metric('sloserve:gateway_auto_quality_count{policy="greedy"}') == 3


@pytest.mark.slow
def test_a_gateway_logs_what_it_chose_and_what_became_of_it(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    run(lambda: _asked_and_left(tmp_path, path))
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    about, choices = lines[0], lines[1:]
    assert about["models"] == ["chat", "legal"] and about["explore"] == 0.1 and len(choices) == 4
    assert [(one["n"], one["task"], one["in_time"]) for one in choices] == [
        (0, "law", True),
        (1, "law", True),
        (2, "law", False),
        (4, "law", None),  # the engine refused request 3
    ]
    first, _, late, _ = choices
    assert (first["best"], first["tokens"], first["limit_s"]) == (1, 5, 5.0)
    assert first["p"] == pytest.approx(0.95)
    assert (first["chosen"], first["quality"]) == (1, 1.0)
    assert late["why"] == "soonest" and late["p"] == 1.0
    text = path.read_text()
    assert not any(said in text for said in ("secret", "leaves", "local", "Bearer"))
    found = read_choices([path], Schema(2).as_text(), ["chat", "legal"])
    assert found.chosen.size == 4 and found.lines_left_out == 0
