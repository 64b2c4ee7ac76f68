"""Apply a plan to vLLM's scheduler: order its queues, preempt, pause, and narrow its limits for one step.

We keep no queue: the plan's order is written into vLLM's ``running`` and ``waiting``. So everything vLLM does with them
afterwards (append an arrival, put a preempted request in front, put back the requests that it skipped) keeps its
meaning, a reused plan needs no further work, and the identity plan changes nothing.

Every request is in one of the queues at all times, so that no exception loses one. The steps that can fail come before
the first change: slots are resolved to requests and new queues are built, then each change is one assignment.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from vllm.v1.request import Request, RequestStatus

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.requests import moved_to_front
from sloserve.engine.request_table import RequestTable
from sloserve.lso.chunk_ends import advancing_tokens
from sloserve.scheduler.policy import Plan
from sloserve.vllm_plugin.engine import compat, kv_loads


class WrongRows(Exception):
    """The request table and vLLM disagree about a request, so no plan made from the table may be applied."""


def running_requests(scheduler: Any, slots: IntArray, table: RequestTable) -> list[Request]:
    """Return the requests in ``slots``, all of which run. Raises: WrongRows if one does not."""
    if not slots.size:
        return []
    members = set(scheduler.running)
    found: list[Request] = table.requests_in(slots)
    for request in found:
        if request not in members or request.status != RequestStatus.RUNNING:
            raise WrongRows(f"{request.request_id} is to be preempted or paused, but does not run")
    return found


def preempt(scheduler: Any, victims: Iterable[Request]) -> None:
    """Preempt running requests as vLLM does when KV is short. Errors come from vLLM and are not caught."""
    for request in victims:
        scheduler.running.remove(request)
        # No timestamp: vLLM then takes its own monotonic time for the event, as it does for a preemption of its own.
        scheduler._preempt_request(request, None, drop_stale_output=scheduler.requires_kv_delivery)
        # Where its output in flight is dropped it may come back in this very step, and a worker gets the tokens only
        # of requests that were not in the step before. vLLM's own reset of the prefix cache forgets these likewise.
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


class _Limits(NamedTuple):
    """Limits of vLLM's scheduler.

    Args:
        running: Requests that run at once.
        tokens: Tokens of a step.
        chunk: Tokens of a prompt in a step, 0 for any number.
        adaptive: Whether vLLM raises ``chunk`` to an equal share of a full step.
    """

    running: int
    tokens: int
    chunk: int
    adaptive: bool


class StockLimits:
    """vLLM's own limits, which a plan narrows for one ``schedule()`` and which hold again after :meth:`restore`."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._name = compat.admission_limit_name(scheduler)
        self._before: _Limits | None = None  # the first change: most steps make none, and need not read them

    @property
    def _own(self) -> _Limits:
        return self._before or self._now()

    def narrow(self, plan: Plan, num_running: int) -> None:
        """Restrict the limits to a plan.

        Args:
            plan: The plan.
            num_running: Requests with a row that run; vLLM counts others too.
        """
        own_limits = self._own
        running, tokens, chunk, adaptive = own_limits
        # vLLM ends no chunk within this many tokens of a prompt's end, where drafts look ahead. A chunk that is never
        # longer would be cut to none, step after step.
        least = int(self._scheduler.num_prefill_lookahead)
        if plan.max_running is not None:
            others = compat.places_taken(self._scheduler) - num_running
            # Never below what runs already: the limit is on admission, and vLLM 0.30 asserts it on the running list.
            running = min(running, max(int(plan.max_running) + others, len(self._scheduler.running)))
        if plan.token_budget is not None:
            tokens = min(tokens, max(int(plan.token_budget), least))
            decodes = len(self._scheduler.running) * (1 + int(self._scheduler.num_spec_tokens))
            tokens = min(advancing_tokens(tokens, compat.chunk_multiple(self._scheduler), decodes), own_limits.tokens)
        if plan.prefill_chunk_tokens is not None:
            # vLLM pads the last token of a prompt beside decodes to as many tokens as they have with their drafts, and
            # asserts that no threshold cuts that.
            uncut = 1 + int(self._scheduler.num_spec_tokens)
            planned, own = max(int(plan.prefill_chunk_tokens), least, uncut), compat.chunk_tokens(self._scheduler)
            if own is None or planned < own:  # and vLLM must not raise it again
                chunk, adaptive = planned, False
        limits = _Limits(running, tokens, chunk, adaptive)
        if limits != own_limits:
            self._set(limits)

    def keep_places(self, loading: int, loaded: int) -> None:
        """Reserve places for loading requests, and let in requests that have loaded: both hold blocks.

        No plan counts them: it sees them neither wait nor run.

        Args:
            loading: Number of requests with KV that is being loaded.
            loaded: Number of requests with KV that has been loaded.
        """
        if loading or loaded:
            self._admit(min(self._now().running + loaded, self._own.running - loading), len(self._scheduler.running))

    def let_in(self, loaded: int) -> None:
        """Let in ``loaded`` requests with KV that has been loaded."""
        if loaded:
            self._admit(min(self._now().running + loaded, self._own.running))

    def take_place(self) -> None:
        """Take a place for a load that begins, since its request runs after it."""
        self._admit(self._now().running - 1, len(self._scheduler.running))

    def _admit(self, running: int, least: int = 0) -> None:
        self._set(self._now()._replace(running=max(running, least)))

    def _now(self) -> _Limits:
        scheduler = self._scheduler
        return _Limits(
            getattr(scheduler, self._name),
            scheduler.max_num_scheduled_tokens,
            scheduler.scheduler_config.long_prefill_token_threshold,
            getattr(scheduler, compat.ADAPTIVE, False),
        )

    def restore(self) -> None:
        """Give vLLM its own limits back. Does nothing where they were not changed, so it may be called again."""
        if self._before is not None:
            self._set(self._before)
            self._before = None

    def _set(self, limits: _Limits) -> None:
        if self._before is None:
            self._before = self._now()
        setattr(self._scheduler, self._name, limits.running)
        self._scheduler.max_num_scheduled_tokens = limits.tokens
        self._scheduler.scheduler_config.long_prefill_token_threshold = limits.chunk
        if hasattr(self._scheduler, compat.ADAPTIVE):
            self._scheduler.adaptive_long_prefill_threshold = limits.adaptive


