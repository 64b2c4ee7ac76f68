"""SLOs in ``vllm_xargs``: flat keys that vLLM carries from the request body to ``SamplingParams.extra_args``.

The keys are::

    slo_ttft_ms, slo_tpot_ms, slo_e2e_ms   milliseconds     slo_tds            tokens per second
    slo_class                              class name       slo_output_tokens  output length, if the client knows it
    slo_promise                            probability      slo_promise_fallback  true to be served without the promise

and the keys of a task, :data:`TASK_KEYS`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sloserve.core import numbers
from sloserve.core.errors import InvalidRequest
from sloserve.core.promises import LEAST_LEVEL, MOST_LEVEL, PromiseWish
from sloserve.core.slo import MAX_TARGET_S, MAX_TDS, SLO, ClassTable, Targets
from sloserve.core.tasks import MOST_CALLS, TaskCall
from sloserve.wire.held import KEY as HELD_KEY

TARGET_KEYS = {
    # key: (field of Targets, factor to its unit, limit in the key's own unit, what is allowed)
    "slo_ttft_ms": ("ttft_s", 1e-3, MAX_TARGET_S * 1e3, "milliseconds"),
    "slo_tpot_ms": ("tpot_s", 1e-3, MAX_TARGET_S * 1e3, "milliseconds"),
    "slo_e2e_ms": ("e2e_s", 1e-3, MAX_TARGET_S * 1e3, "milliseconds"),
    "slo_tds": ("tds", 1.0, MAX_TDS, "tokens per second"),
}
PREFIX = "slo_"
TASK_ID, TASK_E2E_MS, TASK_DEADLINE, TASK_CALLS, TASK_LAST = TASK_KEYS = (
    "slo_task_id",
    "slo_task_e2e_ms",
    "slo_task_deadline",
    "slo_task_calls",
    "slo_task_last",
)
"""Keys that state the task of a request, see :mod:`sloserve.wire.tasks`; the front end reads them, and no engine."""
PROMISE, PROMISE_FALLBACK = "slo_promise", "slo_promise_fallback"
KEYS = (*TARGET_KEYS, "slo_class", "slo_output_tokens", PROMISE, PROMISE_FALLBACK)
MAX_OUTPUT_TOKENS = 2**31
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
LENGTH_KEY = "sloserve_length"
"""Key that our front end sends to our scheduler, never a client: see :func:`with_internal`."""
PROGRESS_KEY = "sloserve_progress"
"""Key that our front end sends to our scheduler, never a client: see :func:`of_further_call`."""


TENANT_KEY = "sloserve_tenant"
"""Key that our front end sends to our scheduler, never a client: see :func:`with_internal`."""
CALL_KEY = "sloserve_call"
"""Key that our front end sends to our scheduler, never a client: see :func:`with_internal`."""
PROMISED_KEY = "sloserve_promised"
"""Key that our front end sends to our scheduler, never a client: see :func:`with_promise`."""
_INTERNAL = frozenset({LENGTH_KEY, PROGRESS_KEY, TENANT_KEY, CALL_KEY, PROMISED_KEY, HELD_KEY})


def parse_slo(extra_args: Mapping[str, Any] | None, classes: ClassTable) -> SLO:
    """Return the SLO that ``extra_args`` state; keys of a task, and keys of other software, are ignored.

    Raises: InvalidRequest for an unknown ``slo_`` key, an unknown class, or a value that is not a positive number in
    range.
    """
    args = {k: v for k, v in (extra_args or {}).items() if _states_slo(k)}
    for key in args:
        if key not in KEYS:
            raise InvalidRequest(key, args[key], f"a known SLO key; known: {', '.join((*KEYS, *TASK_KEYS))}")
    targets = stated_targets(args)
    slo_class = args.get("slo_class")
    if slo_class is not None and (not isinstance(slo_class, str) or slo_class not in classes):
        raise InvalidRequest("slo_class", slo_class, f"one of {', '.join(classes.names)}")
    stated_output_tokens(extra_args)
    promise = stated_promise(args, (classes.default if slo_class is None else classes[slo_class]).promise)
    slo = classes.slo(slo_class, targets, promise)
    if slo.promise is not None and promise is not None and not slo.targets:
        raise InvalidRequest(PROMISE, args[PROMISE], f"possible without a target; state {', '.join(TARGET_KEYS)}")
    return slo


def _states_slo(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(PREFIX) and key not in TASK_KEYS


def stated_targets(args: Mapping[str, Any]) -> Targets:
    """Return the targets among ``args``, without targets of any class.

    Raises: InvalidRequest.
    """
    targets = {}
    for key, (name, factor, limit, unit) in TARGET_KEYS.items():
        if key in args:
            allowed = f"a number of {unit} above 0 and up to {limit:.0f}"
            targets[name] = _number(key, args[key], numbers.LEAST, limit, allowed) * factor
    return Targets(**targets)


def stated_promise(args: Mapping[str, Any], of_class: PromiseWish | None = None) -> PromiseWish | None:
    """Return the promise that ``args`` ask for; ``None`` if they ask for none of their own.

    Args:
        args: Keys and values as in ``vllm_xargs``.
        of_class: Promise of the request's class, which a fallback alone keeps.

    Raises: InvalidRequest.
    """
    falls_back = args.get(PROMISE_FALLBACK, False)
    if isinstance(falls_back, str) and falls_back.lower() in _FLAGS:
        falls_back = _FLAGS[falls_back.lower()]
    if falls_back not in (True, False):
        raise InvalidRequest(PROMISE_FALLBACK, falls_back, "1 or 0")
    if PROMISE not in args:
        if PROMISE_FALLBACK in args and of_class is not None:
            return PromiseWish(of_class.level, bool(falls_back))
        if PROMISE_FALLBACK in args:
            raise InvalidRequest(PROMISE_FALLBACK, args[PROMISE_FALLBACK], f"possible without {PROMISE}; state both")
        return None
    allowed = f"0 for no promise, or a probability from {LEAST_LEVEL:g} to {MOST_LEVEL:g}"
    level = _number(PROMISE, args[PROMISE], 0.0, MOST_LEVEL, allowed)
    if 0.0 < level < LEAST_LEVEL:
        raise InvalidRequest(PROMISE, args[PROMISE], allowed)
    return PromiseWish(level, bool(falls_back))


def stated_output_tokens(extra_args: Mapping[str, Any] | None) -> int | None:
    """Return the output's length in tokens as the client states it, or ``None``.

    Raises: InvalidRequest.
    """
    value = (extra_args or {}).get("slo_output_tokens")
    if value is None:
        return None
    allowed = f"a number of tokens from 1 to {MAX_OUTPUT_TOKENS}"
    return int(_number("slo_output_tokens", value, 1.0, MAX_OUTPUT_TOKENS, allowed))


def with_internal(
    extra_args: Mapping[str, Any] | None,
    quantiles: Sequence[float] | None = None,
    tenant: str | None = None,
    call: TaskCall | None = None,
) -> dict[str, Any] | None:
    """Return ``extra_args`` with what the front end knows of a request, without a client's internal keys.

    Args:
        extra_args: The ``extra_args`` that the client sent.
        quantiles: Quantiles of the output's length in tokens, ascending; ``None`` if nothing was predicted.
        tenant: The tenant of the request; ``None`` if it is not known.
        call: The task of the request; ``None`` if it is no part of a task.
    """
    args = {key: value for key, value in (extra_args or {}).items() if key not in _INTERNAL}
    if quantiles is not None:
        args[LENGTH_KEY] = list(quantiles)
    if tenant is not None:
        args[TENANT_KEY] = tenant
    return with_call(args, call) if call is not None else args or None


def with_call(extra_args: Mapping[str, Any] | None, call: TaskCall) -> dict[str, Any]:
    """Return ``extra_args`` with the task of a request, as the front end knows it."""
    return {**(extra_args or {}), CALL_KEY: [call.key, call.due_s, call.calls, call.last]}


def with_promise(extra_args: Mapping[str, Any] | None, first_from_s: float) -> dict[str, Any]:
    """Return ``extra_args`` with the epoch seconds from which on the request comes first, since it has a promise."""
    return {**(extra_args or {}), PROMISED_KEY: float(first_from_s)}


def promised_first_s(extra_args: Mapping[str, Any] | None) -> float | None:
    """Return the time of :func:`with_promise`; ``None`` for a request without a promise."""
    value = (extra_args or {}).get(PROMISED_KEY)
    return value if isinstance(value, float) and math.isfinite(value) else None


def internal_keys(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entries of ``extra_args`` that the front end wrote."""
    return {key: value for key, value in (extra_args or {}).items() if key in _INTERNAL}


