"""Schemathesis on the admin routes: no request makes one fail."""

import pytest
import schemathesis
from hypothesis import settings

from sloserve.api.admin import admin_app
from sloserve.vllm_plugin import engine_control
from tests.api.test_admin import BEARER, KEY, Ranks, served

pytestmark = pytest.mark.slow

schema = schemathesis.openapi.from_dict(admin_app(KEY).openapi())
schema.app = served(None)


@schema.parametrize()
@settings(max_examples=30)
def test_no_request_makes_a_route_fail(case: schemathesis.Case) -> None:
    ranks = Ranks()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("status", "set_policy", "set_shadow_policy"):
            patch.setattr(engine_control, name, getattr(ranks, name))
        answer = case.call(app=served(ranks), headers=BEARER)
    assert answer.status_code in (200, 400, 401, 405, 422)  # 401: it also makes up keys
