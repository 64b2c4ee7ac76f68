"""The outcome of a request as its client sees it: the ``slo`` object of a response."""

from typing import Any

from sloserve.core.served import ServedRequest


def outcome(served: ServedRequest) -> dict[str, Any]:
    """Return a request's targets, what it achieved, and its history; milliseconds, and tokens per second.

    A target that the request does not have is left out, and so are an unknown figure (QoE of an output that was not
    streamed, what an incomplete request used of the engine) and the promise of a request that was given none.
    """
    targets, latency = served.slo.targets, served.latency
    report: dict[str, Any] = {"class": served.slo.slo_class.name, "outcome": served.outcome.value}
    report["targets"] = _known(
        ttft_ms=_ms(targets.ttft_s), tpot_ms=_ms(targets.tpot_s), e2e_ms=_ms(targets.e2e_s), tds=targets.tds
    )
    if latency is not None:
        report["achieved"] = {
            "ttft_ms": _ms(latency.ttft_s),
            "tpot_ms": _ms(latency.tpot_s),
            "e2e_ms": _ms(latency.e2e_s),
        }
    return report | _known(
        met=served.met,
        good=served.good,
        promise=None if served.promised is None else {"level": served.promised.level, "outcome": served.promise},
        qoe=None if served.qoe is None else round(served.qoe, 4),
        output_tokens=served.output_tokens,
        waited_ms=_ms(served.waited_s),
        evictions=served.preemptions,
        preempted_ms=_ms(served.in_engine.preempted_s),
        paused_ms=_ms(served.in_engine.paused_s),
        paused_steps=served.in_engine.paused_steps,
        engine_ms=_ms(served.in_engine.engine_s or None),
        kv_ms=_ms(served.in_engine.kv_s or None),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
