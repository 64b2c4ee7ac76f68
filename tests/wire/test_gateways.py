"""Requests as gateways and chat front ends send them, and the class, targets and tenant that follow.

From the documentation of llm-d (headers of its endpoint picker), LiteLLM (it forwards a client's ``x-*`` headers where
told to, and body fields it does not know), Open WebUI (headers with the user's name) and Dynamo (``nvext``).
"""

import json
from typing import Any

import pytest

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import DEFAULT_CLASSES, DUE_NOW_S, SLOClass, Targets
from sloserve.scheduler.settings import PluginSettings, plugin_settings
from sloserve.wire.context import HTTPContext
from sloserve.wire.resolve import Resolved, resolve
from sloserve.wire.xargs import stated_output_tokens

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SETTINGS = {
    "objectives": {"chat-premium": "priority", "nightly": "background"},
    "tenants": {"trial": "batch"},
}


def read(headers: dict[str, str], body: dict[str, Any], **settings: Any) -> tuple[HTTPContext, Resolved]:
    rules: PluginSettings = plugin_settings({"sloserve": SETTINGS | settings})
    http = HTTPContext(0.0)
    http.read_headers([(k.lower().encode(), v.encode()) for k, v in headers.items()], rules.header_rules)
    http.read_body(json.dumps(CHAT | body).encode())
    if http.error is not None:
        raise http.error
    xargs, priority = body.get("vllm_xargs"), body.get("priority", 0)
    return http, resolve(rules.rules, xargs, http.headers, http.body, priority)


LLM_D = {"x-request-id": "7f3c", "x-forwarded-for": "10.0.0.7", "x-gateway-destination-endpoint": "10.1.0.4:8000"}
LITELLM = {"user-agent": "AsyncOpenAI/Python 1.99", "x-stainless-lang": "python", "x-stainless-retry-count": "0"}
OPEN_WEBUI = {
    "X-OpenWebUI-User-Name": "Ada%20L",
    "X-OpenWebUI-User-Id": "4b1d",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "c0ffee",
}
CASES: dict[str, tuple[dict[str, str], dict[str, Any], str, Targets, str | None]] = {
    "llm-d, objective and targets": (
        LLM_D
        | {
            "x-llm-d-inference-objective": "chat-premium",
            "x-llm-d-inference-fairness-id": "acme",
            "x-llm-d-slo-ttft-ms": "200",
            "x-llm-d-slo-tpot-ms": "50",
        },
        {"stream": True},
        "priority",
        Targets(ttft_s=0.2, tpot_s=0.05),
        "acme",
    ),
    "llm-d, the inference extension's spellings": (
        LLM_D | {"x-gateway-inference-objective": "nightly", "x-gateway-inference-fairness-id": "default-flow"},
        {},
        "background",
        Targets(),
        "default-flow",
    ),
    "llm-d, an objective that nobody mapped": (
        LLM_D | {"x-llm-d-inference-objective": "premium-traffic"},
        {"service_tier": "flex"},
        "background",
        Targets(),
        None,
    ),
    "llm-d's batch gateway, in time": (
        {"x-llm-d-inference-objective": "nightly", "x-llm-d-slo-ttft-ms": "864000"},
        {"max_tokens": 100},
        "background",
        Targets(ttft_s=864.0),
        None,
    ),
    "llm-d's batch gateway, due already": (
        {"x-slo-ttft-ms": "-1250"},
        {"max_tokens": 100},
        "interactive",
        Targets(ttft_s=DUE_NOW_S),
        None,
    ),
    "LiteLLM, service tier": (
        LITELLM,
        {"service_tier": "flex", "user": "u1", "metadata": {"a": "b"}},
        "background",
        Targets(),
        None,
    ),
    "LiteLLM, extra_body and a forwarded header": (
        LITELLM | {"x-slo-class": "batch", "x-litellm-timeout": "30"},
        {"vllm_xargs": {"slo_e2e_ms": 20000}, "slo": {"class": "priority"}},
        "batch",
        Targets(e2e_s=20.0),
        None,
    ),
    "Open WebUI": (
        OPEN_WEBUI,
        {"stream": True, "stream_options": {"include_usage": True}},
        "interactive",
        Targets(),
        None,
    ),
    "Dynamo": (
        {},
        {"nvext": {"agent_hints": {"osl": 1024, "priority": 5, "speculative_prefill": True}}},
        "interactive",
        Targets(),
        None,
    ),
}


