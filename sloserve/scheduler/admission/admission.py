"""Admission of requests: by a cap on waiting requests of a class, and by the predicted chance to meet targets.

Every request is predicted, whatever the mode; the rules of refusal are set at construction. A refusal says why, and
when to retry, if a retry helps. The rules are, in order:

- a target that the engine could not meet if it were idle, by the least time it was seen to take (``floors``), is
  refused without a time to retry;
- a request with a chance to meet its TTFT target, or its e2e target, that is predicted to be below ``min_chance`` is
  refused while others of its class wait, with the time at which the queue should be short enough. If none waits, it is
  admitted, whatever was learnt before: otherwise a wrong prediction would keep away the requests that correct it;
- a request that asks for a promise which cannot be given (:mod:`sloserve.scheduler.admission.promising`) is refused,
  unless it is to be served without the promise then;
- a class at its cap is full. Places count that are kept for clients that were refused before and asked to retry about
  now (:mod:`sloserve.scheduler.admission.kept_places`): a client that has waited comes before one that has not.

A list of prompts is several requests that begin at once (``Together``): all of them are admitted or none. If no other
request of the class waits, and no place is kept, a list is admitted however long it is, as one request is.

Where several processes admit requests to one engine, a cap holds for all of them together: a place is taken first and
counted then, and given back if the class is full. So they never pass a cap together; two requests that ask for the last
place in the same instant may both be refused. Predictions are each process' own, of its own requests, which have the
rate of its own queue; a request is known to have found no other waiting only if none waits in any process.

Where tenants have shares, the requests of each tenant in a class are a queue of their own: its requests alone are ahead
in a prediction, its starts alone say when to retry, and a tenant with no more waiting requests than its share of the
cap is not refused because the class is full of others' requests.

Guarantees: no class has more than its cap waiting (with shares of n equal tenants, no more than the cap times
1 + 1/2 + ... + 1/n, in several processes that times 2 and one request per tenant and process); with neither cap nor
chance no request is refused; a request without targets is never refused for its targets. Memory is bounded by the
requests in flight, and by the tenants of the table. The module is deterministic: time is an argument, in seconds of a
clock that is never set. It must be used from one thread alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sloserve.core.errors import ConfigError, PromiseRefused, QueueFull, SLOUnattainable
from sloserve.core.predicted import Quantiles
from sloserve.core.tenants import TenantTable
from sloserve.scheduler.admission.backlog import Backlog, Elsewhere
from sloserve.scheduler.admission.prediction import ArrivingRequest, Forecast, Predictor
from sloserve.scheduler.admission.promising import Promising
from sloserve.scheduler.admission.refusals import check_likely, check_possible, check_promise_allowed
from sloserve.scheduler.admission.target_use import OpenUse
from sloserve.scheduler.admission.ticket import Ticket, Together
from sloserve.scheduler.admission.urgency import Urgency
from sloserve.scheduler.admission.waiting_queue import Queue, WaitingPlace


class StillWaiting(NamedTuple):
    """What is known now of a request that waits.

    Args:
        position: Place among the waiting requests of its class, and of its tenant where tenants have shares; 1 for the
            next.
        remaining: Seconds from now to its first token; ``None`` while too little was observed.
    """

    position: int
    remaining: Quantiles | None


class Admission:
    """Admission of requests: predicts a request's latency, decides whether it may wait, and says when to retry."""

    def __init__(
        self,
        class_names: Sequence[str],
        still_waiting: Callable[[WaitingPlace], bool],
        *,
        caps: Mapping[str, int] | None = None,
        min_chance: float | None = None,
        elsewhere: Elsewhere | None = None,
        tenants: TenantTable | None = None,
    ) -> None:
        """Create an admission without waiting requests.

        Args:
            class_names: Names of the service classes.
            still_waiting: Function that returns whether a place's request has yet to emit its first token; it must not
                call back.
            caps: Most requests of each class that may wait, at least 1; ``None`` for no limit.
            min_chance: Least chance to meet its targets with which a request is admitted, within 0..1, ends excluded;
                ``None`` to admit all.
            elsewhere: Other processes that admit requests to this engine; ``None`` for none.
            tenants: The tenants and their weights; ``None`` where tenants have no shares.

        Raises: ConfigError for a cap or a chance out of range.
        """
        self._tenants = tenants
        self._backlog = Backlog(class_names, still_waiting, elsewhere, tenants)
        self._predictor, self._promising = Predictor(class_names), Promising(class_names)
        self.set_rules(caps, min_chance)

    def set_rules(
        self,
        caps: Mapping[str, int] | None,
        min_chance: float | None,
        weights: Mapping[str, float] | None = None,
        promises: str = "any",
    ) -> None:
        """Set the rules of refusal for requests that come later; requests that wait keep their places.

        Args:
            caps: Most requests of each class that may wait, at least 1; ``None`` for no limit.
            min_chance: Least chance to meet its targets with which a request is admitted; ``None`` to admit all.
            weights: Weight of each tenant, where tenants have shares; ``None`` leaves them as they are.
            promises: Promises that may be given: ``any``, the ones of ``classes`` alone, any and the ones that a
                ``gateway`` gave, none (``off``), or none because the ``policy`` serves no request first.

        Raises: ConfigError for a cap or a chance out of range, and nothing has changed.
        """
        for name, cap in (caps or {}).items():
            if cap < 1:
                raise ConfigError(f"admission.max_waiting of class {name!r}: {cap} is not a whole number >= 1")
        if min_chance is not None and not 0.0 < min_chance < 1.0:
            raise ConfigError(f"admission.min_chance: {min_chance} is not within 0..1, ends excluded")
        self._caps, self._min_chance, self._promises = caps, min_chance, promises
        self._predictor.set_levels(() if min_chance is None else (min_chance,))
        if weights is not None and self._tenants is not None:
            self._tenants.set_weights(weights)

    def forecast(self, new: ArrivingRequest, now_s: float) -> Forecast:
        """Return the prediction of a request that arrives now.

        Raises: KeyError for an unknown class.
        """
        name = new.slo.slo_class.name
        self._backlog.sweep(name, now_s)
        ahead = self._backlog.queue_of(name, new.tenant).ahead_of(Urgency.stated_by(new.slo), now_s)
        return self._predictor.forecast(new, ahead, now_s, alone=self._backlog.is_empty)

    def serves_with(self, instances: int) -> None:
        """Note how many instances serve the requests now; without any, no promise can be given."""
        self._promising.serves_with(instances)

    def admit(
        self,
        new: ArrivingRequest,
        forecast: Forecast,
        request: Any,
        now_s: float,
        together: Together | None = None,
    ) -> Ticket:
        """Admit a request, which waits from then on.

        Args:
            new: What is known of the request.
            forecast: The prediction of the request; the ticket has another one if a promise is given.
            request: An object that ``still_waiting`` finds again in ``place.request``.
            now_s: The present time, in seconds.
            together: The requests that begin with it, of which the earlier ones have been admitted; ``None`` for a
                request that comes alone. If this request is refused, the caller ends the earlier ones.

        Raises: SLOUnattainable, QueueFull.
        """
        together, queue = together or Together(), self._backlog.queue_of(new.slo.slo_class.name, new.tenant)
        if not together.tickets:
            together.found_none_waiting = self._is_idle(new.slo.slo_class.name, queue, now_s)
        use = self._promising.foresee(new, forecast, now_s) if new.slo.targets else None
        if together.is_decided or together.is_let_in:
            place = queue.enter(request, now_s, forecast.urgency)
        else:
            place = self._checked_place(new, forecast, queue, request, now_s, together)
        why = None
        if use is not None and new.slo.promise is not None:
            why = self._promise(new, forecast, use, place, now_s)
        if use is not None and use.promised is not None:
            forecast = self._predictor.with_promise(new, forecast, use.wait_s, now_s)
            place.becomes(Urgency.PROMISED, now_s)
        self._predictor.admitted(new, forecast)
        if use is not None:
            self._promising.watch(use, streamed=new.streamed)
        ticket = Ticket(
            new,
            forecast,
            place,
            predictor=self._predictor,
            promising=self._promising,
            use=use,
            why_no_promise=why,
        )
        together.add(ticket)
        return ticket

    def _promise(
        self, new: ArrivingRequest, forecast: Forecast, use: OpenUse, place: WaitingPlace, now_s: float
    ) -> str | None:
        """Promise a request its targets; return why no promise is given if it is served without one.

        Raises: PromiseRefused, and the place of the request is free again.
        """
        others = self._backlog.all_waiting - 1 - self._promising.waiting
        try:
            check_promise_allowed(self._promises, new.slo)
            if new.slo.promise is not None and new.slo.promise.given_after_s is not None:
                self._promising.take_over(use, new, forecast, max(others, 0), new.slo.promise.given_after_s)
            else:
                self._promising.promise(use, new, forecast, max(others, 0))
        except PromiseRefused as error:
            if new.slo.promise is not None and new.slo.promise.falls_back:
                return error.why
            place.left(now_s)
            raise
        return None

    def _is_idle(self, name: str, queue: Queue, now_s: float) -> bool:
        """Return whether no request of the class waits anywhere, and no place of the queue is kept for any."""
        cap = 0 if self._caps is None else self._caps[name]
        return not self._backlog.waiting_anywhere(name) and not queue.kept(None, cap, now_s)

    def _checked_place(
        self,
        new: ArrivingRequest,
        forecast: Forecast,
        queue: Queue,
        request: Any,
        now_s: float,
        together: Together,
    ) -> WaitingPlace:
        """Return the place of a request that is let in. Raises: SLOUnattainable, QueueFull."""
        name = new.slo.slo_class.name
        waits_for_others = forecast.ahead > 0 and not (together.tickets and together.found_none_waiting)
        if self._min_chance is not None and new.slo.targets:
            try:
                check_possible(new, self._predictor.floors, now_s)
                if waits_for_others:
                    check_likely(new, forecast, queue, self._min_chance, now_s)
            except SLOUnattainable:  # whatever its chance, a client that came for a place does not need it
                if new.key is not None and queue.has_kept_places():
                    queue.came(new.key(), now_s)
                raise
        place = queue.enter(request, now_s, forecast.urgency)
        cap = None if self._caps is None else self._caps[name]
        if cap is not None and not together.tickets:
            self._take_place(new, queue, place, cap, now_s)
        elif cap is not None and not together.found_none_waiting:
            self._take_place_of_list(name, queue, place, cap, now_s, len(together.tickets) + 1)
        return place

    def _take_place_of_list(
        self, name: str, queue: Queue, place: WaitingPlace, cap: int, now_s: float, size: int
    ) -> None:
        """Raise QueueFull where there is no place for the last of the first ``size`` prompts of a list.

        No place is promised to these prompts: the places of all would have to be kept until the list comes again. Its
        first prompt, which is not known to begin a list, may have a promise as any request has.
        """
        waiting, kept = self._backlog.waiting_anywhere(name), queue.kept(None, cap, now_s)
        if waiting <= cap - kept or self._backlog.has_share_left(name, queue, cap - kept):
            return
        place.left(now_s)
        retry_after_s = queue.reserve_place(now_s)
        others = f", and {kept} places are kept for requests that were refused before" if kept else ""
        raise QueueFull(
            f"queue full: {waiting - size} of {cap} requests of class {name!r} wait{others}; there is no room for a "
            f"list of {size} prompts or more: retry in {retry_after_s} s or send a shorter list (a list of more than "
            f"{cap} is served when no other request of its class waits)",
            retry_after_s,
            name,
        )

    def _take_place(self, new: ArrivingRequest, queue: Queue, place: WaitingPlace, cap: int, now_s: float) -> None:
        """Take a place for a request, or raise QueueFull if all places are taken or kept for others."""
        name, waiting = new.slo.slo_class.name, self._backlog.waiting_anywhere(new.slo.slo_class.name)
        promised = queue.has_kept_places()
        key = new.key() if new.key is not None and (promised or waiting > cap) else None
        kept = queue.kept(key, cap, now_s) if promised else 0
        if waiting <= cap - kept or self._backlog.has_share_left(name, queue, cap - kept):
            if promised:
                queue.came(key, now_s)
            return
        place.left(now_s)
        retry_after_s = queue.reserve_place(now_s, key=key)
        others = f", and {kept} places are kept for requests that were refused before" if kept else ""
        mine = f", {len(queue.waiting)} of them yours" if self._backlog.by_tenant else ""
        full = f"queue full: {min(waiting - 1, cap)} of {cap} requests of class {name!r} wait{mine}{others}"
        raise QueueFull(
            f"{full}; retry in {retry_after_s} s",
            retry_after_s,
            name,
        )

    def is_full(self, class_name: str, now_s: float, tenant: str | None = None) -> bool:
        """Return whether a request of the class, and of the tenant, would find it at its cap."""
        if self._caps is None:
            return False
        self._backlog.sweep(class_name, now_s)
        cap, queue = self._caps[class_name], self._backlog.queue_of(class_name, tenant)
        places = cap - queue.kept(None, cap, now_s)
        if self._backlog.waiting_anywhere(class_name) < places:
            return False
        place = queue.enter(None, now_s)
        has_room = self._backlog.has_share_left(class_name, queue, places)
        place.left(now_s)
        return not has_room

    def reserve_place(self, class_name: str, now_s: float, tenant: str | None = None) -> int:
        """Reserve a place for a client that is refused; return in how many whole seconds a place should be free."""
        return self._backlog.queue_of(class_name, tenant).reserve_place(now_s)

    def waiting(self, class_name: str) -> int:
        """Return how many requests of the class are counted as waiting in this process."""
        return self._backlog.waiting(class_name)

    def sweep(self, now_s: float) -> bool:
        """Record first tokens that were not seen to leave; return whether any request still waits.

        It serves other processes, which count the requests that wait here; a forecast sweeps its own class.
        """
        return self._backlog.sweep_all(now_s)

    def still_waiting(self, ticket: Ticket, now_s: float) -> StillWaiting | None:
        """Return the place of an admitted request and the rest of its wait; ``None`` once its first token is out."""
        new, place = ticket.new, ticket.place
        self._backlog.sweep(new.slo.slo_class.name, now_s)
        position = place.position(now_s)
        if position is None:
            return None
        interval_s = place.interval_s(now_s)
        remaining = self._predictor.remaining_ttft(new, place.urgency, position.in_lane, interval_s, now_s)
        return StillWaiting(position.in_queue, remaining)
