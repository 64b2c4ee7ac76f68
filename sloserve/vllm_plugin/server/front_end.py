"""Manage the requests of one engine client in an API process, from their acceptance to their end.

A request may make several calls of the engine (:mod:`.observe`). It is admitted with the first; the later ones are let
in, and get what is left of its targets.

Each of several API processes has a front end, and what they must know of each other stands on their boards.

All times here are of the host's monotonic clock, from the arrival of a request's head on, so that setting the host's
clock changes no figure and no decision. Only vLLM gets an arrival by the host's clock, which it compares with.
"""

import atexit
import functools
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

from sloserve.core.clock import Clock
from sloserve.core.errors import DeadlinePassed, PromiseRefused, QueueFull, Rejected, ShuttingDown
from sloserve.core.outcome import REFUSED, Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.promises import Promised
from sloserve.core.served import ServedRequest
from sloserve.engine.metrics import collectors
from sloserve.engine.metrics.engine_page import remove_pages
from sloserve.engine.metrics.gen_ai_metrics import operation_of
from sloserve.engine.metrics.known_tasks import ArrivingTask
from sloserve.engine.metrics.live_view import LiveView
from sloserve.engine.metrics.process_page import Boards
from sloserve.engine.recording.events import BY_VLLM, INVALID, STOPPING
from sloserve.engine.recording.folder import front_end_stem
from sloserve.engine.recording.front_end import RecordedFrontEnd
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.waiting_queue import SWEEP_INTERVAL_S, WaitingPlace
from sloserve.scheduler.settings import PluginSettings, plugin_settings
from sloserve.vllm_plugin.server import request_of_call
from sloserve.vllm_plugin.server.core_check import CoreCheck
from sloserve.vllm_plugin.server.draining import Drain
from sloserve.vllm_plugin.server.engine_pages import EnginePages
from sloserve.vllm_plugin.server.live_settings import LiveSettings
from sloserve.vllm_plugin.server.load_shown import LoadShown
from sloserve.vllm_plugin.server.observe import EngineCall, Observed, outcome_of
from sloserve.vllm_plugin.server.output_states import OutputStates
from sloserve.vllm_plugin.server.recurring import Recurring
from sloserve.vllm_plugin.server.request_tasks import RequestTasks
from sloserve.vllm_plugin.server.shared_pages import board, task_pages
from sloserve.vllm_plugin.server.stated import StatedSLOs, key_of, prompt_text, prompt_tokens, tenant_of, warn_operator
from sloserve.vllm_plugin.server.tracing import Tracing
from sloserve.wire import context, errors
from sloserve.wire.context import HTTPContext
from sloserve.wire.held import with_held
from sloserve.wire.progress import RequestProgress, place_at_admission
from sloserve.wire.xargs import (
    of_further_call,
    stated_output_tokens,
    stating_keys,
    with_internal,
    with_promise,
)


