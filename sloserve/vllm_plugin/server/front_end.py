"""The front end's part, in the API process: what a request states becomes its SLO, its latency is predicted, it may
be refused, and how each request fared is counted and told.

All of it happens around ``AsyncLLM.generate``, which every route that generates comes through (chat, completions,
responses, Anthropic's messages), and when it is called rather than when the stream is first read, so that a refusal can
still be an HTTP status. :func:`install` is registered as a ``vllm.general_plugins`` entry point, hence works under
plain ``vllm serve`` and in each of several API processes, and leaves engines alone that do not run our scheduler.
Of several API processes each has a front end, and what they must know of each other stands on their boards.
Headers, nested bodies and reports need ``sloserve.api.middleware`` besides, which ``sloserve serve`` adds.
"""

import asyncio
import atexit
import functools
import logging
import weakref
from dataclasses import dataclass
from typing import Any

from sloserve.admission.prediction import NewRequest
from sloserve.admission.queue_view import SWEEP_INTERVAL_S, Place
from sloserve.core import process_death
from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import DeadlinePassed, InvalidRequest, QueueFull, Rejected, ShuttingDown
from sloserve.core.outcome import Outcome
from sloserve.core.served import Interruptions, ServedRequest
from sloserve.core.slo import SLO
from sloserve.metrics import collectors
from sloserve.metrics.engine_page import PageReader, find_pages, remove_pages, sweep_pages
from sloserve.metrics.process_page import Board, Boards
from sloserve.scheduler.registry import parse_policy, policy_class
from sloserve.settings import KEY, PluginSettings, plugin_settings
from sloserve.vllm_plugin.server import engine_control, parking
from sloserve.vllm_plugin.server.draining import Drain
from sloserve.vllm_plugin.server.observe import Observed, entering
from sloserve.wire import context, errors
from sloserve.wire.body import BodyFields
from sloserve.wire.context import HTTPContext
from sloserve.wire.headers import HeaderFields
from sloserve.wire.resolve import resolve
from sloserve.wire.xargs import stated_output_tokens, with_length

logger = logging.getLogger(__name__)

_ATTRIBUTE = "sloserve_front_end"

LEAST_PRIORITY, MOST_PRIORITY = -(2**63), 2**63 - 1
"""vLLM's numeric priority, of which the engine keeps 64 bits."""


