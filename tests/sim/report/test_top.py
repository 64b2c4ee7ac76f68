"""``sloserve top`` at a terminal: each key does what the help says, and a lost or refusing server is said."""

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn

from sloserve.sim.report.live_requests import SORTS, ShownRows
from sloserve.sim.report.top_keys import BACKSPACE, ENTER, ESCAPE, KEYS, TopState, keys_of
from tests import bounded
from tests.wire.played_server import KEY, PLAUSIBLE, PlayedServer


def after(*keys: str) -> TopState:
    state = TopState()
    for key in keys:
        state = state.pressed(key)
    return state


def test_each_key_of_the_help_changes_what_is_shown() -> None:
    assert {"q", "?", "s", "/", "l", "Esc"} == set(KEYS)
    assert after("q").ended and after("?").helps and not after("?", "?").helps
    assert after("l").choice.late and not after("l", "l").choice.late
    names = list(SORTS)
    assert [after(*["s"] * n).choice.sort for n in range(len(names) + 1)] == [*names, names[0]]
    assert after("x", "1", "\N{SNOWMAN}") == TopState()


def test_a_filter_is_typed_kept_and_taken_away() -> None:
    typed = after("/", *"batq", BACKSPACE, "c")
    assert typed.choice.filter == "batc" and "filter: batc" in typed.says and not typed.ended
    kept = typed.pressed(ENTER)
    assert kept.choice.filter == "batc" and kept.typing is None and kept.pressed("q").ended
    assert kept.pressed(ESCAPE).choice == ShownRows() == typed.pressed(ESCAPE).choice
    assert len(after("/", *"x" * 500).choice.filter) == 40


def test_bytes_of_a_terminal_are_keys_and_arrows_are_none() -> None:
    assert list(keys_of(b"s/\x7f\r")) == ["s", "/", BACKSPACE, ENTER]
    assert list(keys_of(b"\x1b[A\x1b[1;5Cq\x1bOPl")) == ["q", "l"] and list(keys_of(b"\x1b")) == [ESCAPE]
    assert list(keys_of(b"\x1b[")) == [] and list(keys_of("ä\xff".encode("latin-1"))) == []


@contextmanager
def served(played: PlayedServer) -> Iterator[int]:
    server = uvicorn.Server(uvicorn.Config(played, port=0, log_level="error", lifespan="off", ws="none"))
    listening = server.config.bind_socket()

    def serve() -> None:
        asyncio.run(server.serve([listening]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60.0)


class Terminal:
    """A pseudo-terminal with ``sloserve top`` in it."""

    def __init__(self, port: int, key: str, columns: int = 140, lines: int = 50) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        env = {**os.environ, "SLOSERVE_ADMIN_KEY": key, "TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)}
        command = [sys.executable, "-m", "sloserve.cli", "top", "--url", f"http://127.0.0.1:{port}"]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True
        )
        os.close(slave)
        self.text = ""

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._master, keys.encode())

    def shows(self, *wanted: str) -> None:
        """Wait until a screen shows all of ``wanted``."""
        while not all(one in self.text for one in wanted):
            ready, _, _ = select.select([self._master], [], [], 60.0)
            assert ready and self._read(), f"{wanted} not in {self.text[-3000:]}"

    def ends(self) -> int:
        with bounded.within("the end of a command", 60.0):
            while self._read():
                pass
        return self.process.wait(60.0)

    def _read(self) -> bool:
        try:
            with bounded.within("what a terminal writes", 60.0):
                part = os.read(self._master, 1 << 16).decode(errors="replace")
        except OSError:  # the process is gone
            return False
        self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part)
        return bool(part)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60.0)
        os.close(self._master)


@pytest.fixture
def played() -> Iterator[tuple[PlayedServer, int]]:
    server = PlayedServer(PLAUSIBLE)
    with served(server) as port:
        yield server, port


@pytest.mark.slow
def test_keys_at_a_terminal(played: tuple[PlayedServer, int]) -> None:
    terminal = Terminal(played[1], KEY)
    try:
        with bounded.within("what a terminal shows", 100.0):
            terminal.shows("interactive: 51% of 212", "next step: ", "q end", "requests have missed a deadline")
            assert "output tokens/s" in terminal.text
            terminal.press("?")
            terminal.shows("show or hide these keys", "sort the requests by the next of")
            terminal.press("?/batch\r")
            terminal.shows("filter 'batch': ", "all places are taken")
            assert "0-" in terminal.text
            terminal.press("\x1b")
            terminal.shows("missed a deadline")
            terminal.press("sss")
            terminal.shows("sorted by phase")
            terminal.press("q")
            assert terminal.ends() == 0
    finally:
        terminal.close()


@pytest.mark.slow
def test_a_wrong_key_ends_the_command_and_a_lost_server_does_not(played: tuple[PlayedServer, int]) -> None:
    refused = Terminal(played[1], "wrong")
    lost = Terminal(played[1], KEY)
    try:
        with bounded.within("what a terminal shows", 100.0):
            refused.shows("refuses the key")
            assert refused.ends() == 2
            lost.shows("q end", "interactive: 51%")
            assert httpx.get(f"http://127.0.0.1:{played[1]}/down").is_success
            lost.shows("lost: ", "retrying every 2 s")
            lost.press("q")
            assert lost.ends() == 0
    finally:
        refused.close()
        lost.close()
