"""End the processes of a server together: engine cores, workers and API servers, which vLLM starts.

vLLM stops its processes in order when it is asked to while it serves. In three cases it does not, and here it does:

* The process that started them is killed, as the kernel does when memory runs out. Cores and workers would go on, and
  hold their memory, and serve no client; each ends when its starter is gone. Only processes that vLLM started are
  watched, known by the names that it gives them: an engine inside its caller's process belongs to the caller.
* The core dies. The server would end with status 0, as if it had been asked to; it ends with status 1.
* A signal comes while the engine starts. vLLM would lose SIGTERM, and act on SIGINT only once the engine runs.
"""

import asyncio
import functools
import logging
import multiprocessing
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from sloserve.core import process_death

logger = logging.getLogger(__name__)

STARTED_BY_VLLM: Final = ("EngineCore", "VllmWorker-", "ApiServer_", "APIServer_DPRank_")
"""Prefixes of the names of the processes that vLLM starts through multiprocessing.

Its coordinator of data parallelism, ``VLLM_DP_Coordinator``, runs no code of ours, and is not among them.
"""

_ENTRY: Final = "vllm.entrypoints.launchers.api_server.entry"
"""vLLM's module that runs its HTTP server. Some of its other commands load it too, and are stopped alike."""


def install(ours: Callable[[Any], bool]) -> None:
    """Have cores and workers end with their starter; API servers call :func:`end_with_starter` themselves.

    Args:
        ours: Returns whether the engine of a vLLM configuration runs our scheduler.
    """
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    make_executor, init_device = Executor.__init__, WorkerWrapperBase.init_device

    @functools.wraps(make_executor)
    def init(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if ours(vllm_config):
            end_with_starter()  # before the model is loaded, which takes minutes
        make_executor(self, vllm_config, *args, **kwargs)

    @functools.wraps(init_device)
    def init_watched(self: Any, *args: Any, **kwargs: Any) -> None:
        if ours(self.vllm_config):
            end_with_starter(ask=False)  # vLLM's own thread asks it to end, unless its model still loads
        init_device(self, *args, **kwargs)

    Executor.__init__, WorkerWrapperBase.init_device = init, init_watched


def end_with_starter(*, ask: bool = True) -> None:
    """End this process with the one that started it, if vLLM did.

    Args:
        ask: See :mod:`sloserve.core.process_death`.
    """
    if multiprocessing.current_process().name.startswith(STARTED_BY_VLLM):
        process_death.end_with_starter(ask=ask)


def fail_with_engine(has_failed: Callable[[Any], bool]) -> None:
    """Have vLLM's HTTP server in this process, if it is loaded, end with status 1 if its engine has failed.

    vLLM ends such a server with status 0, after which a supervisor that restarts on failure leaves it ended.

    Args:
        has_failed: Returns whether an engine client's core died while the server was not asked to stop.
    """
    entry = sys.modules.get(_ENTRY)
    serve_http = getattr(entry, "serve_http", None)
    if serve_http is None or hasattr(serve_http, "__wrapped__"):
        return

    @functools.wraps(serve_http)
    async def serve(app: Any, *args: Any, **kwargs: Any) -> Awaitable[None]:
        engine = getattr(app.state, "engine_client", None)  # the state goes when the server ends
        ending: Awaitable[None] = await serve_http(app, *args, **kwargs)
        return _failing(ending) if engine is not None and has_failed(engine) else ending

    entry.serve_http = serve  # type: ignore[union-attr]


async def _failing(ending: Awaitable[None]) -> None:
    await ending
    logger.error("the engine has failed, see its error above: the server ends with status 1")
    raise SystemExit(1)


@contextmanager
def stoppable_start() -> Iterator[None]:
    """Have SIGTERM and SIGINT end the process at once while an engine client starts, if vLLM's HTTP server runs here.

    vLLM raises KeyboardInterrupt on SIGTERM, which its ``zmq_socket_ctx`` swallows: the server then waits ten minutes
    for a core that waits for it. asyncio turns the first SIGINT into a cancellation, which takes effect at the next
    await, when the start is over.
    """
    if _ENTRY not in sys.modules or threading.current_thread() is not threading.main_thread():
        yield
        return
    if _is_cancelled():
        _stop(signal.SIGINT)
    before = {number: signal.signal(number, _stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_cancelled() -> bool:
    """Return whether a SIGINT has come that takes effect at the next await."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return False
    return task is not None and task.cancelling() > 0


def _stop(number: int, _frame: FrameType | None = None) -> None:
    logger.warning("%s while the engine starts: the server ends", signal.Signals(number).name)
    raise SystemExit(128 + number)
