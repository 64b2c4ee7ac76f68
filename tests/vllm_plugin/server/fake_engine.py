"""A front end around a fake engine, with a clock that the engine moves."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any

from sloserve.core.clock import ManualClock
from sloserve.core.served import ServedRequest
from sloserve.engine.metrics.task_table import EndedTask
from sloserve.scheduler.settings import plugin_settings
from sloserve.vllm_plugin.server.front_end import FrontEnd
from sloserve.vllm_plugin.server.observe import EngineCall
from sloserve.wire import context
from sloserve.wire.context import HTTPContext
from tests import bounded

T0 = 1_000_000.0


class Refused(Exception):
    """Stands in for vLLM's GracefulHTTPError."""

    def __init__(self, message: str, status: int = 400, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status


class Malformed(Exception):
    """Stands in for vLLM's VLLMValidationError."""

    def __init__(self, message: str, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class Tasks:
    """What was counted of tasks."""

    def __init__(self) -> None:
        self.started: list[tuple[int, str | None]] = []
        self.late: list[tuple[int, str | None]] = []
        self.ended: list[EndedTask] = []

    def task_started(self, class_id: int, tenant: str | None) -> None:
        self.started.append((class_id, tenant))

    def task_late(self, class_id: int, tenant: str | None) -> None:
        self.late.append((class_id, tenant))

    def task_ended(self, ended: EndedTask) -> None:
        self.ended.append(ended)


class Metrics:
    def __init__(self) -> None:
        self.tasks = Tasks()
        self.served: list[ServedRequest] = []
        self.reasons: list[str | None] = []
        self.promises_refused: list[str] = []
        self.ignored_names: tuple[str, ...] = ()

    def ignored(self, names: tuple[str, ...]) -> None:
        self.ignored_names += names

    def record(self, served: ServedRequest, operation: str, age_s: float) -> None:
        self.served.append(served)

    def rejected(self, slo_class: str | None, reason: str | None) -> None:
        self.reasons.append(reason)

    def promise_refused(self, class_name: str, why: str) -> None:
        self.promises_refused.append(why)


class Server:
    """A front end whose engine answers after ``prompt tokens * 1 ms``, then a token every 10 ms."""

    def __init__(self, rank: int = 0, processes: int = 1, **section: Any) -> None:
        config = SimpleNamespace(additional_config={"sloserve": section})
        self.output_processor = SimpleNamespace(request_states={}, add_request=self.add_state)
        engine = SimpleNamespace(vllm_config=config, output_processor=self.output_processor)
        self.rules = plugin_settings({"sloserve": section}).header_rules
        self.clock = ManualClock(T0)
        self.extra_args: dict[str, Any] | None = None
        self.sent: dict[str, Any] | None = None
        self.calls: list[EngineCall] = []
        self.stated: list[dict[str, Any]] = []
        """Of each call of :meth:`generate`, what the engine is told of it."""
        self.request_id: str | None = None
        self.states = engine.output_processor.request_states
        self.front_end = FrontEnd(engine, self.clock, rank, processes)

    def add_state(self, request: Any, log_stats: bool) -> None:
        """As vLLM's: makes the figures of a reply, where there are to be any."""
        state = SimpleNamespace(stats=SimpleNamespace(num_preemptions=0) if log_stats else None)
        self.states[request.request_id] = state

    def http(self, *headers: tuple[str, str]) -> HTTPContext:
        http = HTTPContext(self.clock.monotonic_s())
        http.read_headers([(name.encode(), value.encode()) for name, value in headers], self.rules)
        return http

    def accept(self, http: HTTPContext | None, prompt: Any, output_kind: str = "DELTA", priority: int = 0) -> Any:
        token = context.current.set(http)
        try:
            kind = SimpleNamespace(name=output_kind)
            params = SimpleNamespace(extra_args=self.extra_args, max_tokens=None, n=1, stop=None, output_kind=kind)
            observed = self.front_end.accept(prompt, params, priority)
            self.sent = params.extra_args
            return observed
        finally:
            context.current.reset(token)

    def generate(
        self,
        prompt: int = 100,
        tokens: int = 1,
        *,
        first_s: float = 0.01,
        output_kind: str = "CUMULATIVE",
        params: Any = None,
        fails: BaseException | None = None,
        **asked: Any,
    ) -> AsyncIterator[Any]:
        """Call the engine as vLLM's handlers do, in the context of an HTTP request; replies overlap with other calls'.

        first_s: from the reading of the call to its first token. params: as the handler shares them between calls.
        fails: raised in place of the last token.
        """
        kind = SimpleNamespace(name=output_kind)
        params = params or SimpleNamespace(**{"extra_args": None, "max_tokens": None, "n": 1, "stop": None, **asked})
        params.output_kind = kind
        call = self.front_end.accept({"prompt_token_ids": [0] * prompt}, params, request_id=self.request_id)
        self.calls.append(call)
        self.stated.append(dict(params.extra_args or {}))

        async def replies() -> AsyncIterator[Any]:
            begun_s = self.clock.now_s()
            for i in range(tokens):
                await asyncio.sleep(0)
                self.clock.advance_to(max(self.clock.now_s(), begun_s + first_s + 0.01 * i))
                ended = i == tokens - 1
                if ended and fails is not None:
                    raise fails
                count = 1 if output_kind == "DELTA" else i + 1
                one = SimpleNamespace(index=0, token_ids=[0] * count, finish_reason="stop" if ended else None)
                if ended or output_kind != "FINAL_ONLY":
                    yield SimpleNamespace(outputs=[one], finished=ended, metrics=None, prompt_token_ids=[0] * prompt)

        watched: AsyncIterator[Any] = self.front_end.watch(call, replies(), kind)
        return watched

    def handle(self, http: HTTPContext, handler: Coroutine[Any, Any, None], *, answered: bool = True) -> None:
        """Run ``handler`` as the server runs that of an HTTP request, in a context of its own, to the answer's end."""

        async def run() -> None:
            http.says_end = True
            context.current.set(http)
            begun = False
            try:
                await handler
                begun = answered
            finally:
                http.answer_ends(begun=begun)

        bounded.run(run())

    def serve(
        self, http: HTTPContext | None = None, prompt: int = 100, tokens: int = 20, clock_set_by_s: float = 0.0
    ) -> None:
        """clock_set_by_s: of the host's clock, before the first token."""
        observed = self.accept(http, {"prompt_token_ids": [0] * prompt})

        async def replies() -> AsyncIterator[Any]:
            self.clock.set_wall(self.clock.now_s() + clock_set_by_s)
            for i in range(tokens):
                self.clock.advance_to(self.clock.now_s() + (prompt * 1e-3 if i == 0 else 0.01))
                ended = i == tokens - 1
                one = SimpleNamespace(index=0, token_ids=[0], finish_reason="stop" if ended else None)
                yield SimpleNamespace(outputs=[one], finished=ended, metrics=None, prompt_token_ids=[0] * prompt)

        async def read() -> None:
            kind = SimpleNamespace(name="DELTA")
            async for _ in self.front_end.watch(observed, replies(), kind):
                pass

        bounded.run(read())