def stating_keys(extra_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entries of ``extra_args`` that state an SLO."""
    return {key: value for key, value in (extra_args or {}).items() if isinstance(key, str) and key.startswith(PREFIX)}


def of_further_call(
    extra_args: Mapping[str, Any] | None,
    stated: Mapping[str, Any],
    elapsed_s: float,
    *,
    begun: bool,
    tenant: str | None = None,
    call: TaskCall | None = None,
    first_from_s: float | None = None,
) -> dict[str, Any]:
    """Return ``extra_args`` for a further call of the engine by a request that has made one before.

    Args:
        extra_args: The ``extra_args`` of the call.
        stated: The keys that state the request's SLO.
        elapsed_s: Seconds from the request's arrival to the call.
        begun: Whether its first token has been emitted.
        tenant: The tenant of the request; ``None`` if it is not known.
        call: The task of the request; ``None`` if it is no part of a task.
        first_from_s: Epoch seconds from which on it comes first; ``None`` without a promise.
    """
    internal = with_internal(extra_args, tenant=tenant, call=call) or {}
    if first_from_s is not None:
        internal = with_promise(internal, first_from_s)
    others = {key: value for key, value in internal.items() if key not in stated}
    return others | dict(stated) | {PROGRESS_KEY: [float(elapsed_s), float(begun)]}


def progress(extra_args: Mapping[str, Any] | None) -> tuple[float, bool] | None:
    """Return ``elapsed_s`` and ``begun`` of :func:`of_further_call`; ``None`` for a request's first call."""
    value = (extra_args or {}).get(PROGRESS_KEY)
    if not isinstance(value, list) or len(value) != 2:
        return None
    if not all(isinstance(one, float) and math.isfinite(one) for one in value):
        return None
    return max(value[0], 0.0), bool(value[1])


def predicted_length(extra_args: Mapping[str, Any] | None, count: int) -> tuple[float, ...] | None:
    """Return the ``count`` quantiles that the front end predicted; ``None`` if it did not, or if they are malformed."""
    value = (extra_args or {}).get(LENGTH_KEY)
    if not isinstance(value, list) or len(value) != count:
        return None
    if not all(isinstance(one, float) and 0.0 <= one <= MAX_OUTPUT_TOKENS for one in value):
        return None
    return tuple(value)


def _number(key: str, value: Any, least: float, limit: float, allowed: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else _read(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not least <= number <= limit:
        raise InvalidRequest(key, value, allowed)
    return number


def _read(value: Any) -> float:
    return numbers.number(value) if isinstance(value, str) else float(value)


def to_xargs(slo: SLO, output_tokens: int | None = None) -> dict[str, str | float]:
    """Return what a client sends to state ``slo``: the inverse of :func:`parse_slo`."""
    args: dict[str, str | float] = {"slo_class": slo.slo_class.name}
    for key, (name, factor, _, _) in TARGET_KEYS.items():
        value = getattr(slo.targets, name)
        if value is not None:
            args[key] = value / factor
    if output_tokens is not None:
        args["slo_output_tokens"] = output_tokens
    if slo.promise is not None:
        args[PROMISE] = slo.promise.level
        if slo.promise.falls_back:
            args[PROMISE_FALLBACK] = 1
    return args


def stated_tenant(extra_args: Mapping[str, Any] | None) -> str | None:
    """Return the tenant that the front end wrote into ``extra_args``, or ``None``."""
    value = (extra_args or {}).get(TENANT_KEY)
    return value if isinstance(value, str) else None


def stated_call(extra_args: Mapping[str, Any] | None) -> TaskCall | None:
    """Return the task that the front end wrote into ``extra_args``; ``None`` without one, or if it is malformed."""
    value = (extra_args or {}).get(CALL_KEY)
    if not isinstance(value, list) or len(value) != 4:
        return None
    key, due_s, calls, last = value
    if not isinstance(key, str) or not (due_s is None or (isinstance(due_s, float) and math.isfinite(due_s))):
        return None
    if not (calls is None or (isinstance(calls, int) and 1 <= calls <= MOST_CALLS)):
        return None
    return TaskCall(key, due_s, calls, bool(last))