class FrontEnd:
    """State that the requests of one engine client share in this process."""

    def __init__(self, engine: Any, clock: Clock, rank: int = 0, processes: int = 1) -> None:
        """Build the front end of one engine client.

        Args:
            engine: vLLM's engine client.
            clock: Gives the time.
            rank: Number of this API process, from 0.
            processes: Number of API processes of the server.
        """
        settings = plugin_settings(engine.vllm_config.additional_config)
        self._clock, self.processes, self._class_names = clock, processes, settings.classes.names
        self._boards = Boards(board(settings, rank, processes), clock)
        self.live = LiveSettings(engine.vllm_config.additional_config, processes, self._boards, clock)
        pages = task_pages(settings, rank, processes, clock)
        model = _served_name(engine)
        self._metrics = collectors.install(settings, self._boards, clock, pages, model)
        self.load = LoadShown(engine.vllm_config, self._boards, self._class_names, clock)
        self._tasks = RequestTasks(settings, pages, self._metrics.tasks, clock)
        self._admission = settings.admission.make(
            settings.classes.names,
            self._still_waiting,
            self._boards,
            settings.tenant_shares,
            orders=settings.orders_requests,
        )
        self._lengths = settings.make_lengths()
        self._sweeping = Recurring(self._sweep, SWEEP_INTERVAL_S)
        self._states = OutputStates(engine.output_processor, Tracing.of(engine.output_processor, model))
        self._pages = EnginePages()
        self._recorded = RecordedFrontEnd.begin(settings, functools.partial(front_end_stem, rank=rank), clock)
        self._stated = StatedSLOs(settings, self._metrics, self._pages, self.count_invalid)
        self.live.tell(self._follow)
        self.drain = Drain()
        self.core_check = CoreCheck(settings.hung_after_s, self._boards)
        # An engine that was killed leaves its page behind; vLLM ends this process soon after.
        atexit.register(remove_pages)

    def _follow(self, settings: PluginSettings) -> None:
        """Serve the requests to come by other settings."""
        self._stated.follow(settings)
        if self._recorded is not None:
            self._recorded.follow(settings)
        settings.admission.set_rules(
            self._admission, settings.classes.names, settings.tenant_shares, orders=settings.orders_requests
        )

    def accept(
        self,
        prompt: Any,
        sampling_params: Any,
        priority: int = 0,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> EngineCall:
        """Read the SLO of a request, write it where the engine finds it, predict its latency, and admit it.

        A further call of a request that was accepted before is let in, with what is left of its targets.

        Args:
            prompt: The prompt, as ``AsyncLLM.generate`` was given it.
            sampling_params: vLLM's sampling parameters, in which the SLO is written.
            priority: vLLM's number, whichever way the request stated it.
            session_id: Session of the request, as vLLM read it.
            request_id: vLLM's name for the request.

        Raises: vLLM's errors, to which its server responds with 400 for an SLO that cannot be read, 429 for a full
        queue or targets that cannot be met, and 503 while it is stopping.
        """
        self._stated.check_key()
        http = context.current.get()
        accepted = request_of_call.accepted_for(http)
        request = request_of_call.goes_on(http, accepted[0].observed if len(accepted) == 1 else None)
        if request is not None:
            return self._further_call(http, request, sampling_params, priority)
        resolved = self._stated.read(http, sampling_params, priority, session_id)
        observed = Observed(
            resolved.slo,
            tenant_of(http),
            self._clock.monotonic_s() if http is None else http.arrival_s,
            self._clock,
            in_engine=self._pages.ended,
            broken_off=self._broken_off,
            started=self._started,
            ended=functools.partial(self._ended, http),
        )
        observed.operation = operation_of("" if http is None else http.path)
        if self._recorded is not None and sampling_params.stop:
            observed.stop_string_found = self._recorded.stop_string_found
        observed.stated = stating_keys(sampling_params.extra_args)
        length = self._predict_length(observed, prompt, sampling_params)
        if self._recorded is not None and http is not None and http.headers.held is not None:
            sampling_params.extra_args = with_held(sampling_params.extra_args, http.headers.held)
        call = observed.call()
        task = self._tasks.arriving(http, observed, resolved.task)
        self._admit(http, call, prompt, sampling_params, length, task)
        self._tasks.begin(http, observed, task, sampling_params, request_id)
        if (use := context.request_use.get()) is not None:
            observed.counts = use.output
            use.prompt(prompt_tokens(prompt))
        if http is not None:
            observed.is_answered = not http.says_end
            http.requests.append(request_of_call.AcceptedRequest(self, observed))
        request_of_call.made_call(http, observed)
        self.drain.in_flight += 1
        return call

    def _further_call(
        self, http: HTTPContext | None, request: Observed, sampling_params: Any, priority: int
    ) -> EngineCall:
        predicted = request.predicted
        # It was predicted for a single call.
        if http is not None and predicted is not None and predicted.e2e is not None:
            request.predicted = Predicted(predicted.ttft, None)
            http.predicted[:] = [request.predicted if one is predicted else one for one in http.predicted]
        stated = stating_keys(sampling_params.extra_args)
        if stated and stated != request.stated:  # the first call had no parameters of the client
            try:
                request.slo = self._stated.read(http, sampling_params, priority).slo
            except Exception as error:
                request.end(outcome_of(error))  # it is counted for what it states, not for what its first call came to
                raise
            request.stated = stating_keys(sampling_params.extra_args)
        now_s = self._clock.monotonic_s()
        sampling_params.extra_args = of_further_call(
            sampling_params.extra_args,
            request.stated,
            request.age_s(),
            begun=request.begun,
            tenant=request.tenant,
            call=self._tasks.of_further_call(request),
            first_from_s=None if request.promised is None else self._first_from_s(request, request.promised),
        )
        if request.ticket is not None:
            request.ticket.goes_on(request.ttft_s, now_s)
        return request.call(arrival_s=now_s)

    def accept_pooling(self, prompt: Any) -> None:
        """Check a call that pools instead of generating, and keeps no SLO; count its prompt.

        Raises: vLLM's error for 400 where its HTTP request states an SLO, or misspells it.
        """
        self._stated.check_key()
        http = context.current.get()
        if http is not None:
            self._stated.check_none(http)
        if (use := context.request_use.get()) is not None:
            use.prompt(prompt_tokens(prompt))

    def arrival_time(self, call: EngineCall, prompt: Any) -> float | None:
        """Return the arrival time that vLLM shall use for a call; ``None`` if vLLM shall set it itself.

        vLLM sets it for a session: its ``prompt`` is a generator of inputs that come one by one, each with an arrival
        of its own.
        """
        return None if isinstance(prompt, AsyncGenerator) else self._epoch_s(call.arrival_s)

    def _epoch_s(self, at_s: float) -> float:
        """Return a time of ours by the host's clock as it stands now."""
        return self._clock.now_s() - (self._clock.monotonic_s() - at_s)

    def check_open(self, call: EngineCall | None) -> None:
        """Check that a request may enter the engine.

        Args:
            call: The request's call; ``None`` if it did not come through :meth:`accept`.

        Raises: vLLM's error for 503 where the server is stopping.
        """
        try:
            if call is None:
                self.drain.check_open()
            else:
                self.drain.check_running()
        except ShuttingDown as error:
            from sloserve.vllm_plugin.server.stopped import stopped

            if call is None:
                self.count_stopped()
            http = context.current.get()
            if http is not None:
                http.rejection = error.to_keep()
            raise stopped(error) from error

    def count_stopped(self) -> None:
        """Count a request that is refused while stopping, before its SLO is known; its class counts as ``none``."""
        self._metrics.rejected(None, collectors.SHUTTING_DOWN)
        self.record_refusal(STOPPING)

    def count_invalid(self) -> None:
        """Count a request that is refused for what it states; its class counts as ``none``."""
        self._metrics.rejected(None, collectors.INVALID_REQUEST)
        self.record_refusal(INVALID)

    def count_unread(self, reason: str, tenant: str | None, slo_class: str | None) -> None:
        """Count a request that is refused before its body is read, and record it if refusals are recorded.

        It counts in no attainment: its tenant has exceeded a limit of its own, or the client has made a mistake.

        Args:
            reason: One of :data:`~sloserve.engine.recording.events.REFUSALS`.
            tenant: Tenant of the request; ``None`` for the tenant that the present request states.
            slo_class: Class that its headers name; ``None`` if they name none, which counts as ``none``.
        """
        self._metrics.rejected(slo_class, reason)
        self.record_refusal(reason, tenant)

    def record_refusal(self, reason: str, tenant: str | None = None) -> None:
        """Record a request that is refused before its SLO is known, if refusals are recorded.

        Args:
            reason: One of :data:`~sloserve.engine.recording.events.REFUSALS`.
            tenant: Tenant of the request; ``None`` for the tenant that the present request states.
        """
        if self._recorded is not None:
            http = context.current.get()
            at_s = self._clock.now_s() if http is None else self._epoch_s(http.arrival_s)
            self._recorded.refused(reason, at_s, tenant_of(http) if tenant is None else tenant)

    def watch(self, call: EngineCall, outputs: Any, output_kind: Any) -> Any:
        """Return ``outputs``, observed on their way."""
        watched = call.watch(outputs, streamed=_is_streamed(output_kind), cumulative=output_kind.name == "CUMULATIVE")
        # A handler may fail between this call and the first reading; what was never begun is never closed either.
        weakref.finalize(watched, call.abandoned).atexit = False
        return watched

    def _predict_length(self, observed: Observed, prompt: Any, sampling_params: Any) -> list[float] | None:
        """Return quantiles of the output's length, and write them where the engine finds them.

        Without a length model it returns ``None``.
        """
        quantiles = None
        if self._lengths is not None:
            quantiles = self._lengths.quantiles(
                observed.slo.slo_class.name,
                arrival_s=self._epoch_s(observed.arrival_s),
                prompt_tokens=prompt_tokens(prompt),
                max_tokens=sampling_params.max_tokens,
                prompt=prompt_text(prompt),
            )
        sampling_params.extra_args = with_internal(sampling_params.extra_args, quantiles, observed.tenant)
        return quantiles

    def _admit(
        self,
        http: HTTPContext | None,
        call: EngineCall,
        prompt: Any,
        sampling_params: Any,
        length: list[float] | None,
        task: ArrivingTask | None,
    ) -> None:
        observed, now_s = call.request, self._clock.monotonic_s()
        accepted = request_of_call.accepted_for(http)
        observed.together = request_of_call.together_with(accepted[-1].observed if accepted else None)
        if task is not None:
            observed.together.is_let_in = task.is_let_in
        slo = observed.slo if task is None else task.slo_at_admission(observed.slo, observed.arrival_s)
        if http is not None and slo.promise is not None:
            slo = replace(slo, promise=replace(slo.promise, given_after_s=http.headers.given_after_s))
        new = ArrivingRequest(
            slo,
            observed.arrival_s,
            prompt_tokens(prompt),
            sampling_params.max_tokens,
            stated_output_tokens(sampling_params.extra_args),
            sampling_params.n or 1,
            _is_streamed(sampling_params.output_kind),
            length,
            functools.partial(key_of, observed.tenant, prompt, sampling_params),
            observed.tenant,
        )
        forecast = self._admission.forecast(new, now_s)
        observed.predicted = forecast.predicted
        try:
            if not observed.together.is_decided:
                self.drain.check_open()
            observed.ticket = self._admission.admit(new, forecast, call, now_s, observed.together)
            observed.predicted = observed.ticket.forecast.predicted
            if http is not None:
                http.places.append(place_at_admission(forecast.ahead))
        except (Rejected, ShuttingDown) as error:
            from vllm.exceptions import GracefulHTTPError

            if isinstance(error, PromiseRefused):
                self._metrics.promise_refused(error.slo_class, error.why)
            self._refuse(http, [*(one.observed for one in accepted), observed], error, new)
            raise GracefulHTTPError(str(error), errors.status(error)) from error
        finally:
            if http is not None and observed.predicted is not None:
                http.predicted.append(observed.predicted)

        ticket = observed.ticket
        if (promised := ticket.promised) is not None:
            observed.promised = promised
            first_s = self._first_from_s(observed, promised)
            sampling_params.extra_args = with_promise(sampling_params.extra_args, first_s)
        elif ticket.why_no_promise is not None:
            self._metrics.promise_refused(observed.slo.slo_class.name, ticket.why_no_promise)
        if http is not None and observed.slo.promise is not None:
            http.promised.append(promised or ticket.why_no_promise or "no-target")
        if self._boards.others:
            self._sweeping.begin()

    def _first_from_s(self, request: Observed, promised: Promised) -> float:
        """Return the epoch seconds from which on a promised request comes first."""
        return self._epoch_s(request.arrival_s) + promised.first_after_s

    def _refuse(
        self,
        http: HTTPContext | None,
        requests: list[Observed],
        error: Rejected | ShuttingDown,
        last: ArrivingRequest,
    ) -> None:
        """Count the requests of one HTTP request as refused together; the last of them had not been accepted yet."""
        self.drain.in_flight += 1  # as of any request, until its end, which follows
        reason = collectors.SHUTTING_DOWN if isinstance(error, ShuttingDown) else errors.reason(error)
        for one in requests:
            one.refusal = reason, last if one.ticket is None else one.ticket.new
            one.end(Outcome.REJECTED)
            self._metrics.rejected(one.slo.slo_class.name, reason)
        if isinstance(error, QueueFull):
            warn_operator(f"clients of class {error.slo_class!r} get 429: admission.max_waiting requests are waiting")
        if http is not None:
            http.requests.clear()
            http.promised.clear()
            http.places.clear()
            http.rejection = error.to_keep()

    def _sweep(self) -> bool:
        """Find which requests still wait; return whether to look again, since other processes count them."""
        return self._admission.sweep(self._clock.monotonic_s()) and bool(self._boards.others)

    def live_view(self, model: Callable[[], str]) -> LiveView:
        """Return what this server does now, for watchers.

        Args:
            model: Returns the model's name for clients.
        """
        tasks, parts = self._tasks.known.open_tasks, self.load.parts
        return LiveView(model, self._class_names, self._boards.look, self._clock, tasks=tasks, parts=parts)

    def close(self) -> None:
        """Stop the other API processes from counting this one; what is in flight is still served."""
        self.load.stop()
        if self._recorded is not None:
            self._recorded.close()
        self._boards.own.close()
        self._tasks.known.close()

    def _still_waiting(self, place: WaitingPlace) -> bool:
        return self._states.is_prefilling(place.request)

    def is_waiting(self, observed: Observed) -> bool:
        """Return whether a request that was admitted has no token yet, as far as this process can know."""
        ticket = observed.ticket
        return not observed.begun and ticket is not None and self._still_waiting(ticket.place)

    def progress(self, observed: Observed) -> RequestProgress:
        """Return how far a request that was admitted has come, as far as this process can know."""
        ticket = None if observed.begun else observed.ticket
        still = None if ticket is None else self._admission.still_waiting(ticket, self._clock.monotonic_s())
        begun_s = observed.first_seen_s if observed.ttft_s is None else observed.ttft_s
        return RequestProgress(
            slo_class=observed.slo.slo_class.name,
            is_waiting=still is not None,
            waited_s=begun_s if still is None else observed.age_s(),
            position=None if still is None else still.position,
            remaining=None if still is None else still.remaining,
            predicted=observed.predicted,
            promised=observed.promised,
        )

    def expire(self, observed: Observed) -> int:
        """Count a request as given up; return in how many whole seconds one of its class should find a place."""
        name = observed.slo.slo_class.name
        if not observed.expired:
            observed.expired = True
            self._metrics.rejected(name, errors.REASON[DeadlinePassed])
        return self._admission.reserve_place(name, self._clock.monotonic_s(), observed.tenant)

    def _started(self, observed: Observed) -> None:
        if observed.ticket is not None:
            observed.ticket.started(self._clock.monotonic_s())

    def _ended(self, http: HTTPContext | None, observed: Observed, served: ServedRequest) -> None:
        self.drain.in_flight -= 1
        if self._recorded is not None and served.outcome in REFUSED:
            reason, asked = observed.refusal or (None, None if observed.ticket is None else observed.ticket.new)
            at_s = self._epoch_s(observed.arrival_s)
            self._recorded.refused(reason or BY_VLLM, at_s, observed.tenant, observed.slo, asked)
        observed.refusal = None  # it refers to the prompt
        if observed.ticket is not None:
            observed.ticket.ended(served.latency, served.output_tokens, self._clock.monotonic_s())
        observed.ticket = observed.together = None  # their places refer to it
        if observed.task is not None:
            outcome = served.outcome
            observed.task.ends(
                completed=outcome is Outcome.COMPLETED, refused=outcome in REFUSED, used=served.in_engine
            )
        self._metrics.record(served, observed.operation, observed.age_s())
        if http is not None:
            http.served.append(served)
            if served.outcome is Outcome.EVICTED and self.drain.begun:
                http.rejection = self.drain.error("gave the request up")

    def _broken_off(self) -> Exception | None:
        from sloserve.vllm_plugin.server.stopped import stopped

        return stopped(self.drain.error("gave the request up")) if self.drain.begun else None


def _served_name(engine: Any) -> str:
    """Return the name of the model for clients; empty if this vLLM does not have it where it is expected."""
    name = getattr(getattr(engine.vllm_config, "model_config", None), "served_model_name", "")
    return name if isinstance(name, str) else ""


def _is_streamed(output_kind: Any) -> bool:
    return bool(output_kind.name != "FINAL_ONLY")
