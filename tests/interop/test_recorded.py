"""Requests as client libraries sent them (``record.py``): the class, targets and refusals that follow."""

import json
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import Targets
from sloserve.scheduler.settings import plugin_settings
from sloserve.wire.context import HTTPContext
from sloserve.wire.resolve import Resolved, resolve
from tests.interop.record import NAMES

RECORDED = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "recorded").glob("*.json")}


def read(request: dict[str, Any]) -> tuple[HTTPContext, Resolved]:
    rules = plugin_settings({"sloserve": {"unknown_headers": "reject"}})
    http = HTTPContext(0.0)
    headers = [(name.encode(), value.encode()) for name, value in request["headers"].items()]
    http.read_headers(headers, rules.header_rules)
    http.read_body(json.dumps(request["body"]).encode())
    if http.error is not None:
        raise http.error
    return http, resolve(rules.rules, request["body"].get("vllm_xargs"), http.headers, http.body, 0)


def test_all_clients_are_recorded() -> None:
    assert set(RECORDED) == {*NAMES, "open-webui"}
    assert {request["path"] for of in RECORDED.values() for request in of["requests"]} == {"/v1/chat/completions"}


@pytest.mark.parametrize("client", RECORDED)
def test_headers_state_class_and_targets(client: str) -> None:
    http, resolved = read(RECORDED[client]["requests"][0])
    assert resolved.slo.slo_class.name == "interactive"
    assert resolved.slo.targets == Targets(ttft_s=0.5, tpot_s=0.05)
    assert http.wants_report


@pytest.mark.parametrize("client", RECORDED)
def test_the_field_slo_does_so_in_a_stream(client: str) -> None:
    request = RECORDED[client]["requests"][1]
    http, resolved = read(request)
    assert request["body"]["stream"] is True and not any(name.startswith("x-slo") for name in request["headers"])
    assert (resolved.slo.slo_class.name, resolved.slo.targets) == ("batch", Targets(e2e_s=30.0))
    assert http.wants_report


def test_openais_service_tier_is_a_class() -> None:
    assert read(RECORDED["openai-python"]["requests"][2])[1].slo.slo_class.name == "background"


@pytest.mark.parametrize("client", RECORDED)
def test_a_target_below_zero_is_refused(client: str) -> None:
    with pytest.raises(InvalidRequest, match=r"slo\.ttft_ms: -5 is not a number of milliseconds above 0"):
        read(RECORDED[client]["requests"][-1])