@pytest.mark.parametrize(("headers", "body", "name", "targets", "tenant"), CASES.values(), ids=CASES)
def test_class_targets_and_tenant(
    headers: dict[str, str], body: dict[str, Any], name: str, targets: Targets, tenant: str | None
) -> None:
    http, found = read(headers, body)
    assert (found.slo.slo_class.name, found.slo.targets, http.headers.tenant) == (name, targets, tenant)
    assert not http.headers.ignored


def test_open_webui_names_the_tenant_where_the_server_is_told_to_look() -> None:
    http, _ = read(OPEN_WEBUI | {"x-tenant-id": "spoofed"}, {}, tenant_headers=["X-OpenWebUI-User-Id"])
    assert http.headers.tenant == "4b1d"


@pytest.mark.parametrize(
    ("nvext", "tokens"),
    [
        ({"agent_hints": {"osl": 1024}}, 1024),
        ({"agent_hints": {"osl": 0}}, None),
        ({"agent_hints": {"osl": True}}, None),
        ({"agent_hints": {"osl": 10**30}}, None),
        ({"agent_hints": [1]}, None),
        ([], None),
    ],
)
def test_dynamos_expected_length_is_a_hint(nvext: Any, tokens: int | None) -> None:
    _, found = read({}, {"nvext": nvext})
    assert stated_output_tokens(found.xargs) == tokens
    _, found = read({}, {"nvext": nvext, "slo": {"output_tokens": 7}})
    assert stated_output_tokens(found.xargs) == 7


def test_an_objective_stands_for_a_header_that_names_a_class() -> None:
    objective = {"x-llm-d-inference-objective": "nightly"}
    assert read(objective, {"slo": {"class": "priority"}})[1].slo.slo_class.name == "background"
    assert read(objective | {"x-slo-class": "batch"}, {})[1].slo.slo_class.name == "batch"
    with pytest.raises(InvalidRequest, match="x-gateway-inference-objective: 'other' is not 'nightly'"):
        read(objective | {"x-gateway-inference-objective": "other"}, {})


PRIORITIES = {
    "X-Dynamo-Request-Priority": {-100: "background", 0: "interactive", 10: "priority"},
    "x-smg-priority": {"system": "priority", "interactive": "interactive", "bulk": "background"},
}


@pytest.mark.parametrize(
    ("headers", "body", "name"),
    [
        ({"x-dynamo-request-priority": "10"}, {}, "priority"),
        ({"x-dynamo-request-priority": "2147483647"}, {}, "priority"),
        ({"x-dynamo-request-priority": " 9 "}, {}, "interactive"),
        ({"x-dynamo-request-priority": "-1"}, {}, "background"),
        ({"x-dynamo-request-priority": "-101"}, {}, "batch"),  # below all levels: no effect
        ({"x-dynamo-request-priority": "high"}, {}, "batch"),
        ({"x-dynamo-request-priority": "9" * 4000}, {}, "batch"),
        ({"x-dynamo-request-priority": "\u0661"}, {}, "batch"),
        ({"x-smg-priority": "BULK"}, {}, "background"),
        ({"x-smg-priority": "default"}, {}, "batch"),
        ({"x-smg-priority": ""}, {}, "batch"),
        # The first of the setting's headers that has an effect.
        ({"x-smg-priority": "bulk", "x-dynamo-request-priority": "10"}, {}, "priority"),
        ({"x-smg-priority": "bulk", "x-dynamo-request-priority": "?"}, {}, "background"),
        ({"x-smg-priority": "bulk"}, {"slo": {"class": "priority"}, "service_tier": "priority"}, "background"),
        ({"x-smg-priority": "bulk", "x-slo-class": "interactive"}, {}, "interactive"),
        ({"x-smg-priority": "bulk", "x-llm-d-inference-objective": "chat-premium"}, {}, "priority"),
        ({"x-smg-priority": "bulk", "x-llm-d-inference-objective": "unmapped"}, {}, "background"),
        ({"x-smg-priority": "system", "x-tenant-id": "trial"}, {}, "batch"),  # held to its class
    ],
)
def test_priorities_of_other_routers_stand_for_classes(
    headers: dict[str, str], body: dict[str, Any], name: str
) -> None:
    raw = {key: value.encode().decode("latin-1") for key, value in headers.items()}
    _, found = read(raw, body, priority_headers=PRIORITIES, default_class="batch")
    assert found.slo.slo_class.name == name


