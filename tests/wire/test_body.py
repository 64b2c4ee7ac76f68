"""The nested ``slo`` object and ``service_tier``, read out of a body that belongs to vLLM."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import InvalidRequest
from sloserve.wire.body import BodyFields, read_body
from sloserve.wire.headers import Field


def test_nested_slo_and_tier() -> None:
    body = {
        "messages": [{"role": "user", "content": '"slo": {"tds": 1}'}],
        "slo": {"ttft_ms": 500, "class": "batch", "tds": None, "report": True},
        "service_tier": "flex",
        "nested": {"slo": 1},
    }
    found = read_body(json.dumps(body).encode())
    assert found.fields == {
        "slo_ttft_ms": Field("slo.ttft_ms", 500),
        "slo_class": Field("slo.class", "batch"),
    }
    assert (found.tier, found.report) == ("flex", True)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'"slo"', b"\xff\xfe", b'{"a": ' + b"[" * 100_000, b"\x00" * 9])
def test_what_is_no_json_object_states_nothing(body: bytes) -> None:
    assert read_body(body) == BodyFields()


@given(st.binary(max_size=200))
def test_any_bytes_state_something_or_are_refused(body: bytes) -> None:
    try:
        found = read_body(body)
    except InvalidRequest:
        return
    assert isinstance(found, BodyFields)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"slo": 5}, "slo: 5 is not an object with keys of ttft_ms"),
        ({"slo": {"ttft": 5}}, "slo.ttft: 5 is not a known key; known: ttft_ms, tpot_ms"),
        ({"slo": {"report": 1}}, "slo.report: 1 is not true or false"),
        ({"service_tier": ["flex"]}, "service_tier: .* is not a string"),
    ],
)
def test_refused(body: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read_body(json.dumps(body).encode())


def test_a_huge_value_or_key_is_not_repeated_in_full() -> None:
    for body in ({"slo": "x" * 100_000}, {"slo": {"y" * 100_000: 1}}, {"slo": {"z": ["w" * 1000] * 100}}):
        with pytest.raises(InvalidRequest) as error:
            read_body(json.dumps(body).encode())
        assert len(str(error.value)) < 600
