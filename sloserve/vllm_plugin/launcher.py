"""Fork engines from a process that has vLLM imported, so that a new one saves the import's 16 s of CPU time.

The process reads orders from standard input and responds on standard output, a JSON object on each line:

- An order is ``{"id": 1, "arguments": ["MODEL", "--uds", ...], "environment": {...}, "log": PATH}``.
- Its response is ``{"id": 1, "pid": 4711}`` or ``{"id": 1, "error": TEXT}``.
- When an engine ends, the process reports ``{"pid": 4711, "status": -9}``.

Only this process has vLLM imported and does nothing else: no thread runs, no accelerator is initialised, and a forked
process finds everything as after an import. Once CUDA is initialised nothing may be forked, and every order is refused.

A forked engine leads a process group and dies with this process; what it starts is forked in turn, and dies with it. A
library does not read again what it read from the environment when it was imported (``OMP_NUM_THREADS``).
"""

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn

from sloserve.core.process_death import die_with, die_with_named_parent

READY: Final = "ready"
_PRELOADED: Final = (
    "sloserve.cli",
    "sloserve.api.middleware",
    "sloserve.vllm_plugin",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
)
"""Modules that every server and its engine import; platforms add theirs."""
_OF_PLATFORM: Final = {"cpu": ("vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner")}


def main(preload: Callable[[], None] | None = None, engine: Callable[[], None] | None = None) -> None:
    """Serve orders until standard input ends.

    Args:
        preload: Imports what engines need; given by tests.
        engine: Runs an engine with the arguments in ``sys.argv``; given by tests.
    """
    orders, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # libraries print to standard output
    (preload or _preload)()
    launcher = _Launcher(answers, engine or _serve)
    launcher.say({READY: True})
    launcher.serve(orders)


def _preload() -> None:
    from vllm.platforms import current_platform

    for module in (*_PRELOADED, *_OF_PLATFORM.get(current_platform.device_type, ())):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:  # another version of vLLM has it elsewhere, and engines import it then
            print(f"not imported ahead: {error}", file=sys.stderr)
    gc.collect()
    gc.freeze()  # pages of what is imported stay shared with what is forked


class _Launcher:
    """Forks engines and reports their ends.

    Args:
        answers: File descriptor to which responses are written.
        engine: Runs an engine in a forked process.
    """

    def __init__(self, answers: int, engine: Callable[[], None]) -> None:
        self._answers, self._engine = answers, engine
        self._ended, wake = os.pipe()
        for end in (self._ended, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._wake = wake

    def say(self, answer: dict[str, Any]) -> None:
        os.write(self._answers, json.dumps(answer).encode() + b"\n")

    def serve(self, orders: int) -> None:
        read = b""
        while True:
            ready, _, _ = select.select([orders, self._ended], [], [])
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            if orders in ready:
                part = os.read(orders, 65536)
                if not part:
                    return
                *lines, read = (read + part).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        if _cuda_is_initialised():
            self.say(
                {"id": order["id"], "error": "CUDA is initialised, and a process that was forked could not use it"}
            )
            return
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.say({"id": order["id"], "error": str(error)})
            return
        if pid == 0:
            _be_engine(parent, order, (self._answers, self._ended, self._wake), self._engine)
        self.say({"id": order["id"], "pid": pid})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.say({"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _be_engine(parent: int, order: dict[str, Any], launchers: tuple[int, ...], engine: Callable[[], None]) -> NoReturn:
    """Run an engine in a forked process.

    Args:
        parent: Process id of the launcher.
        order: The order to carry out.
        launchers: File descriptors that belong to the launcher alone.
        engine: Runs an engine with the arguments in ``sys.argv``.
    """
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nowhere, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for descriptor in (*launchers, log, nowhere):
            os.close(descriptor)
        _find_title()
        os.environ.update(order["environment"])
        die_with(parent)
        sys.argv = ["sloserve", *order["arguments"]]
        engine()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _find_title() -> None:
    """Find the process title now: it is found by the place of the environment in memory, which changes soon."""
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.getproctitle()


def _serve() -> None:
    os.register_at_fork(after_in_child=die_with_named_parent)
    _fork_what_vllm_spawns()
    sys.argv.insert(1, "serve")
    runpy.run_module("sloserve.cli", run_name="__main__", alter_sys=True)


def _cuda_is_initialised() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _fork_what_vllm_spawns() -> None:
    """Fork the engine and workers that vLLM would spawn where its platform is a CPU, or it takes a fork for unsafe."""

    def context() -> Any:
        return multiprocessing.get_context("spawn" if _cuda_is_initialised() else "fork")

    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm") and "get_mp_context" in vars(module):
            module.get_mp_context = context  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
