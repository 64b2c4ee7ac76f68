"""SLOs in ``vllm_xargs``: what is read, and the exact words with which each malformed value is refused."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import InvalidRequest
from sloserve.core.promises import PromiseWish
from sloserve.core.slo import DEFAULT_CLASSES, MAX_TARGET_S, MAX_TDS, SLO, ClassTable, SLOClass, Targets
from sloserve.core.tasks import TaskCall
from sloserve.wire.xargs import (
    CALL_KEY,
    LENGTH_KEY,
    PROGRESS_KEY,
    TENANT_KEY,
    of_further_call,
    parse_slo,
    predicted_length,
    progress,
    stated_call,
    stated_output_tokens,
    stated_tenant,
    to_xargs,
    with_internal,
)

CLASSES = ClassTable(
    {"chat": SLOClass("chat", 0, Targets(ttft_s=1.0, tds=5.0)), "batch": SLOClass("batch", 1, Targets(e2e_s=600.0))},
    default="chat",
)


@pytest.mark.parametrize("args", [None, {}, {"other": [1]}, {7: "not a string"}])
def test_nothing_stated_is_the_default_class_with_its_targets(args: Any) -> None:
    assert parse_slo(args, CLASSES) == SLO(CLASSES["chat"], Targets(ttft_s=1.0, tds=5.0))


def test_milliseconds_become_seconds_and_the_class_fills_in() -> None:
    args = {"slo_ttft_ms": 250, "slo_tpot_ms": 50.5, "slo_tds": "7", "slo_class": "batch", "x": 1}
    assert parse_slo(args, CLASSES) == SLO(CLASSES["batch"], Targets(ttft_s=0.25, tpot_s=0.0505, e2e_s=600.0, tds=7.0))


SECONDS = st.one_of(st.none(), st.floats(1e-6, MAX_TARGET_S))


@given(
    SECONDS,
    SECONDS,
    SECONDS,
    st.one_of(st.none(), st.floats(1e-3, MAX_TDS)),
    st.sampled_from(DEFAULT_CLASSES.names),
    st.one_of(st.none(), st.integers(1, 2**31)),
)
def test_round_trip(
    ttft_s: float | None, tpot_s: float | None, e2e_s: float | None, tds: float | None, name: str, tokens: int | None
) -> None:
    slo = DEFAULT_CLASSES.slo(name, Targets(ttft_s, tpot_s, e2e_s, tds))
    args = to_xargs(slo, tokens)
    back = parse_slo(args, DEFAULT_CLASSES)
    assert back.slo_class is slo.slo_class
    assert stated_output_tokens(args) == tokens
    for field in ("ttft_s", "tpot_s", "e2e_s", "tds"):
        sent, read = getattr(slo.targets, field), getattr(back.targets, field)
        assert (read is None) if sent is None else read == pytest.approx(sent, rel=1e-12)


def shown(value: Any) -> str:
    """A value in a message: in full unless it is long."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-19:]}"


