"""Two parsers of one body: what FastAPI serves, as vLLM's routes do, has its SLO read or is refused."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from sloserve.api.middleware import SLOMiddleware
from sloserve.wire import context
from sloserve.wire.body import NESTED
from tests import bounded
from tests.wire.odd_bodies import bodies

pytestmark = pytest.mark.slow


class Completion(BaseModel):
    """As vLLM's: fields that it does not know are kept."""

    model_config = ConfigDict(extra="allow")

    service_tier: str | None = None


app = FastAPI()


@app.exception_handler(RequestValidationError)
async def refused(*_: Any) -> Response:
    return Response(status_code=400)


@app.post("/v1/completions")
async def generate(request: Completion) -> Any:
    """What the server finds, what we find, and whether the engine client would refuse it."""
    http = context.current.get()
    assert http is not None
    slo = (request.model_extra or {}).get("slo")
    if isinstance(slo, dict):
        slo = {NESTED[key]: value for key, value in slo.items() if key in NESTED and value is not None}
    found = {key: stated.value for key, stated in http.body.fields.items()}
    return {
        "refused": http.error is not None,
        "served": repr(({} if slo is None else slo, request.service_tier)),
        "found": repr((found, http.body.tier)),
    }


served = SLOMiddleware(app)


def post(body: bytes, content_type: str) -> httpx.Response:
    async def go() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://test") as client:
            return await client.post("/v1/completions", content=body, headers={"Content-Type": content_type})

    return bounded.run(go())


def check(answer: httpx.Response) -> None:
    assert answer.status_code in (200, 400)
    if answer.status_code == 200 and not answer.json()["refused"]:
        assert answer.json()["served"] == answer.json()["found"]


CONTENT_TYPES = ("application/json", "Application/JSON; charset=utf-16", "application/x+json", "text/plain", "")


@given(bodies(), st.sampled_from(CONTENT_TYPES))
@settings(max_examples=300)
def test_no_slo_is_lost(body: bytes, content_type: str) -> None:
    check(post(body, content_type))


@pytest.mark.parametrize("depth", range(850, 1000, 15))
def test_no_slo_is_lost_where_one_parser_stops_before_the_other(depth: int) -> None:
    check(post(b'{"slo": {"tds": 5}, "x": NaN, "y": ' + b"[" * depth + b"]" * depth + b"}", "application/json"))
