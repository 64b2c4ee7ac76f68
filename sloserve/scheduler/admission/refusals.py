"""The refusals of requests for their own targets or promises, whatever the caps: each check raises what it refuses."""

from collections.abc import Iterator

from sloserve.core.errors import PromiseRefused, SLOUnattainable
from sloserve.core.finished import TOLERANCE_S
from sloserve.core.slo import DUE_NOW_S, SLO, Targets
from sloserve.scheduler.admission.best_observed import Floors
from sloserve.scheduler.admission.prediction import ArrivingRequest, Figure, Forecast
from sloserve.scheduler.admission.waiting_queue import Queue

UNCALIBRATED = 0.5
"""Calibration before any prediction was judged: a request must miss a target twofold to count."""


def check_possible(new: ArrivingRequest, floors: Floors, now_s: float) -> None:
    """Raise SLOUnattainable for a target below the least time that an idle engine was seen to take.

    Args:
        new: What is known of the request.
        floors: Least times that were observed.
        now_s: The present time, in seconds.
    """
    targets = new.slo.targets
    ttft_s = None if new.prompt_tokens is None else floors.ttft_s(new.prompt_tokens, now_s)
    tpot_s = floors.tpot_s(now_s)
    for name, target_s, least_s in _least(targets, new.output_tokens, ttft_s, tpot_s):
        if least_s > target_s + TOLERANCE_S:
            raise SLOUnattainable(
                f"{name} target of {_ms(target_s)} ms: at best this takes {_ms(least_s)} ms here, even if no "
                f"other request is served; ask for at least that",
                None,
                new.slo.slo_class.name,
            )


def check_likely(new: ArrivingRequest, forecast: Forecast, queue: Queue, min_chance: float, now_s: float) -> None:
    """Raise SLOUnattainable for a target that the request is predicted to miss, with the time to retry if that helps.

    Args:
        new: What is known of the request.
        forecast: The prediction of the request.
        queue: The queue in which it would wait; a place of it is reserved for a client that may retry.
        min_chance: Least chance to meet each target.
        now_s: The present time, in seconds.
    """
    class_name, targets = new.slo.slo_class.name, new.slo.targets
    # Of a figure that is not known yet, the TTFT is the least that it takes.
    for name, target_s, figure in (
        ("ttft", targets.ttft_s, forecast.ttft),
        ("e2e", targets.e2e_s, forecast.e2e or forecast.ttft),
    ):
        if target_s is None or figure is None or (name == "ttft" and target_s <= DUE_NOW_S):
            continue
        factor = figure.factor(min_chance) or UNCALIBRATED
        if factor * figure.prediction.predicted <= target_s:
            continue
        retry_after_s = None
        if factor * figure.unqueued_s <= target_s:
            retry_after_s = queue.reserve_place(now_s, figure.prediction.predicted - target_s / factor)
        raise SLOUnattainable(
            _unlikely(name, target_s, factor, figure, forecast, retry_after_s), retry_after_s, class_name
        )


def check_promise_allowed(promises: str, slo: SLO) -> None:
    """Raise PromiseRefused unless promises such as the request's may be given at all."""
    name = slo.slo_class.name
    if promises == "policy":
        raise PromiseRefused(
            "the policy of this server serves requests in order of arrival and keeps no promise; ask without "
            "x-slo-promise, or send x-slo-promise-fallback: 1",
            "policy",
            name,
        )
    of_class = 0.0 if slo.slo_class.promise is None else slo.slo_class.promise.level
    if promises == "off" or (promises == "classes" and slo.promise is not None and slo.promise.level > of_class):
        raise PromiseRefused(
            f"this server gives requests of class {name!r} no such promise; ask without x-slo-promise, or send "
            "x-slo-promise-fallback: 1",
            "off",
            name,
        )


def _least(
    targets: Targets, output_tokens: int | None, ttft_s: float | None, tpot_s: float | None
) -> Iterator[tuple[str, float, float]]:
    """Yield (name, target_s, least_s) of each target that can be judged; least_s is the least time it can take."""
    # What is due already is not refused for that: it asks to be served soon, not for a latency.
    if targets.ttft_s is not None and targets.ttft_s > DUE_NOW_S and ttft_s is not None:
        yield "ttft", targets.ttft_s, ttft_s
    if targets.e2e_s is not None and ttft_s is not None:
        # A length that is not stated may be a single token.
        decode_s = 0.0 if tpot_s is None or output_tokens is None else (output_tokens - 1) * tpot_s
        yield "e2e", targets.e2e_s, ttft_s + decode_s
    if output_tokens != 1 and tpot_s is not None:
        if targets.tpot_s is not None:
            yield "tpot", targets.tpot_s, tpot_s
        if targets.tds is not None:
            yield "tds", 1.0 / targets.tds, tpot_s


def _unlikely(
    name: str, target_s: float, factor: float, figure: Figure, forecast: Forecast, retry_after_s: int | None
) -> str:
    remedy = "ask for more" if retry_after_s is None else f"retry in {retry_after_s} s or ask for more"
    return (
        f"{name} target of {_ms(target_s)} ms: {_ms(factor * figure.prediction.predicted)} ms or more is predicted "
        f"with {forecast.ahead} requests of its class ahead; {remedy}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.01 else f"{seconds * 1e3:.2g}"
