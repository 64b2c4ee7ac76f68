"""Latencies under OpenTelemetry's names for generative AI: names, labels and buckets are the conventions'."""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.metrics.gen_ai_metrics import CHAT, GENERATE_CONTENT, GenAiMetrics, operation_of

SLO = DEFAULT_CLASSES.slo("batch", Targets(ttft_s=1.0))
SERVED = ServedRequest(SLO, Outcome.COMPLETED, latency=Latency(0.5, 0.03, 2.5), output_tokens=11)


def scraped(record: Callable[[GenAiMetrics], None], model: str = "tiny") -> dict[tuple[str, str, str], float]:
    """Return each sample by its name, its operation with a possible error, and its bucket; the rest is checked here."""
    registry, metrics = CollectorRegistry(), GenAiMetrics(model)
    for each in metrics.all():
        registry.register(each)
    record(metrics)
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("gen_ai_provider_name"), labels.pop("gen_ai_request_model")) == ("vllm", model)
            le, operation, error = (
                labels.pop("le", ""),
                labels.pop("gen_ai_operation_name"),
                labels.pop("error_type", ""),
            )
            assert not labels
            found[sample.name, f"{operation} {error}".strip(), le] = sample.value
    return found


def test_a_completed_request_counts_in_each_histogram() -> None:
    found = scraped(lambda metrics: metrics.record(SERVED, CHAT, 9.0))
    for name, value, below, from_ in (
        ("request_duration", 2.5, "1.28", "2.56"),
        ("time_to_first_token", 0.5, "0.25", "0.5"),
        ("time_per_output_token", 0.03, "0.025", "0.05"),
    ):
        stem = f"gen_ai_server_{name}_seconds"
        assert found[f"{stem}_count", CHAT, ""] == 1.0 and found[f"{stem}_sum", CHAT, ""] == value
        assert (found[f"{stem}_bucket", CHAT, below], found[f"{stem}_bucket", CHAT, from_]) == (0.0, 1.0)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED])
def test_a_request_that_failed_has_a_duration_and_an_error_alone(outcome: Outcome) -> None:
    found = scraped(lambda metrics: metrics.record(ServedRequest(SLO, outcome), CHAT, 9.0))
    assert found["gen_ai_server_request_duration_seconds_sum", f"chat {outcome}", ""] == 9.0
    assert not any("token" in name for name, _, _ in found)


def test_a_single_token_has_no_time_per_token() -> None:
    one = ServedRequest(SLO, Outcome.COMPLETED, latency=Latency(0.5, 0.0, 0.5), output_tokens=1)
    found = scraped(lambda metrics: metrics.record(one, CHAT, 0.5), model="")
    assert not any("per_output_token" in name for name, _, _ in found)
    assert found["gen_ai_server_time_to_first_token_seconds_count", CHAT, ""] == 1.0


def test_operations_are_the_conventions_and_few() -> None:
    assert [operation_of(path) for path in ("/v1/messages", "/v1/completions")] == ["chat", "text_completion"]
    assert operation_of("/v1/audio/transcriptions") == operation_of("/anything") == GENERATE_CONTENT


def test_names_are_those_of_the_package_of_conventions() -> None:
    semconv = pytest.importorskip("opentelemetry.semconv._incubating.metrics.gen_ai_metrics")
    attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    found = {name.removesuffix("_count") for name, _, _ in scraped(lambda m: m.record(SERVED, CHAT, 1.0))}
    for name in ("REQUEST_DURATION", "TIME_TO_FIRST_TOKEN", "TIME_PER_OUTPUT_TOKEN"):
        stated = getattr(semconv, f"GEN_AI_SERVER_{name}")
        assert f"{stated.replace('.', '_')}_seconds" in found
    assert {one.value for one in attributes.GenAiOperationNameValues} >= {"chat", "text_completion", "generate_content"}