def install() -> None:
    """Wraps ``AsyncLLM`` once; a second call changes nothing. Where an agent started the engine, it dies with it."""
    process_death.die_with_named_parent()
    from vllm.v1.engine.async_llm import AsyncLLM

    if hasattr(AsyncLLM.generate, "__wrapped__"):
        return
    engine_control.install()
    parking.install()
    stock_init, stock_generate, stock_add = AsyncLLM.__init__, AsyncLLM.generate, AsyncLLM.add_request
    stock_shutdown = AsyncLLM.shutdown

    @functools.wraps(stock_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_init(self, *args, **kwargs)
        if runs_our_scheduler(self.vllm_config):
            rank, processes = kwargs.get("client_index", 0), kwargs.get("client_count", 1)
            setattr(self, _ATTRIBUTE, FrontEnd(self, SystemClock(), rank, processes))

    @functools.wraps(stock_generate)
    def generate(self: Any, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> Any:
        front_end = getattr(self, _ATTRIBUTE, None)
        if front_end is None or not hasattr(sampling_params, "output_kind"):
            return stock_generate(self, prompt, sampling_params, *args, **kwargs)
        observed = front_end.accept(prompt, sampling_params, kwargs.get("priority", 0))
        replies = stock_generate(self, prompt, sampling_params, *args, **kwargs)
        return front_end.watch(observed, replies, sampling_params.output_kind)

    @functools.wraps(stock_add)
    async def add_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        front_end, observed = getattr(self, _ATTRIBUTE, None), entering.get()
        if front_end is not None:
            front_end.check_open(observed)
        if observed is None:
            return await stock_add(self, *args, **kwargs)
        entering.set(None)
        kwargs.setdefault("arrival_time", observed.arrival_s)  # the engine's deadlines count from our front end
        collector = await stock_add(self, *args, **kwargs)
        observed.engine_request_id = collector.request_id
        return collector

    @functools.wraps(stock_shutdown)
    def shutdown(self: Any, timeout: float | None = None) -> None:
        front_end = getattr(self, _ATTRIBUTE, None)
        stock_shutdown(self, timeout if front_end is None else front_end.drain.run(self, timeout))
        if front_end is not None:
            front_end.close()
            sweep_pages()  # an engine that took too long to stop was killed

    AsyncLLM.__init__, AsyncLLM.generate, AsyncLLM.add_request = init, generate, add_request
    AsyncLLM.shutdown = shutdown


def runs_our_scheduler(vllm_config: Any) -> bool:
    """Whether the engine was configured with our scheduler, as a path or as a class, or a subclass of it."""
    scheduler_cls = vllm_config.scheduler_config.scheduler_cls
    if isinstance(scheduler_cls, type):
        return any(base.__module__.startswith("sloserve.") for base in scheduler_cls.__mro__)
    additional_config = vllm_config.additional_config
    return str(scheduler_cls).startswith("sloserve.") or (
        isinstance(additional_config, dict) and KEY in additional_config
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """A request as its HTTP side sees it, see :class:`sloserve.wire.context.Call`."""

    front_end: "FrontEnd"
    observed: Observed

    def is_waiting(self) -> bool:
        return self.front_end.is_waiting(self.observed)

    def expire(self) -> int:
        return self.front_end.expire(self.observed)


def check_open(engine: Any) -> None:
    """Raises: ShuttingDown where the server of this engine client takes no more work, since it is stopping."""
    front_end = getattr(engine, _ATTRIBUTE, None)
    if front_end is not None:
        front_end.drain.check_open()


class FrontEnd:
    """What the requests of one engine client share in this process."""

    def __init__(self, engine: Any, clock: Clock, rank: int = 0, processes: int = 1) -> None:
        """rank: of this one among so many API ``processes`` of the server."""
        settings = plugin_settings(engine.vllm_config.additional_config)
        self._clock = clock
        self._rules = settings.rules
        self._policy = settings.policy
        self._boards = Boards(_board(settings, rank, processes), clock)
        self._metrics = collectors.install(settings, self._boards, clock)
        self._admission = settings.admission.make(settings.classes.names, self._still_waiting, self._boards)
        self._lengths = settings.make_lengths()
        self._sweeping = False
        self._states = engine.output_processor.request_states
        self._pages: list[PageReader] = []
        self.drain = Drain()
        # An engine that was killed leaves its page behind; vLLM ends this process soon after.
        atexit.register(remove_pages)

    def accept(self, prompt: Any, sampling_params: Any, priority: int = 0) -> Observed:
        """Reads the SLO of a request, writes it where the engine finds it, predicts, and books the request's place.

        priority: vLLM's number, whichever way the request stated it.
        Raises: vLLM's errors, which its server answers with 400 for an SLO that cannot be read, 429 for a full
        queue or targets that cannot be met, and 503 while it is stopping.
        """
        http = context.current.get()
        slo = self._slo_of(http, sampling_params, priority)
        observed = Observed(
            slo,
            None if http is None else http.headers.tenant,
            self._clock.now_s() if http is None else http.arrival_s,
            self._clock,
            interruptions=self._interruptions,
            broken_off=self._broken_off,
            started=self._started,
            ended=functools.partial(self._ended, http),
        )
        length = self._predict_length(observed, prompt, sampling_params)
        self._admit(http, observed, prompt, sampling_params, length)
        if http is not None:
            http.calls.append(_Call(self, observed))
        self.drain.in_flight += 1
        return observed

    def check_open(self, observed: Observed | None) -> None:
        """Of a request that enters the engine; observed: ``None`` for one that did not come through :meth:`accept`.

        Raises: vLLM's error for 503 where the server is stopping.
        """
        from sloserve.vllm_plugin.engine import compat

        try:
            if observed is None:
                self.drain.check_open()
            else:
                self.drain.check_running()
        except ShuttingDown as error:
            http = context.current.get()
            if http is not None:
                http.rejection = error.to_keep()
            raise compat.stopped(error) from error

    def watch(self, observed: Observed, replies: Any, output_kind: Any) -> Any:
        """``replies``, observed on their way."""
        watched = observed.watch(
            replies, streamed=_is_streamed(output_kind), cumulative=output_kind.name == "CUMULATIVE"
        )
        # A handler may fail between this call and the first reading; what was never begun is never closed either.
        weakref.finalize(watched, observed.abandoned).atexit = False
        return watched

    def _slo_of(self, http: HTTPContext | None, sampling_params: Any, priority: int) -> SLO:
        from vllm.exceptions import VLLMValidationError

        try:
            if http is not None and http.error is not None:
                raise http.error
            headers, body = (HeaderFields(), BodyFields()) if http is None else (http.headers, http.body)
            resolved = resolve(self._rules, sampling_params.extra_args, headers, body, priority)
            if headers.ignored:
                self._metrics.ignored(headers.ignored)
            if priority != 0:
                self._check_priority(priority)
        except InvalidRequest as error:
            self._metrics.rejected(None, collectors.INVALID_REQUEST)
            raise VLLMValidationError(str(error), parameter=error.param) from error.to_keep()
        sampling_params.extra_args = resolved.xargs
        if http is not None:
            http.resolved(resolved)
        return resolved.slo

    def _check_priority(self, priority: int) -> None:
        """Raises: InvalidRequest for a priority that the policy at work would ignore, or that is no 64-bit number."""
        if not LEAST_PRIORITY <= priority <= MOST_PRIORITY:
            raise InvalidRequest("priority", priority, f"a whole number from {LEAST_PRIORITY} to {MOST_PRIORITY}")
        for text in {page.snapshot().policy for page in self._found_pages()} or {self._policy}:
            name, _ = parse_policy(text)
            if not _uses_priority(name):
                tell_operator(f"a client states a priority, which policy {name!r} cannot use; --policy priority can")
                allowed = f"0, all that policy {name!r} can use; state a class or targets"
                raise InvalidRequest("priority", priority, allowed)

    def _predict_length(self, observed: Observed, prompt: Any, sampling_params: Any) -> list[float] | None:
        """Quantiles of the reply's length, written where the engine finds them; ``None`` without a length model."""
        quantiles = None
        if self._lengths is not None:
            quantiles = self._lengths.quantiles(
                observed.slo.slo_class.name,
                arrival_s=observed.arrival_s,
                prompt_tokens=prompt_tokens(prompt),
                max_tokens=sampling_params.max_tokens,
                prompt=prompt_text(prompt),
            )
        sampling_params.extra_args = with_length(sampling_params.extra_args, quantiles)
        return quantiles

    def _admit(
        self,
        http: HTTPContext | None,
        observed: Observed,
        prompt: Any,
        sampling_params: Any,
        length: list[float] | None,
    ) -> None:
        from vllm.exceptions import GracefulHTTPError

        now_s = self._clock.now_s()
        new = NewRequest(
            observed.slo,
            observed.arrival_s,
            prompt_tokens(prompt),
            sampling_params.max_tokens,
            stated_output_tokens(sampling_params.extra_args),
            sampling_params.n or 1,
            _is_streamed(sampling_params.output_kind),
            length,
        )
        forecast = self._admission.forecast(new, now_s)
        observed.predicted = forecast.predicted
        if http is not None and forecast.predicted is not None:
            http.predicted.append(forecast.predicted)
        try:
            self.drain.check_open()
            observed.ticket = self._admission.admit(new, forecast, observed, now_s)
        except (Rejected, ShuttingDown) as error:
            rejected = ServedRequest(observed.slo, Outcome.REJECTED, observed.tenant, predicted=observed.predicted)
            self._metrics.record(rejected)
            reason = collectors.SHUTTING_DOWN if isinstance(error, ShuttingDown) else errors.reason(error)
            self._metrics.rejected(observed.slo.slo_class.name, reason)
            if isinstance(error, QueueFull):
                tell_operator(
                    f"clients of class {error.slo_class!r} get 429, since as many wait as admission.max_waiting allows"
                )
            if http is not None:
                http.rejection = error.to_keep()
            raise GracefulHTTPError(str(error), errors.status(error)) from error

        self._keep_swept()

    def _keep_swept(self) -> None:
        """While requests wait here that other processes count, looks every so often whether they do still."""
        if not self._sweeping and self._boards.others:
            try:
                asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)
                self._sweeping = True
            except RuntimeError:  # called outside of the server's loop
                pass

    def _sweep(self) -> None:
        self._sweeping = False
        if self._admission.sweep(self._clock.now_s()):
            self._keep_swept()

    def close(self) -> None:
        """The other API processes count it no more; serving what is in flight goes on."""
        self._boards.own.close()

    def _still_waiting(self, place: Place) -> bool:
        engine_request_id = place.request.engine_request_id
        if engine_request_id is None:
            return True
        state = self._states.get(engine_request_id) or self._states.get(f"0_{engine_request_id}")
        return state is not None and state.is_prefilling

    def is_waiting(self, observed: Observed) -> bool:
        """Whether a request that was admitted has no token yet, as far as this process can know."""
        ticket = observed.ticket
        return not observed.begun and ticket is not None and self._still_waiting(ticket.place)

    def expire(self, observed: Observed) -> int:
        """Books a request as given up; in how many whole seconds one of its class should find a place."""
        name = observed.slo.slo_class.name
        if not observed.expired:
            observed.expired = True
            self._metrics.rejected(name, errors.REASON[DeadlinePassed])
        return self._admission.promise_place(name, self._clock.now_s())

    def _started(self, observed: Observed) -> None:
        if observed.ticket is not None:
            observed.ticket.started(self._clock.now_s())

    def _ended(self, http: HTTPContext | None, observed: Observed, served: ServedRequest) -> None:
        self.drain.in_flight -= 1
        if observed.ticket is not None:
            observed.ticket.ended(served.latency, served.output_tokens, self._clock.now_s())
        self._metrics.record(served)
        if http is not None:
            http.served.append(served)
            if served.outcome is Outcome.EVICTED and self.drain.begun:
                http.rejection = self.drain.error("gave the request up")

    def _broken_off(self) -> Exception | None:
        from sloserve.vllm_plugin.engine import compat

        return compat.stopped(self.drain.error("gave the request up")) if self.drain.begun else None

    def _interruptions(self, engine_request_id: str) -> Interruptions:
        found = (page.interruptions(engine_request_id) for page in self._found_pages())
        return next((met for met in found if met is not None), Interruptions())

    def _found_pages(self) -> list[PageReader]:
        if not self._pages:
            try:
                self._pages = find_pages()
            except OSError:  # the engine could not make one either, and said so
                return []
        return self._pages


def _board(settings: PluginSettings, rank: int, processes: int) -> Board:
    names, tenants = settings.classes.names, settings.max_tenant_labels
    if processes > 1:
        try:
            return Board.published(names, tenants, rank)
        except OSError as error:
            logger.warning(
                "sloserve cannot publish what API process %d counts: caps, attainment and coverage will lack it: %s",
                rank,
                error,
            )
    return Board(len(names), tenants)


@functools.cache
def tell_operator(message: str) -> None:
    """Logs it the first time: clients are told what they can do, operators what a setting can."""
    logger.warning("%s", message)


def _is_streamed(output_kind: Any) -> bool:
    return bool(output_kind.name != "FINAL_ONLY")


def prompt_tokens(prompt: Any) -> int | None:
    """Length of what ``AsyncLLM.generate`` was given; ``None`` where it is not known yet, as of text."""
    get = prompt.get if isinstance(prompt, dict) else functools.partial(getattr, prompt)
    ids = get("prompt_token_ids", None)
    return len(ids) if ids else None


def prompt_text(prompt: Any) -> str | None:
    """The text of what ``AsyncLLM.generate`` was given, where it still has one."""
    text = prompt.get("prompt") if isinstance(prompt, dict) else getattr(prompt, "prompt", None)
    return text if isinstance(text, str) else None


@functools.cache
def _uses_priority(policy: str) -> bool:
    return "priority" in policy_class(policy).needs
