"""The nested ``slo`` object and ``service_tier``, read out of a body that belongs to vLLM."""

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import DEFAULT_CLASSES
from sloserve.wire.body import NESTED, Body, BodyFields, parse, read_body
from sloserve.wire.headers import Field, HeaderFields
from sloserve.wire.resolve import Rules, resolve
from tests.wire.odd_bodies import bodies


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


def test_an_slo_in_vllm_xargs_is_found_where_vllm_passes_none_on() -> None:
    """As it does for a beam search."""
    found = read_body(b'{"use_beam_search": true, "vllm_xargs": {"slo_ttft_ms": 5, "other": 1}}')
    assert found.xargs == {"slo_ttft_ms": 5}
    assert read_body(b'{"vllm_xargs": [1]}').xargs == {}
    resolved = resolve(Rules(DEFAULT_CLASSES), None, HeaderFields(), found)
    assert resolved.slo.targets.ttft_s == 0.005 and resolved.xargs == {"slo_ttft_ms": 5}
    own = resolve(Rules(DEFAULT_CLASSES), {"slo_ttft_ms": 7}, HeaderFields(), found)
    assert own.slo.targets.ttft_s == 0.007


@pytest.mark.parametrize("body", [b"", b"[1]", b'"slo"', b"5", b"NaN", b'{"slo\\u0000": {"tds": 1}}'])
def test_what_is_no_object_with_an_slo_states_nothing(body: bytes) -> None:
    assert read_body(body) == BodyFields()


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b'{"a": ' + b"[" * 100_000, b"\x00" * 9, b'{"a": ' + b"1" * 5000])
def test_what_cannot_be_read_is_refused_should_a_route_serve_it(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^request body: .* is not JSON that can be searched for an SLO"):
        read_body(body)


ODD = [
    b'{"slo": {"tds": 5}, "x": NaN}',
    b'{"slo": {"tds": 5}, "x": [Infinity, -Infinity, 1e999]}',
    b'{"slo": {"tds": 5}, "x": "\\ud800 \xed\xa0\x80"}',
    b'{"slo": {"tds": 7}, "\\u0073lo": {"tds": 5}}',
    b'\xef\xbb\xbf{"slo": {"tds": 5}}',
    '{"slo": {"tds": 5}}'.encode("utf-16"),
    '{"slo": {"tds": 5}}'.encode("utf-16-be"),
    '{"slo": {"tds": 5}}'.encode("utf-32"),
]


@pytest.mark.parametrize("body", ODD)
def test_what_python_s_parser_takes_beyond_json_is_read(body: bytes) -> None:
    assert read_body(body).fields == {"slo_tds": Field("slo.tds", 5)}


@given(bodies())
def test_the_slo_is_the_one_that_the_server_finds(body: bytes) -> None:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return  # the server answers with 400
    served = values if isinstance(values, dict) else {}
    slo, tier, nvext, xargs = (served.get(name) for name in ("slo", "service_tier", "nvext", "vllm_xargs"))
    assert repr(parse(body, Body)) == repr(Body(slo, tier, nvext, xargs))
    try:
        found = read_body(body)
    except InvalidRequest:
        return
    stated = {NESTED[k]: Field(f"slo.{k}", v) for k, v in (slo or {}).items() if k in NESTED and v is not None}
    assert (repr(found.fields), found.tier) == (repr(stated), tier)


FORM = b'--x\r\nContent-Disposition: form-data; %s\r\n\r\n{"tds": 5}\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("part", "refused"),
    [
        (b'name="slo"', True),
        (b"name=slo", True),
        (b'name="slo[tds]"', True),
        (b'name="prompt"; filename="slo"', False),
        (b'name="slow"', False),
        (b'name="x"\r\n\r\nname="slo"', False),
    ],
)
def test_an_slo_in_a_form_is_refused(part: bytes, refused: bool) -> None:
    with (
        pytest.raises(InvalidRequest, match="^slo: 'a form field' is not read") if refused else contextlib.nullcontext()
    ):
        assert read_body(FORM % part, b"Multipart/Form-Data; boundary=x") == BodyFields()


@pytest.mark.slow
def test_a_form_of_names_alone_is_read_in_a_time_that_grows_with_its_length() -> None:
    began_s = time.thread_time()
    assert read_body(b'name="slo"' * 50_000, b"multipart/form-data; boundary=x") == BodyFields()
    # 0.02 s; where each match looks at all before it, more than 15 s.
    assert time.thread_time() - began_s < 5.0


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
        assert len(str(error.value)) < 700 and len(error.value.param) < 100