def let_in_loaded(scheduler: Any, ours: Container[str], limits: StockLimits) -> None:
    """Let in requests with KV that another connector has loaded: they hold blocks, and vLLM admits them first.

    Args:
        scheduler: vLLM's scheduler.
        ours: Ids of the requests with KV that our own connector loads.
        limits: The limits to widen.
    """
    found = kv_loads.fetching(scheduler)
    limits.let_in(sum(r.request_id not in ours and kv_loads.has_loaded(scheduler, r) for r in found))


def apply_plan(scheduler: Any, plan: Plan, table: RequestTable, limits: StockLimits) -> list[Request]:
    """Apply a plan to the next ``schedule()``: order the queues, narrow the limits and pause; all or nothing.

    The plan's preemptions are not applied here: call :func:`preempt` first.

    Returns: the requests that it paused, in the plan's order.

    Raises: any error, after everything is put back as it was.
    """
    paused = running_requests(scheduler, plan.pause, table)
    running, waiting = queues = scheduler.running, scheduler.waiting
    all_tracked = table.has_all(scheduler.requests)
    eligible = [request.next_decode_eligible_step for request in paused]
    running = _in_front(running, plan.running, table, all_tracked)
    waiting = _in_front(waiting, plan.waiting, table, all_tracked, by_arrival=True)
    # At each step, since vLLM appends the requests that it admits and takes its victims from the end.
    protected = table.marks.protected_running()
    running = _in_front(running, protected, table, all_tracked)
    if not all_tracked and running is not queues[0]:
        running = _decodes_first(running, table, protected.size)
    try:
        scheduler.running, scheduler.waiting = running, waiting
        limits.narrow(plan, table.num_running)
        for request in paused:
            compat.pause_for_next_step(scheduler, request)
    except Exception:
        scheduler.running, scheduler.waiting = queues
        limits.restore()
        for request, step in zip(paused, eligible, strict=True):
            request.next_decode_eligible_step = step
        raise
    return paused


def _in_front(
    present: Any, named: IntArray | None, table: RequestTable, all_tracked: bool, *, by_arrival: bool = False
) -> Any:
    """Return a queue with the named requests first, then the others in their present order.

    It is ``present`` itself if it has this order already or if no request is named. Requests without a row stay ahead
    of all others: a policy must not delay requests that it cannot see. A named request that is not in ``present`` (it
    waits elsewhere and holds KV) is left out.

    Args:
        present: The queue in its present order.
        named: Slots of the requests to put first; ``None`` for none.
        table: The request table.
        all_tracked: Whether each request has a row.
        by_arrival: Whether a request without a row stays ahead only of requests that came after it; else a flood of
            such requests would starve the others.
    """
    if named is None or not named.size:
        return present
    moved = moved_to_front(present, table.request_at, named)
    if moved is None:
        return present
    front, others = moved
    if all_tracked:
        return type(present)(front + others)
    untracked = [r for r in others if r.request_id not in table.slot_of]
    planned = front + [r for r in others if r.request_id in table.slot_of]
    return type(present)(_before_later_ones(untracked, planned) if by_arrival else untracked + planned)


def _before_later_ones(untracked: list[Request], planned: list[Request]) -> list[Request]:
    """Return ``planned`` with each of ``untracked``, in their order, before the first that arrived after it."""
    merged, at = [], 0
    for request in planned:
        while at < len(untracked) and untracked[at].arrival_time <= request.arrival_time:
            merged.append(untracked[at])
            at += 1
        merged.append(request)
    return merged + untracked[at:]


def _decodes_first(running: list[Request], table: RequestTable, num_protected: int) -> list[Request]:
    """Return ``running`` with the unfinished prompts that have no row behind the decodes.

    A policy has the prompts that it sees there, too. Without this they would take a whole step, which a policy may have
    made short.

    Args:
        running: The running requests.
        table: The request table.
        num_protected: Requests of the table that come first among its own, prompts or not: their chunks are limited.
    """
    prompts = [r for r in running if r.is_prefill_chunk and r.request_id not in table.slot_of]
    if not prompts:
        return running
    moved = set(prompts)
    others = [r for r in running if r not in moved]
    tracked = [place for place, r in enumerate(others) if r.request_id in table.slot_of]
    at = next((place for place in tracked[num_protected:] if others[place].is_prefill_chunk), len(others))
    return others[:at] + prompts + others[at:]


def trim_drafts(requests: Sequence[Request], lengths: Sequence[int]) -> int:
    """Leave each request at most as many draft tokens for the next step; return how many were left out.

    vLLM itself cuts drafts where a step has no room for all. A list is replaced and not changed, since the asynchronous
    scheduler gives one to all requests.
    """
    left_out = 0
    for request, length in zip(requests, lengths, strict=True):
        drafts = request.spec_token_ids
        if len(drafts) > length:
            left_out += len(drafts) - length
            request.spec_token_ids = drafts[:length]
    return left_out
