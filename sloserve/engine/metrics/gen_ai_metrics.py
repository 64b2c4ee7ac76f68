"""Latencies under the names of OpenTelemetry's conventions for generative AI, beside ours.

Tools that know these names show a server without knowing ours. The conventions fix the buckets, which are the same for
each server; ours are finer where targets usually are. Labels have few values: an operation for each kind of route, and
one model, the name under which the server was started.

Source: OpenTelemetry semantic conventions 1.37, Generative AI model server metrics.
"""

from typing import Final

from prometheus_client import Histogram

from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
VLLM: Final = "vllm"
"""Value of :data:`PROVIDER`. The conventions list none for servers such as vLLM, and allow others."""

CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
GENERATE_CONTENT: Final = "generate_content"
OPERATIONS: Final = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/batch": CHAT,
    "/v1/responses": CHAT,
    "/v1/messages": CHAT,
    "/cohere/v2/chat": CHAT,
    "/v1/completions": TEXT_COMPLETION,
}
"""Value of :data:`OPERATION` by route; other routes have :data:`GENERATE_CONTENT`."""

DURATION_BUCKETS_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TTFT_BUCKETS_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
TPOT_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


def operation_of(path: str) -> str:
    """Return the operation of a request to the route ``path``."""
    return OPERATIONS.get(path, GENERATE_CONTENT)


def attributes_of(operation: str, model: str) -> dict[str, str]:
    """Return the attributes that metrics and spans share."""
    return {OPERATION: operation, PROVIDER: VLLM} | ({MODEL: model} if model else {})


class GenAiMetrics:
    """Histograms of the requests that one API process has served."""

    def __init__(self, model: str) -> None:
        """Create the histograms.

        Args:
            model: Name of the model for clients; empty if it is not known.
        """
        self._model = model
        self._duration = _histogram(
            "request.duration", "Arrival at the front end to the end of the request", DURATION_BUCKETS_S, "error.type"
        )
        self._ttft = _histogram(
            "time_to_first_token", "Arrival at the front end to first token, of completed requests", TTFT_BUCKETS_S
        )
        self._tpot = _histogram(
            "time_per_output_token",
            "Mean time per token after the first, of completed requests with several",
            TPOT_BUCKETS_S,
        )

    def all(self) -> list[Histogram]:
        """Return each histogram once, to be registered."""
        return [self._duration, self._ttft, self._tpot]

    def record(self, served: ServedRequest, operation: str, age_s: float) -> None:
        """Record a request that ended.

        Args:
            served: How the request fared.
            operation: Operation of the request's route.
            age_s: Seconds since the request arrived.
        """
        labels = operation, VLLM, self._model
        completed, latency = served.outcome is Outcome.COMPLETED, served.latency
        duration_s = age_s if latency is None else latency.e2e_s
        self._duration.labels(*labels, "" if completed else str(served.outcome)).observe(duration_s)
        if completed and latency is not None:
            self._ttft.labels(*labels).observe(latency.ttft_s)
            if served.output_tokens > 1 and latency.tpot_s is not None:
                self._tpot.labels(*labels).observe(latency.tpot_s)


def _histogram(name: str, documentation: str, buckets_s: tuple[float, ...], *more: str) -> Histogram:
    """Return a histogram in seconds with name and labels of the conventions, as Prometheus spells them."""
    labels = [label.replace(".", "_") for label in (OPERATION, PROVIDER, MODEL, *more)]
    return Histogram(
        f"gen_ai_server_{name.replace('.', '_')}_seconds", documentation, labels, buckets=buckets_s, registry=None
    )
