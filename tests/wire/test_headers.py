"""SLO headers: names, aliases, and what is refused."""

import pytest

from sloserve.core.errors import InvalidRequest
from sloserve.core.predicted import Predicted, Quantiles
from sloserve.core.slo import Targets
from sloserve.wire.headers import FIELDS, MAX_IGNORED, Field, HeaderRules, given_header, read_headers, remaining
from sloserve.wire.held import Held, held_header
from sloserve.wire.response_headers import predictions


def raw(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]


@pytest.mark.parametrize("name", FIELDS)
def test_each_header_is_a_key_of_vllm_xargs(name: str) -> None:
    found = read_headers([(b"content-type", b"application/json"), (name.encode(), b" 500 ")])
    assert found.fields == {FIELDS[name]: Field(name, "500")}
    assert (found.tenant, found.report) == (None, False)


def test_others_headers_are_not_ours() -> None:
    found = read_headers(raw(x_request_id="1", x_forwarded_for="y", accept="x-slo", x_slo_dropped_reason="z"))
    assert (found.fields, found.tenant) == ({}, None)


def test_alias_that_agrees_is_fine_and_one_that_contradicts_is_not() -> None:
    agreeing = raw(x_slo_ttft_ms="500", x_llm_d_slo_ttft_ms="500")
    assert read_headers(agreeing).fields["slo_ttft_ms"].name == "x-slo-ttft-ms"
    with pytest.raises(InvalidRequest, match="x-llm-d-slo-ttft-ms: '600' is not '500', which x-slo-ttft-ms states"):
        read_headers(raw(x_slo_ttft_ms="500", x_llm_d_slo_ttft_ms="600"))


def test_misspelt_header_is_named_with_a_suggestion() -> None:
    with pytest.raises(InvalidRequest, match=r"x-slo-tfft-ms: '500' is not a known SLO header.*mean x-slo-ttft-ms\?"):
        read_headers(raw(x_slo_tfft_ms="500"))


@pytest.mark.parametrize(("text", "wanted"), [("1", True), ("true", True), ("0", False), ("False", False)])
def test_report(text: str, wanted: bool) -> None:
    assert read_headers(raw(x_slo_report=text)).report is wanted


@pytest.mark.parametrize("headers", [{"x_slo_report": "maybe"}, {"x_slo_report": ""}])
def test_report_is_yes_or_no(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="x-slo-report: '.*' is not 1 or 0"):
        read_headers(raw(**headers))


def test_tenant_and_its_alias() -> None:
    assert read_headers(raw(x_tenant_id=" acme ")).tenant == "acme"
    assert read_headers(raw(x_llm_d_inference_fairness_id="acme", x_tenant_id="acme")).tenant == "acme"
    with pytest.raises(InvalidRequest, match="x-tenant-id: 'b' is not 'a'"):
        read_headers(raw(x_llm_d_inference_fairness_id="a", x_tenant_id="b"))


@pytest.mark.parametrize("tenant", ["", "x" * 129, "a\tb", "t\xe9l\xe9"])
def test_tenant_is_a_short_label(tenant: str) -> None:
    with pytest.raises(InvalidRequest, match="x-tenant-id: .* is not 1 to 128 visible ASCII characters") as error:
        read_headers(raw(x_tenant_id=tenant))
    assert len(str(error.value)) < 200


def test_predictions_are_structured_fields_of_the_worst() -> None:
    a = Predicted(Quantiles(0.1204, 0.48, 0.9), None)
    b = Predicted(Quantiles(0.05, 0.5, 0.5), Quantiles(0.0001, 12.3456, 20.0), Quantiles(0.0123, 0.02, 0.0346))
    assert predictions([a, b]) == [
        ("x-slo-predicted-ttft-ms", "120;p90=500;p99=900"),
        ("x-slo-predicted-tpot-ms", "12.3;p90=20.0;p99=34.6"),
        ("x-slo-predicted-e2e-ms", "1;p90=12346;p99=20000"),
    ]
    assert predictions([a]) == [("x-slo-predicted-ttft-ms", "120;p90=480;p99=900")] and predictions([]) == []


