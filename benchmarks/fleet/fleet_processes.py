"""Parts of ``sloserve fleet`` as processes of their own, for benchmarks of live fleets."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PACED_ENGINE = (
    *("--worker-cls", "benchmarks.paced_worker.PacedWorker", "--enforce-eager", "--block-size", "16"),
    *("--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor"),
    *("--stream-interval", "16"),
)
"""Flags of an engine that waits for a GPU's time. Tokens go out 16 at a time, and the first and the last at once, and
the worker has no process of its own, which would wait busily: else two cores would not do."""
PACED_ENVIRONMENT = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "HF_HUB_OFFLINE": "1"}
STOP_LIMIT_S = 40.0


class FleetProcesses:
    """Processes in ``folder`` by name, with their logs; ``planner-2`` is a second planner.

    folder: has the fleet's file and, once they run, its state. environment: beside that of this process. real_time:
    whether they get priority over all other work while they are ``hurried``.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], real_time: bool = False) -> None:
        self.folder, self.file, self.state = folder, folder / "fleet.yaml", folder / "state"
        self.state.mkdir(parents=True, exist_ok=True)
        self.real_time = real_time
        self._environment = {**os.environ, **environment}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Starts the part; its log goes on where an earlier one of this name ended."""
        command = [sys.executable, "-m", "sloserve.cli", "fleet", name.partition("-")[0], str(self.file)]
        command += ["--state", str(self.state), *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self._environment)

    def stop(self, *names: str) -> None:
        """Stops these, or all: each is told to, and killed if it does not end in time."""
        ending = [self.running.pop(name) for name in names or tuple(self.running) if name in self.running]
        for process in ending:
            process.send_signal(signal.SIGTERM)
        for process in ending:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
            process.kill()

    def cpu_s(self) -> float:
        """CPU seconds of all processes that live, those that they started included."""
        found = 0.0
        for process in self._tree():
            with suppress(psutil.Error):
                found += sum(process.cpu_times()[:2])
        return found

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Within it what other work the machine has waits for the fleet and for this process, as far as it is let."""
        self._schedule(os.SCHED_RR, 1)
        try:
            yield
        finally:
            self._schedule(os.SCHED_OTHER, 0)

    def _schedule(self, policy: int, priority: int) -> None:
        for process in [*self._tree(), psutil.Process()] if self.real_time else ():
            with suppress(psutil.Error, OSError):
                for thread in process.threads():
                    os.sched_setscheduler(thread.id, policy, os.sched_param(priority))

    def _tree(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in self.running.values():
            with suppress(psutil.Error):
                root = psutil.Process(process.pid)
                found += [root, *root.children(recursive=True)]
        return found
