"""Commands in processes forked from one that has loaded what commands load, but neither vLLM nor torch.

Loading is most of what a wrong command costs. The process that is forked runs ``python -m tests.cli.forked_commands
[MODULE...]``, where the modules are not installed; it reads a line of JSON for each command, and writes one.
"""

import gc
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
LARGE = ("vllm", "torch")
LIMIT_S = 120
"""Seconds after which a command is killed."""
PRELOADED = [
    "sloserve.cli",
    "sloserve.api.http3",
    "sloserve.api.serve_command",
    "sloserve.scheduler.commands",
    "sloserve.vllm_plugin.server.serve",
]

AFRESH = """
import sys
sys.modules.update(dict.fromkeys(filter(None, sys.argv.pop(1).split(","))))
from tests.cli.forked_commands import run_command
run_command()
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended. cpu_s: CPU seconds that it took, what was loaded before included."""

    returncode: int
    stdout: str
    stderr: str
    cpu_s: float


class ForkedCommands:
    """Forks a process for each command."""

    def __init__(self, forked: "subprocess.Popen[str]", folder: Path) -> None:
        self._forked, self._folder = forked, folder

    def run(self, arguments: Sequence[str], env: Mapping[str, str]) -> Ended:
        """Run ``sloserve ARGUMENTS`` in the checkout."""
        from tests import bounded  # which the process that is forked does not load

        assert self._forked.stdin is not None and self._forked.stdout is not None
        files = [str(self._folder / name) for name in ("stdout", "stderr")]
        print(
            json.dumps({"argv": list(arguments), "env": dict(env), "files": files}), file=self._forked.stdin, flush=True
        )
        with bounded.within(f"the end of sloserve {shlex.join(arguments)}", LIMIT_S + 10):
            ended = json.loads(self._forked.stdout.readline())
        return Ended(ended["status"], *(Path(file).read_text() for file in files), ended["cpu_s"])


def run_afresh(arguments: Sequence[str], env: Mapping[str, str], lacks: Sequence[str] = ()) -> Ended:
    """Run ``sloserve ARGUMENTS`` in the checkout, in a process that has loaded nothing.

    Args:
        arguments: what follows the command's name.
        env: its environment.
        lacks: modules that are not installed.
    """
    before = os.times()
    command = [sys.executable, "-c", AFRESH, ",".join(lacks), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env, cwd=ROOT)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Ended(ended.returncode, ended.stdout, ended.stderr, cpu_s)


@contextmanager
def forked_commands(folder: Path, lacks: Sequence[str] = ()) -> Iterator[ForkedCommands]:
    """Start the process that is forked.

    Args:
        folder: where files are kept that commands write.
        lacks: modules that are not installed.
    """
    command = [sys.executable, "-m", "tests.cli.forked_commands", *lacks]
    forked = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert forked.stdin is not None and forked.stdout is not None
    try:
        yield ForkedCommands(forked, folder)
    finally:
        forked.stdin.close()
        forked.stdout.close()
        try:
            forked.wait(LIMIT_S)
        finally:
            forked.kill()


def _forks() -> bool:
    """Fork for each line, and return True in the forked process; False when there are no more lines."""
    for line in sys.stdin:
        asked = json.loads(line)
        process = os.fork()
        if not process:
            signal.alarm(LIMIT_S)
            for file, stream in zip(asked["files"], (sys.stdout, sys.stderr), strict=True):
                opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(opened, stream.fileno())
            os.environ.clear()
            os.environ.update(asked["env"])
            sys.argv = ["sloserve", *asked["argv"]]
            return True
        _, status, used = os.wait4(process, 0)
        cpu_s = time.process_time() + used.ru_utime + used.ru_stime
        print(json.dumps({"status": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s}), flush=True)
    return False


def run_command() -> None:
    """Run the command of ``sys.argv``, and add to its errors which large library it has loaded."""
    from sloserve.cli import main

    try:
        main()
    finally:
        for large in set(LARGE) & sys.modules.keys():
            print(large, "was imported", file=sys.stderr)


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(sys.argv[1:]))
    for name in PRELOADED:
        import_module(name)
    gc.freeze()
    if _forks():
        run_command()