@pytest.mark.parametrize(
    ("headers", "body", "priority", "name"),
    [
        ({}, {}, 10, "priority"),
        ({}, {}, 7, "interactive"),
        ({}, {}, -1, "background"),
        ({}, {"service_tier": "priority"}, -1, "background"),
        ({}, {"slo": {"class": "interactive"}}, 10, "interactive"),
        ({}, {"vllm_xargs": {"slo_class": "interactive"}}, 10, "interactive"),
        ({"x-slo-class": "background"}, {}, 10, "background"),
        ({"x-dynamo-request-priority": "-1"}, {}, 10, "background"),
        ({"x-dynamo-request-priority": "?"}, {}, 10, "priority"),
        ({"x-tenant-id": "trial"}, {}, 10, "batch"),  # held to its class
        ({}, {}, -101, "batch"),  # the others are no priority, and have no effect
        ({}, {}, 2**31 - 1, "priority"),
        ({}, {}, 2**31, "batch"),
        ({}, {}, -(10**30), "batch"),
        ({}, {}, True, "batch"),
        ({}, {}, 10.0, "batch"),
        ({}, {}, "10", "batch"),
        ({}, {}, [10], "batch"),
        ({}, {}, None, "batch"),
    ],
)
def test_dynamos_priority_in_the_body_stands_for_a_class(
    headers: dict[str, str], body: dict[str, Any], priority: Any, name: str
) -> None:
    hinted = body | {"nvext": {"agent_hints": {"priority": priority}}}
    _, found = read(headers, hinted, priority_headers=PRIORITIES, default_class="batch")
    assert found.slo.slo_class.name == name
    assert read({}, {"nvext": {"agent_hints": {"priority": priority}}})[1].slo == read({}, {})[1].slo, "not mapped"


def test_priorities_have_no_effect_unless_they_are_mapped() -> None:
    assert read({"x-smg-priority": "bulk", "x-dynamo-request-priority": "1"}, {})[1].slo == read({}, {})[1].slo


def test_settings_with_priorities_travel_as_json() -> None:
    settings = plugin_settings({"sloserve": {"priority_headers": PRIORITIES}})
    again = plugin_settings({"sloserve": json.loads(json.dumps(settings.as_config()))})
    assert again == settings and again.header_rules == settings.header_rules
    assert again.header_rules.priority_headers == {b"x-dynamo-request-priority", b"x-smg-priority"}


