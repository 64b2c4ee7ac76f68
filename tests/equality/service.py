"""vLLM's engine in this process, controlled as a server controls it: pause, sleep, reset, and the loop around them.

vLLM's class for engines in processes of their own has another way to pause than that for engines in their caller's: it
waits, stepping, until the engine is idle. A server has the former, so the tests give it to the engine that they have.
"""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from sloserve.core.clock import ManualClock
from tests import bounded
from tests.equality.engine import Engine

MAX_TURNS = 2000
TURN_S = 0.05
"""Virtual time of a turn."""


class Service:
    """Of each request that ended, by its name: ``outputs``, its tokens, and ``versions``, the weights that made them.

    turns: of the engine's loop.
    """

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine, self.core, self.clock = engine, engine.core, clock
        self.outputs: dict[str, list[int]] = {}
        self.versions: dict[str, list[str]] = {}
        self.turns = 0

    def send(self, name: str, prompt: str | list[int], **params: Any) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        given = {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt
        params = {"temperature": 0.0, "ignore_eos": True, **params}
        chosen = SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)
        self.engine.llm.add_request(name, given, chosen)

    def turn(self) -> None:
        """One turn of vLLM's loop: a step, or word to who waits for an idle engine."""
        self.turns += 1
        self.clock.advance_to(self.clock.now_s() + TURN_S)
        assert self.turns < MAX_TURNS, "no end in sight"
        if not self.core.has_work():
            self.core._notify_idle_state_callbacks()
            return
        for output in self.engine.llm.step():
            self.outputs[output.request_id] = list(output.outputs[0].token_ids)
            self.versions[output.request_id] = [span.version for span in output.outputs[0].weight_versions or ()]

    def until(self, condition: Callable[[], bool]) -> None:
        with bounded.within("a condition of the served engine"):
            while not condition():
                self.turn()

    def call(self, utility: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a server's control call is answered, once it is. Raises: what the server would answer 500 to."""
        answer = utility(*args, **kwargs)
        if isinstance(answer, Future):
            self.until(answer.done)
            return answer.result(timeout=0.0)
        return answer


@contextmanager
def as_server(engine: Engine) -> Iterator[None]:
    """For the length of the block the engine is of the class that a server's is."""
    from vllm.v1.engine.core import EngineCoreProc

    core, own = engine.core, type(engine.core)
    core.__class__ = EngineCoreProc
    core.engines_running, core.output_queue = False, queue.Queue()
    try:
        yield
    finally:
        core.__class__ = own
