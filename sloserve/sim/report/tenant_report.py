"""What each tenant of a run got, and how evenly: figures of the record of a run with requests of several tenants.

A request's *slowdown* is its e2e latency over the time that it takes alone on the empty engine, see :func:`alone_s`.
Jain's index is over the tenants' attainment, their mean slowdown, and their service per weight. Attainment and
slowdown are not divided by weights: tenants that all have every request in time are served fairly, whatever their
weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sloserve.core.goodput import attainment
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.core.tenants import NONE, OTHER
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.sim.report.statistics import jain_index

MOST_TENANTS: Final = 50
"""Tenants with a record of their own, the ones with most requests; the others count as :data:`OTHER`."""


def alone_s(request: WorkloadRequest, latency: StepLatency, chunk_tokens: int) -> float:
    """Return the e2e latency of a request alone on an empty engine, in seconds.

    Its prompt is computed in chunks, without a prefix cache, then one token a step.

    Args:
        request: The request.
        latency: Step times of the engine.
        chunk_tokens: Most tokens that a step computes.
    """
    prompt, found_s = request.prompt_tokens, 0.0
    for done in range(0, prompt, chunk_tokens):
        found_s += latency.step_s(StepLoad.of([(min(chunk_tokens, prompt - done), done)]))
    decodes = request.output_tokens - 1
    # A step's time is linear in the context, so the mean context stands for all steps.
    return found_s + decodes * latency.step_s(StepLoad.of(decode_contexts=[prompt + 1 + decodes // 2]))


def tenant_record(
    log: RunLog,
    alone: Callable[[WorkloadRequest], float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return the figures by tenant of one run, and Jain's index over all its tenants; empty with fewer than two.

    Args:
        log: The log of the run.
        alone: Returns the e2e latency of a request alone on the empty engine, in seconds; ``None`` if it is not known.
        weights: Weight of each tenant's share; 1 for a tenant that is not named.
    """
    of_tenant: dict[str, list[RequestLog]] = {}
    for one in log.requests:
        of_tenant.setdefault(one.request.tenant, []).append(one)
    if len(of_tenant) < 2:
        return {}
    slowdowns = {name: _slowdown(logs, alone) for name, logs in of_tenant.items()}
    ratios = (attainment(logs).ratio for logs in of_tenant.values())
    service_s = log.tenant_service_s
    per_weight = None
    if service_s is not None:
        per_weight = [service_s.get(name, 0.0) / (weights or {}).get(name, 1.0) for name in of_tenant]
    ranked = sorted(of_tenant, key=lambda name: (-len(of_tenant[name]), name))
    own = MOST_TENANTS if len(ranked) <= MOST_TENANTS else MOST_TENANTS - 1
    others = frozenset(ranked[own:])
    groups: dict[str, list[str]] = {}
    for name in (*sorted(ranked[:own]), *ranked[own:]):
        groups.setdefault(OTHER if name in others else name or NONE, []).append(name)
    return {
        "by_tenant": {
            label: _record([one for name in names for one in of_tenant[name]], names, alone, service_s)
            for label, names in groups.items()
        },
        "tenants": len(of_tenant),
        "jain_attainment": jain_index([ratio for ratio in ratios if ratio is not None]),
        "jain_slowdown": jain_index([one for one in slowdowns.values() if one is not None]),
        "jain_service_per_weight": None if per_weight is None else jain_index(per_weight),
    }


def _record(
    logs: Sequence[RequestLog],
    names: Sequence[str],
    alone: Callable[[WorkloadRequest], float] | None,
    service_s: Mapping[str, float] | None,
) -> dict[str, Any]:
    """Return the figures of the tenants ``names``, which sent the requests of ``logs``."""
    attained = attainment(logs)
    return {
        "requests": len(logs),
        "completed": sum(one.outcome is Outcome.COMPLETED for one in logs),
        "slo_attainment": attained.ratio,
        "slo_attainment_admitted": attained.ratio_admitted,
        "service_s": None if service_s is None else sum(service_s.get(name, 0.0) for name in names),
        "tokens": sum(_tokens(one) for one in logs),
        "mean_slowdown": _slowdown(logs, alone),
    }


def _tokens(log: RequestLog) -> int:
    """Return the tokens that a request got: its outputs and, once it has one, its prompt without the cached part."""
    outputs = int(log.token_times_s.size)
    return outputs + (log.request.prompt_tokens - log.cached_tokens if outputs else 0)


def _slowdown(logs: Sequence[RequestLog], alone: Callable[[WorkloadRequest], float] | None) -> float | None:
    """Return the mean slowdown of the requests that completed; ``None`` if it is not known."""
    if alone is None:
        return None
    found = [
        one.latency.e2e_s / alone(replace(one.request, output_tokens=int(one.token_times_s.size)))
        for one in logs
        if one.latency is not None
    ]
    return sum(found) / len(found) if found else None
