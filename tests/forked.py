"""Processes forked from one that has imported vLLM: the import costs 16 s of CPU, and a server takes it twice.

The fork server is multiprocessing's own. It starts with the first process that is asked of it, has imported vLLM and
does nothing else, so that there is no thread, engine or setting of a test to inherit, and ends with the test process.

A forked process has the environment and the working directory of who starts it. What a library read when it was
imported it does not read again (``HF_HUB_OFFLINE``, ``OMP_NUM_THREADS``, ``VLLM_LOGGING_LEVEL``): a test of such a
setting starts its processes plainly. Strings hash differently than in the test process, whatever PYTHONHASHSEED says.
"""

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import context, forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

import prometheus_client.values
import psutil
import pytest
import setproctitle

from sloserve.vllm_plugin.server.serve import TINY_ENVIRONMENT
from tests.orphans import kill_with_children

_ROOT = Path(__file__).parents[1]


class _Process(context.ForkServerProcess):
    """Has the environment and the working directory of who starts it; the fork server's are those of its own start."""

    def start(self) -> None:
        self._environment, self._folder = dict(os.environ), os.getcwd()
        # One OpenMP thread: vLLM sets their number in the environment of what it spawns, too late for a fork.
        its_own = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
        # It looks for what it imports in the folder that it is started in.
        with mock.patch.dict(os.environ, TINY_ENVIRONMENT | its_own), contextlib.chdir(_ROOT):
            forkserver.ensure_running()
        super().start()

    def run(self) -> None:
        setproctitle.getproctitle()  # it finds where the title stands by where the environment does, which now changes
        os.environ.clear()
        os.environ.update(self._environment)
        os.chdir(self._folder)
        # What it starts is forked from it in turn: vLLM asks for "spawn" wherever its platform is a CPU.
        contexts = context._concrete_contexts  # type: ignore[attr-defined]
        contexts["spawn"] = contexts["fork"]
        os.register_at_fork(after_in_child=_choose_prometheus_values)
        gc.unfreeze = lambda: None  # which an engine calls when it ends, before it collects garbage
        # Of its own, so that what a killed engine leaves in shared memory goes when this process ends.
        resource_tracker._resource_tracker._fd = None  # type: ignore[attr-defined]
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # may start others
        super().run()


def _choose_prometheus_values() -> None:
    """Whether the metrics of several processes are added up, which prometheus_client chooses when it is imported."""
    prometheus_client.values.ValueClass = prometheus_client.values.get_value_class()


forkserver.set_forkserver_preload(["tests.preloaded"])


def run_forked(function: Callable[[], None], limit_s: float = 240.0) -> None:
    """Call a function of a module in a forked process, whose engines are its children; fail if it raises.

    Args:
        function: the function to call.
        limit_s: seconds that it may take; its process is killed then.
    """
    process = _Process(target=function, daemon=True)
    process.start()
    process.join(limit_s)
    if process.exitcode is None:
        for one in (*psutil.Process(process.pid).children(recursive=True), process):
            one.kill()
        pytest.fail(f"waited {limit_s:g} s for the end of {function.__qualname__} in a process of its own")
    assert process.exitcode == 0, "see what it printed"


class Command:
    """A forked ``sloserve``: of ``subprocess.Popen`` what the tests use. stdout: what it prints, errors included.

    Should a test leave it running, it is terminated when the test process ends.
    """

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        output, its_output = multiprocessing.Pipe(duplex=False)
        with output, its_output:
            self._process = _Process(target=_sloserve, args=(arguments, its_output), daemon=True)
            with mock.patch.dict(os.environ, env or {}):
                self._process.start()
            self.stdout = open(os.dup(output.fileno()), encoding="utf-8", errors="replace")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("sloserve", timeout)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it and all that it started: an engine does not end at once when its server is killed."""
        kill_with_children(self)


def _sloserve(arguments: Sequence[str], output: Connection) -> None:
    """The command, in a forked process."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    output.close()
    sys.argv = ["sloserve", *arguments]
    from sloserve.cli import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
