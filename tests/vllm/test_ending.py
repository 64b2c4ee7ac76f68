"""Real servers whose processes are killed, as the kernel does when memory runs out, or told to end while they start: no
process goes on alone.
"""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests import bounded
from tests.ended import has_ended
from tests.vllm.server import Server

pytestmark = pytest.mark.vllm

LIMIT_S = 60.0


@pytest.fixture
def starting() -> Iterator[Server]:
    running = Server("--max-num-seqs", "4")
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.exit_status()


@pytest.fixture
def server(starting: Server) -> Server:
    starting.wait_ready()
    return starting


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not ended within the limit."""
    _, alive = psutil.wait_procs(processes, LIMIT_S)
    return [one for one in alive if not has_ended(one)]


def test_the_engine_and_its_workers_end_with_a_killed_api_process(server: Server) -> None:
    started = psutil.Process(server.process.pid).children(recursive=True)
    assert {core.pid for core in started} >= set(server.engine_pids())
    server.process.kill()
    assert still_alive(started) == []


def test_a_server_whose_core_was_killed_ends_with_a_status_that_says_so(server: Server) -> None:
    started = psutil.Process(server.process.pid).children(recursive=True)
    (core,) = server.engine_pids()
    os.kill(core, signal.SIGKILL)
    assert server.exit_status() == 1
    assert still_alive(started) == []
    assert server.has_said("the engine has failed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_engine_starts_ends_the_server_in_one_line(starting: Server, number: signal.Signals) -> None:
    assert starting.has_said("non-default args")  # vLLM's, before it makes the engine
    with bounded.within("the server to start its engine"):
        while not starting.engine_pids():
            assert starting.process.poll() is None
    started = psutil.Process(starting.process.pid).children(recursive=True)
    starting.process.send_signal(number)
    assert starting.exit_status() == 128 + number
    assert still_alive(started) == []
    log = "".join(starting.log)
    assert f"{number.name} while the engine starts: the server ends" in log and "Traceback" not in log