@pytest.mark.parametrize(
    ("value", "after_s"),
    [
        (given_header(0.99, 0.1204), 0.12),
        (given_header(0.9, -3.0), 0.0),
        ("0.99", None),
        ("none;why=late", None),
        ("0.99;first-ms=-5", None),
        ("0.99;first-ms=1e9", None),
        ("0.99;first-ms=" + "9" * 5000, None),
        ("0.99;first-ms=\u00b2", None),
    ],
)
def test_what_a_gateway_promised_counts_from_trusted_senders_alone(value: str, after_s: float | None) -> None:
    headers = [(b"x-slo-promised", value.encode("latin-1"))]
    assert read_headers(headers, HeaderRules(trusts_gateway=True)).given_after_s == after_s
    assert read_headers(headers).given_after_s is None


@pytest.mark.parametrize(
    ("value", "held"),
    [
        (held_header(1.25, Targets(ttft_s=0.5, tpot_s=1.0, e2e_s=30.0)).encode(), Held(1.25, 0.5, 30.0)),
        (held_header(0.001, Targets(e2e_s=2.5)).encode(), Held(0.001, None, 2.5)),
        (held_header(2.0, Targets()).encode(), Held(2.0, None, None)),
        (held_header(0.5, Targets(ttft_s=0.0004)).encode(), Held(0.5, 0.001, None)),
        *((value, None) for value in (b"1;ttft-ms=0", b"1;e2e-ms=604800001", b"1;e2e-ms=999999999999")),
        (b"9" * 9, Held(3600.0, None, None)),
        *((value, None) for value in (b"9" * 5000, b"-5", b"1.5", b"", b"5;e2e-ms=x", b"5;x=1", "\u00b2".encode())),
    ],
)
def test_how_long_a_gateway_held_a_request_is_known_from_trusted_proxies_alone(value: bytes, held: Held | None) -> None:
    headers = [(b"x-slo-held-ms", value)]
    assert read_headers(headers, HeaderRules(trusts_proxy=True)).held == held
    found = read_headers(headers, HeaderRules(reject_unknown=True))
    assert found.held is None and not found.ignored


def test_unknown_headers_are_passed_over_up_to_a_number() -> None:
    unknown = [(f"x-slo-deadline{i}".encode(), b"1") for i in range(MAX_IGNORED + 1)]
    assert len(read_headers(unknown[:-1]).ignored) == MAX_IGNORED
    with pytest.raises(InvalidRequest, match="x-slo-deadline32: '1' is not one of at most 32 unknown"):
        read_headers(unknown)


def test_who_holds_a_request_states_what_is_left_of_its_times() -> None:
    """The edge left its time to live as it was, so that it began anew behind it."""
    stays = [(b"x-slo-tpot-ms", b"50"), (b"x-slo-tds", b"9"), (b"x-slo-class", b"batch")]
    times = [(b"x-slo-ttft-ms", b"500"), (b"x-slo-e2e-ms", b"100"), (b"x-request-ttl-ms", b" 1e3"), *stays]
    assert list(remaining(times, 0.0)) == times
    left = [(b"x-slo-ttft-ms", b"300"), (b"x-slo-e2e-ms", b"1"), (b"x-request-ttl-ms", b"800"), *stays]
    assert list(remaining(times, 0.2)) == left
    of_gateways = [(b"x-slo-held-ms", b"9"), (b"x-slo-promised", b"0.9;first-ms=1")]
    assert list(remaining([*of_gateways, *stays], 0.2)) == stays
    assert list(remaining([(b"x-llm-d-slo-ttft-ms", b"900")], 0.2)) == [(b"x-llm-d-slo-ttft-ms", b"700")]


@pytest.mark.parametrize(
    "value", [b"soon", b"nan", b"inf", b"-1", b"0", b"1_000", b"\xb2", b"5e-324", b"1e300", b"\xff", b""]
)
def test_a_time_that_the_server_would_refuse_goes_on_as_it_is(value: bytes) -> None:
    assert list(remaining([(b"x-request-ttl-ms", value)], 0.2)) == [(b"x-request-ttl-ms", value)]
