"""A real ``sloserve serve`` for tests, in processes of its own."""

import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import bounded
from tests.forked import Command
from tests.ports import free_port

STARTUP_LIMIT_S = 300.0
MODEL = "builtin:tiny"
ADMIN_KEY, USER_KEY = "admin-secret", "user-secret"
MAX_NUM_SEQS = 4


class Server:
    """A running ``sloserve serve builtin:tiny``; its output is read as it comes.

    It is forked, see :mod:`tests.forked`; test_shutdown.py has the server that is started as an operator starts it.
    """

    def __init__(self, *flags: str, api_servers: int = 1, env: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log: list[str] = []
        self._came = threading.Condition()
        self._ready = threading.Event()
        self._starting = api_servers
        self._listens = False
        count = ["--api-server-count", str(api_servers)] if api_servers > 1 else []
        self.process = Command(["serve", "builtin:tiny", "--port", str(self.port), *flags, *count], env)
        self._client = httpx.Client(base_url=self.url, timeout=60)  # making one loads all certificates
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._came:
                self.log.append(line)
                self._came.notify_all()
            self._starting -= "Application startup complete" in line
            self._listens |= line.startswith("sloserve is ready on ")
            if self._starting == 0 and self._listens:
                self._ready.set()
        self._ready.set()  # it ended, which :meth:`wait_ready` sees by how many still start

    def wait_ready(self) -> None:
        self._ready.wait(STARTUP_LIMIT_S)  # what has not come by then is said below
        if self.process.poll() is not None or self._starting > 0 or not self._listens:
            pytest.fail("the server did not start:\n" + "".join(self.log[-60:]))
        self._client.get("/health").raise_for_status()

    def has_said(self, text: str) -> bool:
        """Whether ``text`` is in the log; waits for it, since an answer may be here before what was printed earlier."""
        with self._came:
            return self._came.wait_for(lambda: text in "".join(self.log), 60.0)

    def engine_pids(self) -> list[int]:
        """The server's EngineCore processes, by the names that vLLM gives them.

        The kernel's list of a thread's children may lack some while others end, so this looks at all processes.
        """
        pids = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it ends meanwhile
                if "EngineCore" in " ".join([child.name(), *child.cmdline()]):
                    pids.append(child.pid)
        return pids

    def metrics(self) -> str:
        return self._client.get("/metrics").raise_for_status().text

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.exit_status()

    def exit_status(self) -> int:
        """Return its exit status, once it has ended. After two minutes it is killed, and the test fails."""
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail("waited 120 s for the end of the server:\n" + "".join(self.log[-60:]))
        self._client.close()
        with bounded.within("the end of the server's output, which its engines have as well"):
            self._reader.join()
        self.process.stdout.close()
        return status


def complete(http: httpx.Client, prompt: str, **more: Any) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, **more}
    return str(http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"])


def samples(server: Server, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric by the values of their labels, sorted by label name."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(server.metrics())
        for sample in family.samples
        if sample.name == name
    }
