"""What the columns of one request's row hold, from the engine's request and what it states."""

from typing import Protocol

from sloserve.core.rows import LENGTH_QUANTILES
from sloserve.core.slo import DUE_NOW_S, MAX_TARGET_S
from sloserve.core.stated import StatedSLO
from sloserve.core.tasks import TaskCall
from sloserve.engine.port import EngineRequest

_NAN = float("nan")
_INT64 = 2**63

MAX_TOKENS = 2**31
"""Most tokens that a column holds: beyond any model's context, and a sum of two is an int64."""


class QueuedRequest(EngineRequest, Protocol):
    """Further fields that are read of a request when it is queued, in vLLM's words.

    ``arrival_time`` is in seconds since the epoch.
    """

    @property
    def arrival_time(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


def static_columns(request: QueuedRequest, stated: StatedSLO) -> dict[str, float]:
    """Return the columns that are known when a request is queued and do not change; numbers are clamped.

    (The front end refuses what does not fit; but requests come by other ways too, and vLLM makes numbers of its own
    from a client's.)

    A first token that is due now is late whatever is done, so no policy gets it as a target: the others that the
    request has decide, and without any the rank of its class. As a target it could only count as missed, and a policy
    that serves last what it cannot help would serve it after requests that ask for nothing.
    """
    slo, targets = stated.slo, stated.slo.targets
    ttft_s = _NAN if targets.ttft_s is None or targets.ttft_s <= DUE_NOW_S else targets.ttft_s
    return {
        "arrival_s": request.arrival_time,
        "priority": min(max(request.priority, -_INT64), _INT64 - 1),
        "class_rank": slo.slo_class.rank,
        "class_id": stated.class_id,
        "account": stated.account,
        "task": stated.task,
        "first_from_s": _NAN if stated.first_from_s is None else stated.first_from_s,
        "ttft_s": ttft_s,
        "tpot_s": _NAN if targets.tpot_s is None else targets.tpot_s,
        "e2e_s": _NAN if targets.e2e_s is None else targets.e2e_s,
        "own_e2e_s": _NAN if targets.e2e_s is None else targets.e2e_s,
        "tds": _NAN if targets.tds is None else targets.tds,
        "prompt_tokens": min(request.num_prompt_tokens, MAX_TOKENS),
        "max_tokens": min(request.max_tokens, MAX_TOKENS),
        "oracle_output_tokens": -1 if stated.output_tokens is None else min(stated.output_tokens, MAX_TOKENS),
        **(dict(zip(LENGTH_QUANTILES, stated.length, strict=True)) if stated.length is not None else {}),
        **({} if stated.call is None else _call_columns(stated.call, request.arrival_time, targets.e2e_s)),
    }


def _call_columns(call: TaskCall, arrival_s: float, e2e_s: float | None) -> dict[str, float]:
    """Return the columns that a request has as a call of a task.

    What is left of the task's deadline is its e2e target, unless it has a tighter one of its own, up to the largest
    target that a request may have. A deadline that has passed is none, as is a TTFT that is due now.

    A call has the time until that deadline for itself only if no call follows. Otherwise the step budget would count
    all of it as slack of this call, and compute its prompt as slowly as that allows, with no time left for later calls.
    """
    columns: dict[str, float] = {"task_calls": call.calls or 0, "task_last": call.last}
    if call.due_s is not None:
        columns["task_due_s"] = call.due_s
        left_s = min(call.due_s - arrival_s, MAX_TARGET_S)
        if left_s > DUE_NOW_S:
            columns["e2e_s"] = left_s if e2e_s is None else min(left_s, e2e_s)
            if call.last or call.calls == 1:
                columns["own_e2e_s"] = columns["e2e_s"]
    return columns


def live_columns(
    request: QueuedRequest, stated: StatedSLO, cached_tokens: int | None, now_s: float
) -> dict[str, float]:
    """Return how far a request has come, for a row that is made, or gets a column, while it is being served.

    The time of its first token is not known then. A request with output is taken to have kept the pace that it asks for
    (TPOT, or 1 / TDS) up to now, so that a policy neither has to catch up for it nor sees it ahead; without a pace, its
    tokens all came just now. What the prefix cache held is known until the first token, and 0 thereafter.
    """
    values: dict[str, float] = {
        "computed_tokens": request.num_computed_tokens,
        "in_flight_tokens": request.num_in_flight_tokens,
        "output_tokens": request.num_output_tokens,
        "num_preemptions": request.num_preemptions,
        "cached_tokens": cached_tokens or 0,
    }
    if request.num_output_tokens:
        first_s = now_s - (stated.slo.targets.pace_s or 0.0) * (request.num_output_tokens - 1)
        values["first_token_s"] = max(first_s, request.arrival_time)
    return values
