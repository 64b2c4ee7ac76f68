"""What does `make serve` cost a new machine: processor time from a fresh clone to the first token, and packages?

Usage: python -m benchmarks.serving.first_token [--commit HEAD] [--engine cpu]

Clones this repository into a temporary folder, runs `make serve` there as a newcomer does, asks for one token as soon
as /health answers, and reads the CPU time that make and all processes below it have used by then. Packages come from
the package manager's cache where it has them, so run it twice on a new machine. Prints the figures as JSON.
"""

import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from benchmarks.arguments import parser_for
from benchmarks.servers import free_port
from sloserve.vllm_plugin.server.tiny_model import NAME

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 1800
POLL_S = 0.2

_LEFT_OUT = re.compile(r"VIRTUAL_ENV|MAKE\w*|MFLAGS|PYTEST_\w+|PYTHONPATH|PYTHONDONTWRITEBYTECODE")
"""Variables of a shell that a newcomer's does not have: an activated environment, an outer make, a test run."""


def cpu_s(make: psutil.Process) -> float:
    """Return the CPU seconds of a process and all below it, with those that have ended and were waited for."""
    total = 0.0
    for one in (make, *make.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def serves(make: psutil.Process) -> bool:
    """Return whether the environment is made and the server's own command runs."""
    for one in make.children(recursive=True):
        try:
            command = " ".join(one.cmdline())
        except psutil.Error:
            continue
        if f"sloserve serve {NAME}" in command:
            return True
    return False


def one_start(clone: Path, engine: str, log: Path) -> dict[str, float]:
    """Run `make serve` in the clone up to its first token and return what it took. log: gets its output."""
    began_s, port, environment_s, environment_cpu_s = time.perf_counter(), free_port(), None, 0.0
    env = {name: value for name, value in os.environ.items() if not _LEFT_OUT.fullmatch(name)}
    command = ["make", "serve", f"ENGINE={engine}", f"PORT={port}"]
    with log.open("w", encoding="utf-8") as out:
        started = subprocess.Popen(command, cwd=clone, stdout=out, stderr=subprocess.STDOUT, env=env)
    make = psutil.Process(started.pid)
    try:
        while time.perf_counter() - began_s < LIMIT_S:
            if started.poll() is not None:
                raise SystemExit(f"make serve ended:\n{log.read_text(encoding='utf-8')[-2000:]}")
            if environment_s is None and serves(make):
                environment_s, environment_cpu_s = time.perf_counter() - began_s, cpu_s(make)
            if environment_s is not None and _first_token(f"http://127.0.0.1:{port}"):
                break
            time.sleep(POLL_S)
        else:
            raise SystemExit(f"no token after {LIMIT_S} s:\n{log.read_text(encoding='utf-8')[-2000:]}")
        total_s = cpu_s(make)
        return {
            "cpu_s": round(total_s, 1),
            "environment_cpu_s": round(environment_cpu_s, 1),
            "server_cpu_s": round(total_s - environment_cpu_s, 1),
            "seconds": round(time.perf_counter() - began_s, 1),
            "environment_seconds": round(environment_s, 1),
        }
    finally:
        below = make.children(recursive=True)
        started.terminate()
        for one in psutil.wait_procs([make, *below], timeout=30)[1]:
            one.kill()


def _first_token(url: str) -> bool:
    try:
        if not httpx.get(f"{url}/health").is_success:
            return False
        body = {"model": NAME, "prompt": "a", "max_tokens": 1, "temperature": 0}
        return httpx.post(f"{url}/v1/completions", json=body, timeout=60).is_success
    except httpx.TransportError:
        return False


def installed(clone: Path) -> dict[str, float]:
    """Return how many packages the clone's environment has and its size in GB on disk."""
    site = next(clone.glob(".venv/lib/python*/site-packages"))
    size = sum(one.lstat().st_blocks * 512 for one in site.rglob("*"))
    return {"packages": sum(1 for _ in site.glob("*.dist-info")), "gigabytes": round(size / 1e9, 2)}


def main() -> None:
    given = parser_for(__doc__, commit="HEAD", engine="cpu").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "sloserve")
        subprocess.run(["git", "clone", "-q", REPOSITORY, clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "-q", given.commit], check=True)
        found = one_start(clone, given.engine, Path(folder, "log"))
        print(json.dumps({"commit": given.commit, **found, **installed(clone)}, indent=1))


if __name__ == "__main__":
    main()
