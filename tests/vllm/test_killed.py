"""Real servers whose processes are killed, as the kernel does when memory runs out: no process goes on alone."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.vllm.server import Server

pytestmark = pytest.mark.vllm

LIMIT_S = 60.0


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server("--max-num-seqs", "4")
    running.wait_ready()
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.wait()


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not ended within the limit."""
    _, alive = psutil.wait_procs(processes, LIMIT_S)
    return [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_the_engine_and_its_workers_end_with_a_killed_api_process(server: Server) -> None:
    started = psutil.Process(server.process.pid).children(recursive=True)
    assert {core.pid for core in started} >= set(server.engine_pids())
    server.process.kill()
    assert still_alive(started) == []


def test_a_server_whose_core_was_killed_ends_with_a_status_that_says_so(server: Server) -> None:
    started = psutil.Process(server.process.pid).children(recursive=True)
    (core,) = server.engine_pids()
    os.kill(core, signal.SIGKILL)
    assert server.wait() == 1
    assert still_alive(started) == []
    assert server.has_said("the engine has failed")
