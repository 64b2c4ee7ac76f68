"""Processes in virtual time: each has an event loop and threads of its own, and can be killed or stopped.

A :class:`Process` is an asyncio event loop without sockets. Its handles, its timers and its threads' next steps are
events of the :class:`Kernel`, which runs them one after another in the order of virtual time. What a thread does is
run in a greenlet, which waits with :meth:`Kernel.pause`: there other processes have their turn, or the thread's process
is killed, and the thread never goes on.
"""

import asyncio
import contextvars
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from enum import Enum
from typing import Any, Final, TypeVar

import greenlet
import numpy as np

T = TypeVar("T")

START_S: Final = 1_700_000_000.0
"""Epoch seconds at which every world begins."""
_MOST_AT_ONCE: Final = 500_000
"""Events at one instant of virtual time, after which the members must be spinning."""

_MOST_AT_END: Final = 10_000
"""Events after each of the calls that end all tasks of a world."""


class Spinning(Exception):
    """Members do work again and again in no time."""


class State(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class Kernel:
    """Virtual time, and what happens when."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.now_s = rng, START_S
        self.processes: list[Process] = []
        self.is_over = False
        self.steps = 0
        """Events until now."""
        self._ready: deque[tuple[Process, Callable[[], object]]] = deque()
        self._timers: list[tuple[float, int, Process, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._main = greenlet.getcurrent()

    def soon(self, process: "Process", call: Callable[[], object]) -> None:
        """Have the process make this call once all that is due now has been done."""
        self._ready.append((process, call))

    def at(self, process: "Process", when_s: float, call: Callable[[], object]) -> None:
        """Have the process make this call at a time."""
        heapq.heappush(self._timers, (when_s, next(self._numbers), process, call))

    def after(self, process: "Process", delay_s: float, call: Callable[[], object]) -> None:
        """Have the process make this call after ``delay_s`` seconds."""
        self.at(process, self.now_s + delay_s, call)

    def run_until(self, until_s: float) -> None:
        """Let all that happens until then happen. Raises: Spinning."""
        self._main = greenlet.getcurrent()
        at_once = 0
        while True:
            while self._ready:
                process, call = self._ready.popleft()
                self.steps += 1
                at_once += 1
                if at_once > _MOST_AT_ONCE:
                    raise Spinning(f"{process.name}: {at_once} events at one instant")
                process.step(call)
            if not self._timers or self._timers[0][0] > until_s:
                break
            when_s, _, process, call = heapq.heappop(self._timers)
            if when_s > self.now_s:
                self.now_s, at_once = when_s, 0
            self._ready.append((process, call))
        self.now_s = max(self.now_s, until_s)

    @property
    def is_in_thread(self) -> bool:
        """Whether the caller runs in a thread of a process."""
        return greenlet.getcurrent() is not self._main

    def pause(self, delay_s: float) -> None:
        """Let time pass for the thread that calls this. It does nothing outside of threads."""
        thread = greenlet.getcurrent()
        if thread is self._main or self.is_over:
            return
        process: Process = thread.process  # type: ignore[attr-defined]
        process.reach_pause()
        self.after(process, delay_s, thread.switch)
        self._main.switch()

    def start_thread(self, process: "Process", run: Callable[[], object]) -> None:
        """Begin a thread of the process."""

        def begin() -> None:
            thread = greenlet.greenlet(run)
            thread.process = process  # type: ignore[attr-defined]
            process.threads.add(thread)
            thread.switch()
            if thread.dead:
                process.threads.discard(thread)

        self.soon(process, begin)

    def close(self) -> None:
        """End all processes: their tasks are cancelled, and nothing that they still want happens."""
        self.is_over = True
        for process in self.processes:
            process.state = State.RUNNING
            process.backlog.clear()
            for thread in list(process.threads):
                thread.throw(greenlet.GreenletExit)
        self._timers.clear()
        for _ in range(20):
            for process in self.processes:
                for task in list(process.tasks):
                    task.cancel()
            for _ in range(_MOST_AT_END):  # anyio cancels a task at every turn of its loop until it has ended
                if not self._ready:
                    break
                process, call = self._ready.popleft()
                process.step(call)
        self._ready.clear()
        self.processes.clear()


class ProcessClock:
    """The clocks of one process. ahead_s: how far its host's wall clock has been set from the others'."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.ahead_s = kernel, 0.0

    def now_s(self) -> float:
        return self._kernel.now_s + self.ahead_s

    def monotonic_s(self) -> float:
        return self._kernel.now_s - START_S


class Task(asyncio.Task[Any]):
    """A task of a process. created_s: when what it does was decided."""

    created_s = START_S


class Process(asyncio.AbstractEventLoop):
    """A process: an event loop, and the threads of its executors.

    Args:
        place: Name of its end of network links.
    """

    def __init__(self, kernel: Kernel, name: str, place: str) -> None:
        self.kernel, self.name, self.place = kernel, name, place
        self.clock = ProcessClock(kernel)
        self.state = State.RUNNING
        self.backlog: deque[Callable[[], object]] = deque()
        self.threads: set[Any] = set()
        self.tasks: set[Task] = set()
        self.on_death: list[Callable[[], None]] = []
        self.faults: list[str] = []
        """What its event loop had to report."""
        self.disturbed_s = float("-inf")
        """Last time at which it was stopped or cut off, or found the store away."""
        self.at_pause: Callable[[], None] | None = None
        """Called once, when a thread of the process is before or after a transaction or a write next."""
        self.at_send: Callable[[], None] | None = None
        """Called once, when the process has sent a part of a response next."""
        kernel.processes.append(self)

    @property
    def is_alive(self) -> bool:
        return self.state is not State.DEAD

    def step(self, call: Callable[[], object]) -> None:
        """Make a call, unless the process is dead; a stopped one makes it later."""
        if self.state is State.STOPPED:
            self.backlog.append(call)
        elif self.state is State.RUNNING:
            call()

    def kill(self) -> None:
        """End at once, as by SIGKILL."""
        if self.is_alive:
            self.state = State.DEAD
            self.backlog.clear()
            for call in self.on_death:
                call()

    def stop(self) -> None:
        """Do nothing from now on, as after SIGSTOP."""
        if self.is_alive:
            self.state, self.disturbed_s = State.STOPPED, self.kernel.now_s

    def reach_pause(self) -> None:
        """Note that a thread pauses: a fault may have waited for that."""
        call, self.at_pause = self.at_pause, None
        if call is not None:
            call()

    def reach_send(self) -> None:
        """Note that a part of a response is on its way: a fault may have waited for that."""
        call, self.at_send = self.at_send, None
        if call is not None:
            call()

    def resume(self) -> None:
        """Go on where it was stopped."""
        self.at_pause = self.at_send = None
        if self.state is State.STOPPED:
            self.state, self.disturbed_s = State.RUNNING, self.kernel.now_s
            for call in self.backlog:
                self.kernel.soon(self, call)
            self.backlog.clear()

    # The event loop.

    def _handle(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)

    def time(self) -> float:
        return self.clock.monotonic_s()

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.kernel.soon(self, lambda: self._handle(handle))
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.kernel.at(self, when + START_S, lambda: self._handle(handle))
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: its time comes, and then it does nothing."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[T]":
        task = Task(coro, loop=self, name=name, context=context)
        task.created_s = self.kernel.now_s
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Run a function in a thread; executors have as many as they need."""
        future = self.create_future()

        def settle(set_: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                set_(value)

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon(settle, future.set_exception, error)
            else:
                self.call_soon(settle, future.set_result, result)

        if not self.kernel.is_over:
            self.kernel.start_thread(self, run)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_alive and not self.kernel.is_over:
            self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
