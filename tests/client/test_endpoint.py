"""What is found out about an endpoint before the run, and how mistakes read."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from sloserve.client.endpoint import Agreed, agree, open_endpoint
from sloserve.client.payload import Api, PayloadSettings
from sloserve.client.prompts import TextPrompts, TokenPrompts
from sloserve.client.workload_replay import ReplaySettings
from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from tests import bounded
from tests.client.fake_server import FakeServer, reply

MakeRequest = Callable[..., WorkloadRequest]


def opened(url: str, model: str | None = None, api_key: str | None = None) -> tuple[str, str, int | None]:
    async def run() -> tuple[str, str, int | None]:
        async with open_endpoint(url, model=model, api_key=api_key, settings=ReplaySettings()) as endpoint:
            return endpoint.url, endpoint.model, endpoint.context_tokens

    return bounded.run(run())


def agreed(fake: FakeServer, like: WorkloadRequest, prompts: Any, api: Api = Api.COMPLETIONS) -> Agreed:
    async def run() -> Agreed:
        async with open_endpoint(fake.url, model=None, api_key=None, settings=ReplaySettings()) as endpoint:
            return await agree(endpoint, PayloadSettings("fake", api), prompts, like, SystemClock())

    return bounded.run(run())


@pytest.mark.slow
def test_the_first_model_is_taken_and_its_context_known(fake: FakeServer) -> None:
    assert opened(fake.url) == (fake.url, "fake", 4096)
    assert opened(fake.url + "/v1/", "fake") == (fake.url, "fake", 4096)


def test_a_server_without_a_list_of_models_is_asked_for_the_one_named(fake: FakeServer) -> None:
    fake.models = None
    assert opened(fake.url, "anything") == (fake.url, "anything", None)
    with pytest.raises(ConfigError, match="names no model at /v1/models; give --model"):
        opened(fake.url)


@pytest.mark.parametrize("models", [None, 5, {"id": "x"}, [None, 7, {}, {"id": 5}, {"id": "\ud800"}]])
def test_a_list_of_models_of_another_form_is_none(fake: FakeServer, models: Any) -> None:
    """Servers in Go write null for an empty list."""
    fake.models_page = {"data": models}
    assert opened(fake.url, "anything") == (fake.url, "anything", None)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (
            Response(b"\x1f\x8b", headers={"content-encoding": "gzip"}),
            r"a compressed response \(content-encoding 'gzip'\)",
        ),
        (Response(b"<html>"), "not JSON|malformed|Expecting value"),
    ],
)
def test_a_list_of_models_that_cannot_be_read_is_named_as_such(fake: FakeServer, page: Response, why: str) -> None:
    fake.models_page = page
    assert opened(fake.url, "anything") == (fake.url, "anything", None)
    with pytest.raises(ConfigError, match=rf"names no model at /v1/models \(.*({why}).*\); give --model") as caught:
        opened(fake.url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", ["4096", -1, 0, None, True, 10.5])
def test_a_context_that_is_no_length_is_not_known(fake: FakeServer, length: Any) -> None:
    fake.models = [{"id": "fake", "max_model_len": length}]
    assert opened(fake.url) == (fake.url, "fake", None)


def test_mistakes_are_one_line_each(fake: FakeServer) -> None:
    fake.api_key = "right"
    for url, model, key, message in (
        ("127.0.0.1:8000", None, None, r"--url: '127.0.0.1:8000' is not an http:// or https:// address"),
        ("http://127.0.0.1:9", None, None, r"cannot reach http://127.0.0.1:9 .*; is the server up\?"),
        (fake.url, None, "wrong", r"refuses the key \(401\); give --api-key or set OPENAI_API_KEY"),
        (fake.url, "other", "right", r"--model: .* does not serve 'other'; it serves fake"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            opened(url, model, key)
        assert "\n" not in str(caught.value)
    assert opened(fake.url, None, "right")[1] == "fake"


def test_an_endpoint_that_refuses_continuous_usage_is_asked_without(
    fake: FakeServer, make_request: MakeRequest
) -> None:
    def script(body: dict[str, Any], _: Any) -> Any:
        if "continuous_usage_stats" in body["stream_options"]:
            return JSONResponse({"error": {"message": "unknown field continuous_usage_stats"}}, 400)
        return reply(body)

    fake.script = script
    assert not agreed(fake, make_request(), TokenPrompts(256)).payload.continuous_usage


def test_another_refusal_is_told_in_the_servers_words(fake: FakeServer, make_request: MakeRequest) -> None:
    fake.script = lambda body, _: JSONResponse({"error": {"message": "slo_class 'x' is unknown"}}, 400)
    with pytest.raises(ConfigError, match="slo_class 'x' is unknown"):
        agreed(fake, make_request(), TokenPrompts(256))
    fake.script = lambda body, _: JSONResponse({"error": {"message": "starting"}}, 503)
    with pytest.raises(ConfigError, match="a trial request was rejected: 503: starting"):
        agreed(fake, make_request(), TokenPrompts(256))


def test_words_are_calibrated_by_what_the_endpoint_counts(fake: FakeServer, make_request: MakeRequest) -> None:
    def script(body: dict[str, Any], _: Any) -> list[Any]:
        words = len(body["messages"][0]["content"].split())
        parts = reply(body)
        parts[-2]["usage"]["prompt_tokens"] = 3 * words + 12
        return parts

    fake.script = script
    found = agreed(fake, make_request(), None, Api.CHAT).prompts
    assert found == TextPrompts(3.0, 12.0)
