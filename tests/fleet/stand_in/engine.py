"""What a stand-in engine does behind its routes: tokens that follow from weights and text alone, pauses and sleeps.

Each token is a letter, chosen by the weights and all text before it, so that a prompt with a reply's first half goes on
with its second half, on any engine with the same weights.
"""

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

POISON, HANG, LONG = "[poison]", "[hang]", "[long]"
"""In a prompt: the engine dies of it with everything that it runs; it never answers it; it has 100 steps of prefill."""
UNTIL = "[until] "
"""In a prompt, before the path of a file: the output stops after its first token until there is such a file."""
_LOOK_S = 0.005

KILLED = 137
MEMORY = frozenset({"weights", "kv_cache"})
LOST = "lost weights"


def token(weights: str, text: str) -> str:
    """The token after ``text``."""
    return chr(97 + zlib.crc32(f"{weights}|{text}".encode()) % 26)


def reply(weights: str, prompt: str, tokens: int) -> str:
    """What an engine with these weights answers, which tests compare with."""
    text = prompt
    for _ in range(tokens):
        text += token(weights, text)
    return text[len(prompt) :]


@dataclass(eq=False)
class Running:
    """One request. started: it has a slot, and its tokens come."""

    request_id: str
    started: bool = False
    aborted: bool = False


@dataclass
class Faults:
    """What a test has go wrong. step_s: seconds for each token of every request.

    wrong: tokens are those of other weights. refuse, hang: paths that are answered with 500, or never. stuck: the core
    computes nothing more, and ``core``: answers nothing, or ``tokens``: still answers.
    """

    step_s: float = 0.0
    wrong: bool = False
    refuse: list[str] = field(default_factory=list)
    hang: list[str] = field(default_factory=list)
    stuck: str = ""


class StandIn:
    """An engine of one model. die: called on a poisonous prompt; it ends the process unless a test gives another."""

    def __init__(
        self,
        name: str,
        weights: str | None = None,
        *,
        max_num_seqs: int = 64,
        step_s: float = 0.0,
        die: Callable[[], None] = lambda: os._exit(KILLED),
    ) -> None:
        self.name, self.weights = name, _base(weights or name)
        self._home, self._die, self._max_num_seqs = self.weights, die, max_num_seqs
        self.adapters: dict[str, str] = {}
        self.faults = Faults(step_s)
        self.running: list[Running] = []
        self.seen: list[str] = []
        """Request ids of all that came."""
        self.aborted = 0
        self.computed = 0
        """Tokens, those of prompts included."""
        self.felt = 0
        """How often it was asked for its status."""
        self.came_paused = 0
        """Requests that came while it was paused, and so waited in silence until it was woken."""
        self.service_s: dict[str, float] | None = None
        """What tenants have had, as its status says; ``None``: it is of a version that does not say so."""
        self.elsewhere_s: list[dict[str, float]] = []
        """What tenants have had elsewhere, each time that it was set."""
        self.settings: dict[str, Any] = {}
        self.asleep: frozenset[str] = frozenset()
        self.accepting = self.flowing = True
        self._changed = asyncio.Condition()

    @property
    def is_paused(self) -> bool:
        return not self.accepting

    @property
    def is_sleeping(self) -> bool:
        return self.is_paused or bool(self.asleep)

    async def generate(self, model: str, prompt: str, tokens: int, request_id: str) -> AsyncIterator[str]:
        """Its tokens, one by one. Waits in silence while the engine is paused; ends early where it is aborted."""
        request = Running(request_id)
        self.running.append(request)
        self.seen.append(request_id)
        self.came_paused += self.is_sleeping
        text, ended = prompt, False
        try:
            async with self._until(lambda: request.aborted or self._has_room()):
                request.started = True
            if POISON in prompt:
                self._die()
            if HANG in prompt:
                await asyncio.Event().wait()
            for _ in range(100 if LONG in prompt else 0):
                await self._step()
            _, waits, path = prompt.partition(UNTIL)
            for number in range(tokens):
                while waits and number == 1 and not os.path.exists(path):
                    self.computed += 1  # else its agent would take it for stuck
                    await asyncio.sleep(_LOOK_S)
                await self._step()
                async with self._until(lambda: request.aborted or self.flowing):
                    if request.aborted:
                        break
                made = token(self._weights_of(model), text)
                text += made
                yield made
            ended = not request.aborted
        finally:
            self.aborted += not ended
            self.running.remove(request)
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._tell()))

    async def pause(self, mode: str) -> None:
        self.accepting = False
        if mode == "abort":
            for request in self.running:
                request.aborted = True
        if mode == "keep":
            self.flowing = False
        else:
            await self._tell()
            async with self._until(lambda: not any(r.started or r.aborted for r in self.running)):
                self.flowing = False

    async def resume(self) -> None:
        self.accepting = self.flowing = True
        await self._tell()

    async def sleep(self, level: int, mode: str) -> None:
        await self.pause(mode)
        if level > 0:
            self.asleep = MEMORY
        if level == 2:
            self.weights = LOST

    async def wake_up(self, tags: list[str] | None) -> bool:
        """Returns: whether all its memory is there again."""
        self.asleep -= MEMORY if tags is None else frozenset(tags)
        if not self.asleep:
            await self.resume()
        return not self.asleep

    def reload(self, path: str | None = None) -> None:
        self.weights = self._home if path is None else _base(path)
        self._home = self.weights

    async def park(self) -> int:
        """Returns: how many were running."""
        await self.pause("keep")
        self.asleep = MEMORY
        return sum(request.started for request in self.running)

    async def _step(self) -> None:
        await asyncio.sleep(self.faults.step_s)
        if self.faults.stuck:
            await asyncio.Event().wait()
        self.computed += 1

    def _has_room(self) -> bool:
        return self.accepting and sum(request.started for request in self.running) < self._max_num_seqs

    def _weights_of(self, model: str) -> str:
        weights = self.adapters.get(model, self.weights)
        return f"not {weights}" if self.faults.wrong else weights

    @asynccontextmanager
    async def _until(self, condition: Callable[[], bool]) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(condition)
            yield

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
