"""What a request states of its task: names, values, precedence, aliases."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import InvalidRequest
from sloserve.core.tasks import MOST_CALLS
from sloserve.scheduler.settings import plugin_settings
from sloserve.wire.body import read_body
from sloserve.wire.headers import read_headers
from sloserve.wire.resolve import resolve
from sloserve.wire.tasks import BODY_ALIASES, CHAIN, DEFAULT_ALIASES, MOST_ALIAS_CHARS, StatedTask, iso_text

ID = {"x-slo-task-id": "a"}


def task(
    headers: dict[str, str] | None = None, body: dict[str, Any] | None = None, **section: Any
) -> StatedTask | None:
    settings = plugin_settings({"sloserve": section})
    raw = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    in_body = body or {}
    found = resolve(
        settings.rules,
        in_body.get("vllm_xargs"),
        read_headers(raw, settings.header_rules),
        read_body(json.dumps(in_body).encode()),
    )
    assert not any(key.startswith("slo_task") for key in found.xargs or {}), "the engine gets no text of the client"
    return found.task


def test_a_request_without_a_task_states_none() -> None:
    assert task() is None
    assert task({"x-slo-task": "summaries", "x-slo-e2e-ms": "5"}) is None, "x-slo-task is the router's"


@pytest.mark.parametrize("way", ["headers", "slo", "xargs"])
def test_each_way_states_the_same(way: str) -> None:
    values = {"id": "run-7", "e2e_ms": 1500, "calls": 12, "last": 1}
    if way == "headers":
        found = task({f"x-slo-task-{name.replace('_', '-')}": str(value) for name, value in values.items()})
    elif way == "slo":
        found = task(body={"slo": {f"task_{name}": value for name, value in (values | {"last": True}).items()}})
    else:
        found = task(body={"vllm_xargs": {f"slo_task_{name}": value for name, value in values.items()}})
    assert found == StatedTask("id", "run-7", 1.5, None, 12, True)


@pytest.mark.parametrize(
    "text",
    ["2026-11-27T22:00:00Z", "2026-11-27T23:00:00+01:00", "2026-11-27 22:00Z", "2026-11-27t22:00:00.000z",
     "2026-11-27T17:00:00,0-0500"],
)  # fmt: skip
def test_a_deadline_is_a_time_of_iso_8601_with_a_zone(text: str) -> None:
    found = task(ID | {"x-slo-task-deadline": text})
    assert found is not None
    assert found.deadline_s == 1795816800.0
    assert iso_text(1795816800.25) == "2026-11-27T22:00:00.250000+00:00"
    again = task(ID | {"x-slo-task-deadline": iso_text(1795816800.25)})
    assert again is not None and again.deadline_s == 1795816800.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("x-slo-task-deadline", text) for text in (
            "", "soon", "2026-11-27", "2026-11-27T22:00:00", "1795816800", "2026-11-27T25:00:00Z",
            "2026-13-27T22:00:00Z", "2026-11-27T22:00:00Europe/Berlin", "2026-W48-5T22:00:00Z",
            "2026-11-27T22:00:00+99:00", "\xb22026-11-27T22:00:00Z", "0000-11-27T22:00:00Z",
        )],
        *[("x-slo-task-e2e-ms", text) for text in ("", "0", "-1", "nan", "inf", "1_000", "1e300", "604800001", "soon")],
        *[("x-slo-task-calls", text) for text in ("", "0", "-1", "1.5", "nan", str(MOST_CALLS + 1), "many")],
        *[("x-slo-task-last", text) for text in ("", "2", "maybe", "on")],
        *[("x-slo-task-id", text) for text in ("", " ", "x" * 129, "\xe4", "a\x00b")],
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_read_is_an_error_of_its_name(name: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        task(ID | {name: value})
    assert refused.value.field == name
    assert "is not" in str(refused.value)


@pytest.mark.parametrize("value", [42, None, [], {}, True, 1.5, "\ud800", "x" * 10_000])
def test_an_id_in_a_body_is_a_string(value: Any) -> None:
    if value is None:
        assert task(body={"slo": {"task_id": value}}) is None
        return
    with pytest.raises(InvalidRequest) as refused:
        task(body={"slo": {"task_id": value}})
    assert refused.value.field == "slo.task_id"
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("value", [2, "maybe", None, [], {}, float("nan")])
def test_last_in_xargs_is_a_truth_value(value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        task(body={"vllm_xargs": {"slo_task_id": "a", "slo_task_last": value}})
    assert refused.value.field == "vllm_xargs.slo_task_last"


def test_two_forms_of_a_deadline_contradict_each_other() -> None:
    both = {"x-slo-task-e2e-ms": "5000", "x-slo-task-deadline": "2026-11-27T22:00:00Z"}
    with pytest.raises(InvalidRequest, match="x-slo-task-deadline.*left out where x-slo-task-e2e-ms is stated"):
        task(ID | both)
    with pytest.raises(InvalidRequest, match=r"slo.task_deadline.*left out where slo.task_e2e_ms"):
        task(body={"slo": {"task_id": "a", "task_e2e_ms": 5, "task_deadline": "2026-11-27T22:00:00Z"}})


def test_a_header_beats_the_body_and_slo_beats_xargs_in_either_form_of_a_deadline() -> None:
    body: dict[str, Any] = {
        "slo": {"task_deadline": "2026-11-27T22:00:00Z", "task_calls": 3},
        "vllm_xargs": {"slo_task_id": "x", "slo_task_e2e_ms": 1000, "slo_task_calls": 9, "slo_task_last": 1},
    }
    assert task(body=body) == StatedTask("id", "x", None, 1795816800.0, 3, True)
    assert task({"x-slo-task-e2e-ms": "2000", "x-slo-task-id": "h"}, body) == StatedTask("id", "h", 2.0, None, 3, True)


@pytest.mark.parametrize("name", ["e2e-ms", "deadline", "calls", "last"])
def test_facts_of_a_task_without_a_name_are_an_error(name: str) -> None:
    value = "2026-11-27T22:00:00Z" if name == "deadline" else "1"
    with pytest.raises(InvalidRequest, match=f"x-slo-task-{name}: .* is not stated together with x-slo-task-id"):
        task({f"x-slo-task-{name}": value})
    assert task({f"x-slo-task-{name}": value, "x-session-id": "s"}) is not None


@pytest.mark.parametrize(
    "text", ["x-slo-task-idd", "x-slo-taskid", "x-slo-task-e2e", "x-slo-task-dedline", "x-slo-tasks"]
)
def test_a_misspelt_name_is_an_error_that_names_the_right_one(text: str) -> None:
    with pytest.raises(InvalidRequest, match="did you mean x-slo-task"):
        task({text: "1"})


def test_two_values_of_one_header_are_an_error() -> None:
    settings = plugin_settings({})
    with pytest.raises(InvalidRequest, match="give one of them"):
        read_headers([(b"x-slo-task-id", b"a"), (b"x-slo-task-id", b"b")], settings.header_rules)


@pytest.mark.parametrize("alias", [name for name in DEFAULT_ALIASES if not name.startswith("body.")])
def test_headers_that_clients_send_already_name_a_task(alias: str) -> None:
    assert task({alias: "s-1"}) == StatedTask(alias, "s-1")
    assert task({alias: "s-1"}, task_aliases=[]) is None


@pytest.mark.parametrize(
    ("alias", "body"),
    [
        ("body.session_id", {"session_id": "s"}),
        ("body.conversation", {"conversation": "s"}),
        ("body.conversation", {"conversation": {"id": "s"}}),
        (CHAIN, {"previous_response_id": "s"}),
        ("body.metadata.task_id", {"metadata": {"task_id": "s"}}),
    ],
)
def test_fields_that_clients_send_already_name_a_task(alias: str, body: dict[str, Any]) -> None:
    assert task(body=body) == StatedTask(alias, "s")


def test_a_prompt_cache_key_names_a_task_only_where_the_operator_says_so() -> None:
    """It is shared by all requests that begin alike, whoever sends them."""
    assert task(body={"prompt_cache_key": "k"}) is None
    found = task(body={"prompt_cache_key": "k"}, task_aliases=["body.prompt_cache_key"])
    assert found == StatedTask("body.prompt_cache_key", "k")


def test_our_own_name_comes_first_and_then_aliases_in_their_order() -> None:
    headers = {"x-session-id": "s", "x-dynamo-session-id": "d", "x-dynamo-session-final": "TRUE"}
    assert task(headers) == StatedTask("x-dynamo-session-id", "d", last=True)
    assert task(headers | ID) == StatedTask("id", "a", last=True)
    assert task(headers | {"x-slo-task-last": "0"}) == StatedTask("x-dynamo-session-id", "d")
    turned = task(headers, task_aliases=["X-Session-ID", "x-dynamo-session-id"])
    assert turned is not None and turned.kind == "x-session-id"
    with_deadline = task(headers | {"x-slo-task-e2e-ms": "1000"})
    assert with_deadline is not None and (with_deadline.e2e_s, with_deadline.is_alias) == (1.0, True)


@pytest.mark.parametrize("value", ["", "   ", "x" * (MOST_ALIAS_CHARS + 1)])
def test_an_alias_that_is_no_name_is_ignored(value: str) -> None:
    assert task({"x-session-id": value}) is None
    assert task({"x-session-id": value}, {"session_id": "s"}) == StatedTask("body.session_id", "s")


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(odd)
def test_no_value_of_a_clients_own_field_is_an_error(value: Any) -> None:
    names = ("session_id", "conversation", "metadata", "previous_response_id", "prompt_cache_key")
    task(body=dict.fromkeys(names, value))
    task(body={"metadata": {"task_id": value}, "conversation": {"id": value}}, task_aliases=list(BODY_ALIASES))


@given(st.sampled_from(["id", "e2e_ms", "deadline", "calls", "last"]), odd)
def test_any_value_is_read_or_an_error_of_its_name(name: str, value: Any) -> None:
    body = {"slo": {"task_id": "a", f"task_{name}": value}}
    try:
        found = task(body=body)
    except InvalidRequest as error:
        assert error.field == f"slo.task_{name}"
    else:
        assert found is not None or (name, value) == ("id", None)


@given(st.binary(max_size=40), st.sampled_from(["id", "e2e-ms", "deadline", "calls", "last"]))
def test_any_bytes_of_a_header_are_read_or_an_error_of_its_name(value: bytes, name: str) -> None:
    headers = {"x-slo-task-id": "a", f"x-slo-task-{name}": value.decode("latin-1")}
    try:
        assert task(headers) is not None
    except InvalidRequest as error:
        assert error.field == f"x-slo-task-{name}"


def test_a_tenant_that_is_held_to_a_class_states_no_deadline() -> None:
    headers = ID | {"x-slo-task-e2e-ms": "1000", "x-slo-task-calls": "3", "x-tenant-id": "acme"}
    assert task(headers, tenants={"acme": "batch"}) == StatedTask("id", "a", calls=3)
    assert task(headers, tenants={"other": "batch"}) == StatedTask("id", "a", 1.0, calls=3)


@pytest.mark.parametrize(
    "aliases", ["x-session-id", [1], ["x-slo-task-id"], ["body.other"], ["two words"], [f"x-{i}" for i in range(33)]]
)
def test_aliases_that_cannot_be_are_refused(aliases: Any) -> None:
    with pytest.raises(Exception, match="task_aliases"):
        plugin_settings({"sloserve": {"task_aliases": aliases}})


def test_keys_state_a_task_again() -> None:
    stated = StatedTask("id", "a", 1.5, None, 3, True)
    assert task(body={"vllm_xargs": stated.keys()}) == stated
    dated = StatedTask("x-session-id", "s", None, 1795816800.5)
    assert dated.keys() == {"slo_task_deadline": "2026-11-27T22:00:00.500000+00:00"}