MILLISECONDS = "a number of milliseconds above 0 and up to 604800000"
SPEED = "a number of tokens per second above 0 and up to 10000"
COUNT = "a number of tokens from 1 to 2147483648"
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("key", ["slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms"])
@pytest.mark.parametrize(
    "value",
    [
        -1,
        0,
        0.0,
        -0.0,
        6.1e8,
        1e300,
        10**400,
        NAN,
        INF,
        -INF,
        True,
        False,
        None,
        [],
        [5],
        {},
        "",
        "soon",
        "nan",
        "1e9",
        "5\n",
        "\u0665",
        "\u00a05",
        1e-323,
    ],
    ids=repr,
)
def test_a_malformed_duration(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_slo({key: value}, CLASSES)
    assert str(refused.value) == f"{key}: {shown(value)} is not {MILLISECONDS}"
    assert (refused.value.field, refused.value.allowed) == (key, MILLISECONDS)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("slo_tds", 0, SPEED),
        ("slo_tds", -3.5, SPEED),
        ("slo_tds", 10001, SPEED),
        ("slo_tds", True, SPEED),
        ("slo_tds", [4], SPEED),
        ("slo_tds", "fast", SPEED),
        ("slo_class", "vip", "one of chat, batch"),
        ("slo_class", "", "one of chat, batch"),
        ("slo_class", 3, "one of chat, batch"),
        ("slo_class", ["chat"], "one of chat, batch"),
        ("slo_output_tokens", 0, COUNT),
        ("slo_output_tokens", 0.5, COUNT),
        ("slo_output_tokens", -1, COUNT),
        ("slo_output_tokens", 2**31 + 1, COUNT),
        ("slo_output_tokens", NAN, COUNT),
        ("slo_output_tokens", True, COUNT),
        ("slo_output_tokens", "many", COUNT),
        (
            "slo_tttf_ms",
            100,
            "a known SLO key; known: slo_ttft_ms, slo_tpot_ms, slo_e2e_ms, slo_tds, slo_class, slo_output_tokens, "
            "slo_promise, slo_promise_fallback, slo_task_id, slo_task_e2e_ms, slo_task_deadline, slo_task_calls, "
            "slo_task_last",
        ),
    ],
)
def test_other_malformed_values(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_slo({key: value}, CLASSES)
    assert str(refused.value) == f"{key}: {value!r} is not {allowed}"


@given(
    st.dictionaries(
        st.sampled_from(["slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms", "slo_tds", "slo_class", "slo_output_tokens"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=5),
            st.lists(st.integers(), max_size=2),
        ),
    )
)
def test_whatever_is_sent_is_read_or_refused_as_an_invalid_request(args: dict[str, Any]) -> None:
    try:
        slo = parse_slo(args, CLASSES)
    except InvalidRequest:
        return
    assert slo.slo_class.name in CLASSES


def test_the_largest_values_are_allowed() -> None:
    args = {"slo_ttft_ms": MAX_TARGET_S * 1e3, "slo_tds": MAX_TDS, "slo_output_tokens": 2**31}
    assert parse_slo(args, CLASSES).targets == Targets(ttft_s=MAX_TARGET_S, tds=MAX_TDS)
    assert stated_output_tokens(args) == 2**31


def test_a_length_travels_from_the_front_end_and_from_nobody_else() -> None:
    sent = with_internal({"slo_tds": 3.0, LENGTH_KEY: [9.0, 9.0]}, [1.0, 20.5])
    assert sent == {"slo_tds": 3.0, LENGTH_KEY: [1.0, 20.5]}
    assert predicted_length(sent, 2) == (1.0, 20.5) and predicted_length(sent, 3) is None
    assert with_internal({LENGTH_KEY: [9.0]}, None) is None
    for wrong in ("12", [1, 2], [-1.0, 2.0], [float("nan"), 2.0], [1.0, 1e300], None):
        assert predicted_length({LENGTH_KEY: wrong}, 2) is None


def test_what_a_further_call_is_told_comes_from_the_front_end_and_from_nobody_else() -> None:
    first = {"slo_e2e_ms": 900, "other": 1, LENGTH_KEY: [1.0], PROGRESS_KEY: [9.0, 1.0]}
    sent = of_further_call(first, {"slo_e2e_ms": 900}, 0.25, begun=True)
    assert sent == {"slo_e2e_ms": 900, "other": 1, PROGRESS_KEY: [0.25, 1.0]}
    assert of_further_call(sent, {"slo_e2e_ms": 900}, 0.5, begun=True) == sent | {PROGRESS_KEY: [0.5, 1.0]}
    assert progress(sent) == (0.25, True) and progress(first | {PROGRESS_KEY: [-1.0, 0.0]}) == (0.0, False)
    assert with_internal({PROGRESS_KEY: [9.0, 1.0]}, None) is None
    for wrong in ("12", [1, 2], [1.0], [float("nan"), 1.0], [float("inf"), 1.0], None):
        assert progress({PROGRESS_KEY: wrong}) is None


def test_only_the_front_end_says_which_task_a_request_is_a_call_of() -> None:
    call = TaskCall("acme/plan", due_s=1.5, calls=7, last=True)
    sent = with_internal({CALL_KEY: ["another", None, None, False]}, call=call)
    assert stated_call(sent) == call and stated_call({}) is None
    assert stated_call(of_further_call(sent, {}, 1.0, begun=False, call=TaskCall("t"))) == TaskCall("t")
    assert with_internal(sent) is None
    for wrong in ("t", ["t"], [1, None, None, False], ["t", "2", None, False], ["t", math.inf, None, False],
                  ["t", None, 0, False], ["t", None, 2.5, False], ["t", None, 10**9, False]):  # fmt: skip
        assert stated_call({CALL_KEY: wrong}) is None


def test_only_the_front_end_says_which_tenant_a_request_has() -> None:
    """A client that writes the key itself is not believed, in its first call or in a further one."""
    forged = {TENANT_KEY: "another", "other": 1}
    assert with_internal(forged, tenant="acme") == {TENANT_KEY: "acme", "other": 1}
    assert with_internal(forged) == {"other": 1}
    further = of_further_call(forged, {}, 1.0, begun=False, tenant="acme")
    assert stated_tenant(further) == "acme"
    assert stated_tenant(of_further_call(forged, {}, 1.0, begun=False)) is None


def test_a_promise_is_read_with_its_fallback_and_the_promise_of_the_class() -> None:
    promised = ClassTable({"p": SLOClass("p", 0, Targets(ttft_s=1.0), promise=PromiseWish(0.99))}, "p")
    asked = {"slo_ttft_ms": 100, "slo_promise": "0.9", "slo_promise_fallback": "1"}
    assert parse_slo(asked, CLASSES).promise == PromiseWish(0.9, falls_back=True)
    assert parse_slo({}, promised).promise == PromiseWish(0.99)
    assert parse_slo({"slo_promise": 0}, promised).promise is None
    assert parse_slo({"slo_promise_fallback": True}, promised).promise == PromiseWish(0.99, falls_back=True)
    for wrong, words in (
        ({"slo_promise": 0.9}, "is not possible without a target"),
        ({"slo_promise_fallback": 1}, "is not possible without slo_promise; state both"),
        ({"slo_ttft_ms": 1, "slo_promise": 0.3}, "is not 0 for no promise, or a probability from 0.5 to 0.99"),
        ({"slo_ttft_ms": 1, "slo_promise": 1}, "is not 0 for no promise, or a probability from 0.5 to 0.99"),
        ({"slo_ttft_ms": 1, "slo_promise": 0.9, "slo_promise_fallback": 3}, "is not 1 or 0"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            parse_slo(wrong, DEFAULT_CLASSES)
