"""Servers of builtin:tiny for benchmarks, in processes of their own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from sloserve.vllm_plugin.server.tiny_model import NAME, tiny_model_path

START_LIMIT_S = 300
BLOCK_TOKENS = 32
"""The CPU's attention kernel takes multiples of 32."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Two threads that wait for each other are slow beside other work."""


def sloserve_command(policy: str) -> list[str]:
    return [sys.executable, "-m", "sloserve.cli", "serve", NAME, "--policy", policy]


def plain_vllm_command() -> list[str]:
    """vLLM's own server, by the module behind `vllm serve`, which the distribution vllm-cpu cannot start."""
    command = [sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    command += ["--model", str(tiny_model_path()), "--served-model-name", NAME]
    return [*command, "--max-model-len", "4096", "--dtype", "float32", "--enforce-eager"]


def scarce_kv(blocks: int) -> list[str]:
    """Flags that leave requests ``blocks`` KV blocks of BLOCK_TOKENS, and room for 128 requests; vLLM keeps a block."""
    return ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(blocks + 1), "--max-num-seqs", "128"]


@contextmanager
def served(command: Sequence[str], port: int, log: Path, **variables: str) -> Iterator[str]:
    """The URL of a server that is ready; it is stopped at the end. variables: of its environment."""
    with running(command, port, log, **variables) as (url, _):
        yield url


def processes_of(server: subprocess.Popen[bytes]) -> dict[str, psutil.Process]:
    """A server's API process and its engine's core."""
    api = psutil.Process(server.pid)
    inside = api.children(recursive=True)
    return {"api": api, "core": next(one for one in inside if "EngineCore" in one.name() + " ".join(one.cmdline()))}


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, *, poll_s: float = 1.0, **variables: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """As :func:`served`, with the server's process. poll_s: seconds between two looks at whether it is ready."""
    url = f"http{'s' * ('--ssl-certfile' in command)}://127.0.0.1:{port}"
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"} | variables
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT, env=env)
        try:
            for _ in range(round(START_LIMIT_S / poll_s)):
                if process.poll() is not None:
                    raise SystemExit(f"the server did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
                if _is_up(url):
                    break
                time.sleep(poll_s)
            yield url, process
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    """Returns a port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", verify=False).is_success  # only this process has its certificate
    except httpx.HTTPError:
        return False
