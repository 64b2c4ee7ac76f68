"""What a response says in its headers of the predictions and promises for its request."""

from collections.abc import Iterable, Sequence

from sloserve.core.predicted import Predicted, Quantiles, worst
from sloserve.core.promises import Promised
from sloserve.wire.headers import PREDICTED_E2E, PREDICTED_TASK, PREDICTED_TPOT, PREDICTED_TTFT


def predictions(predicted: Iterable[Predicted], task: Quantiles | None = None) -> list[tuple[str, str]]:
    """Return the headers that report the predictions for one HTTP request's calls of the engine: the worst of them.

    A value is a structured field (RFC 8941): the median, with the other quantiles as its parameters,
    ``120;p90=480;p99=910``, in ms; the time per token has one decimal.

    Args:
        predicted: Predictions for calls of the engine.
        task: Prediction for the task of the request, from its first call to its end; ``None`` if there is none.
    """
    shown = worst(predicted)
    figures = (
        (PREDICTED_TTFT, shown.ttft, _whole_ms),
        (PREDICTED_TPOT, shown.tpot, _tenths_of_ms),
        (PREDICTED_E2E, shown.e2e, _whole_ms),
        (PREDICTED_TASK, task, _whole_ms),
    )
    return [
        (name, f"{ms(found.median_s)};p90={ms(found.p90_s)};p99={ms(found.p99_s)}")
        for name, found, ms in figures
        if found is not None
    ]


def promise_header(given: Sequence[Promised | str]) -> str:
    """Return what one HTTP request was promised, as a structured field (RFC 8941): ``0.99``, or ``none;why=late``.

    Args:
        given: The promise of each of its calls of the engine that asks for one, or why it has none; at least one.
    """
    refused = next((one for one in given if isinstance(one, str)), None)
    if refused is not None:
        return f"none;why={refused}"
    return f"{min(one.level for one in given if not isinstance(one, str)):g}"


def _whole_ms(seconds: float) -> str:
    return str(max(round(seconds * 1e3), 1))


def _tenths_of_ms(seconds: float) -> str:
    return f"{max(seconds * 1e3, 0.1):.1f}"
