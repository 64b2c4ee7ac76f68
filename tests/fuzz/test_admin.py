"""Schemathesis on the admin routes: no request makes one fail."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from hypothesis import settings

from sloserve.api.admin import PREFIX, ROUTES, Parking, PolicyChange, Reload
from sloserve.core.clock import ManualClock
from sloserve.engine.metrics.process_page import Board, Boards
from sloserve.scheduler.live_settings import LIVE
from sloserve.vllm_plugin.server import engine_control
from sloserve.vllm_plugin.server.live_settings import LiveSettings
from tests.api.test_admin import BEARER, Ranks, ServerApp

pytestmark = pytest.mark.slow

MODELS = {"policy": PolicyChange, "park": Parking, "reload": Reload}
SETTINGS = {"type": "object", "properties": {name: {} for name in LIVE}}
"""Schema of a patch of the settings, with values of any kind."""


def body(route: str) -> dict[str, Any]:
    schema = MODELS[route].model_json_schema() if route in MODELS else SETTINGS if route == "settings" else None
    return {} if schema is None else {"requestBody": {"content": {"application/json": {"schema": schema}}}}


ANSWERS = {"responses": {"200": {"description": "what each rank follows"}, "400": {"description": "not a policy"}}}
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "admin routes", "version": "1"},
    "paths": {
        PREFIX + route: {method.lower(): ANSWERS | body(route) for method in methods}
        for route, methods in ROUTES.items()
        if route != "events"
    },  # whose answer has no end; it reads nothing of a request but its key
}

schema = schemathesis.openapi.from_dict(DOCUMENT)
schema.app = ServerApp(None)


async def set_settings(engine: Any, section: dict[str, Any]) -> str:
    """Stand for a change that all ranks follow."""
    return "change"


@schema.parametrize()
@settings(max_examples=30)
def test_no_request_makes_a_route_fail(case: schemathesis.Case) -> None:
    ranks, clock = Ranks(), ManualClock()
    live = LiveSettings(None, 1, Boards(Board(4, 1), clock), clock)
    core_check = SimpleNamespace(controlling=nullcontext)
    ranks.sloserve_front_end = SimpleNamespace(processes=1, live=live, core_check=core_check)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        ranks.stand_in(patch)
        patch.setattr(engine_control, "set_settings", set_settings)
        answer = case.call(app=ServerApp(ranks), headers=BEARER)
    assert answer.status_code in (200, 400, 401, 405, 413)  # 401: it also makes up keys; 413: and long bodies