@pytest.mark.parametrize("text", ["0", "-3.5", "-0", " 0 "])
@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"])
def test_a_header_may_say_that_a_first_token_is_due_already(name: str, text: str) -> None:
    assert read({name: text}, {})[1].slo.targets == Targets(ttft_s=DUE_NOW_S)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, {"slo": {"ttft_ms": 0}}),
        ({}, {"vllm_xargs": {"slo_ttft_ms": -1}}),
        ({"x-slo-ttft-ms": "soon"}, {}),
        ({"x-slo-ttft-ms": "-inf"}, {}),
        ({"x-slo-ttft-ms": "nan"}, {}),
        ({"x-slo-e2e-ms": "0"}, {}),
        ({"x-slo-tpot-ms": "-1"}, {}),
        ({"x-request-ttl-ms": "0"}, {}),
        ({"x-request-ttl-ms": "soon"}, {}),
        ({"x-request-ttl-ms": "1e12"}, {}),
        ({"x-slo-ttft": "500"}, {}),
        ({"x-slo-tds-ms": "5"}, {}),
        ({"x-slo-e2el-ms": "5"}, {}),
    ],
)
def test_everything_else_is_a_400(headers: dict[str, str], body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read(headers, body)


def test_two_times_to_live_that_differ_are_a_400() -> None:
    http = HTTPContext(0.0)
    http.read_headers([(b"x-request-ttl-ms", b"100"), (b"x-request-ttl-ms", b"1e2")])
    assert http.error is None and http.headers.ttl_s == 0.1
    http.read_headers([(b"x-request-ttl-ms", b"100"), (b"x-request-ttl-ms", b"200")])
    assert http.error is not None and "give it once" in str(http.error)


@pytest.mark.parametrize("name", ["x-slo-deadline", "x-slo-tier", "x-slo-foo-ms", "x-slo-v2-budget", "x-slo-"])
def test_an_unknown_header_is_somebody_elses_unless_the_server_refuses_it(name: str) -> None:
    assert read({name: "1"}, {})[0].headers.ignored == (name,)
    with pytest.raises(InvalidRequest, match="is not a known SLO header"):
        read({name: "1"}, {}, unknown_headers="reject")


CLASSES = {
    "interactive": {"rank": 0, "ttft_ms": 500.0, "tpot_ms": 50.0},
    "batch": {"rank": 1, "e2e_ms": 600_000.0, "tds": 5.0},
    "background": {"rank": 2},
}


@pytest.mark.parametrize(
    ("held_to", "stated", "targets"),
    [
        ("interactive", {"ttft_ms": 100, "tpot_ms": 10}, Targets(ttft_s=0.5, tpot_s=0.05)),
        ("interactive", {"ttft_ms": 900, "tpot_ms": 10}, Targets(ttft_s=0.9, tpot_s=0.05)),
        # A class without a target of that kind promises none: whatever is stated would be tighter.
        ("batch", {"ttft_ms": 1, "e2e_ms": 1, "tds": 50}, Targets(e2e_s=600.0, tds=5.0)),
        ("batch", {"e2e_ms": 500_000, "tds": 2, "class": "background"}, Targets(e2e_s=600.0, tds=2.0)),
        ("background", {"ttft_ms": 1, "tpot_ms": 1, "e2e_ms": 1, "tds": 100}, Targets()),
    ],
)
def test_a_tenant_held_to_a_class_asks_for_nothing_tighter(
    held_to: str, stated: dict[str, Any], targets: Targets
) -> None:
    """Under edf it could go first with a target of 1 ms, whatever class it was held to."""
    settings = {"classes": CLASSES, "objectives": {}, "tenants": {"trial": held_to}}
    _, found = read({"x-tenant-id": "trial"}, {"slo": stated}, **settings)
    assert found.slo.targets == targets
    assert found.slo.slo_class.name == stated.get("class", held_to)
    by_header = {f"x-slo-{key.replace('_', '-')}": str(value) for key, value in stated.items()}
    assert read({"x-tenant-id": "trial", **by_header}, {}, **settings)[1].slo == found.slo
    assert read({"x-tenant-id": "other"}, {"slo": stated}, **settings)[1].slo.targets != targets


def test_a_tenant_held_to_a_class_cannot_go_ahead_by_priority() -> None:
    with pytest.raises(InvalidRequest, match="priority: -1 is not 0 or more, the limit of class 'batch'"):
        read({"x-tenant-id": "trial"}, {"priority": -1})
    assert read({"x-tenant-id": "trial"}, {"priority": 3})[1].slo.slo_class.name == "batch"


@pytest.mark.parametrize(
    ("tier", "tenant", "served"),
    [
        (None, "acme", None),
        ("auto", "acme", "default"),
        ("default", "acme", "default"),
        ("scale", "acme", "scale"),
        ("priority", "acme", "priority"),
        ("flex", "acme", "flex"),
        ("priority", "trial", None),  # lowered to a class that is no tier's
    ],
)
def test_the_tier_that_is_served(tier: str | None, tenant: str, served: str | None) -> None:
    assert read({"x-tenant-id": tenant}, {} if tier is None else {"service_tier": tier})[1].tier == served


def test_the_default_classes_have_no_targets_to_hold_anybody_to() -> None:
    assert all(isinstance(c, SLOClass) and not c.targets for c in DEFAULT_CLASSES)
