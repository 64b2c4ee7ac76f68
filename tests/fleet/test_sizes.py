"""Values in bodies, which gateway, agents and batches read as the engine does that gets them."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from sloserve.core.clock import SystemClock
from sloserve.core.errors import InvalidRequest
from sloserve.fleet.agent.engine_requests import stream_of
from sloserve.fleet.agent.line_output import _is_continuable
from sloserve.fleet.batch_api.lines import ENDPOINTS, _line, _Wrong
from sloserve.fleet.client_routes import CHAT, GENERATING
from sloserve.fleet.gateway.gateway_request import GatewayRequestReader
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.sizes import MOST_OUTPUTS, output_limit, outputs_asked, prompt_bytes
from sloserve.scheduler.settings import PluginSettings

VALUES = (None, 1, 2, 2.0, "2", " 2 ", "2.0", True, 2.5, "x", "", [], {}, False, 0, -1, float("nan"), float("inf"))


class Stated(BaseModel):
    """Fields as in vLLM's ``ChatCompletionRequest``."""

    n: int | None = 1
    stream: bool | None = False
    priority: int = 0


SWITCHES = (True, False, None, 1, 0, 1.0, 0.0, 2, "1", "0", "true", "TRUE", "on", "t", "y", "yes", "false", "off", "f")


@pytest.mark.parametrize("n", [*VALUES, MOST_OUTPUTS, MOST_OUTPUTS + 1, "9" * 5000, 10**400], ids=lambda n: repr(n)[:9])
def test_n_is_what_vllm_takes_it_for_and_what_it_refuses_is_refused(n: Any) -> None:
    try:
        read = Stated(n=n).n
    except ValidationError:
        read = 0
    if read is None or 1 <= read <= MOST_OUTPUTS:
        assert outputs_asked(n, CHAT) == (read or 1)
    else:
        with pytest.raises(InvalidRequest, match=r"^n: .{1,90} is not a whole number of 1 to 16384$"):
            outputs_asked(n, CHAT)


def test_n_means_nothing_to_what_generates_nothing() -> None:
    assert [route for route in ENDPOINTS if route not in GENERATING] == ["/v1/embeddings"]
    for route in ("/v1/embeddings", "/tokenize"):
        assert {outputs_asked(n, route) for n in VALUES} == {1}


@pytest.mark.parametrize(("stated", "tokens"), [("100", 100), (100.0, 100), (True, 1), (2**31, None), ("x", None)])
def test_a_limit_is_read_as_leniently(stated: Any, tokens: int | None) -> None:
    assert output_limit(stated) == output_limit(None, stated) == tokens


PICTURE = "iVBORw0KGgo" + "A1b2/+" * 50_000 + "=="


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}},
    ],
)
def test_a_picture_counts_by_what_is_usual_and_not_by_its_bytes(part: dict[str, Any]) -> None:
    """300 kB counted as 75,000 tokens, for which admission refused it and other requests went elsewhere."""
    content = [{"type": "text", "text": "What is it? " * 100}, part]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    counted = [
        GatewayRequestReader(PluginSettings()).read([], body, Tenant("a"), "id", CHAT).prompt_tokens,
        stream_of("m", body).prompt_tokens,
    ]
    assert all(1024 + 300 <= tokens < 1024 + 400 for tokens in counted), counted


def test_a_text_counts_by_its_bytes_whatever_it_says() -> None:
    for text in (b'"base64"' + b"a " * 9_000, b'"' + b"A" * 9_000 + b'"', b'"base64' + b"A" * 4_000 + b'"'):
        assert prompt_bytes(text) == prompt_bytes(memoryview(text)) == len(text)
    began_s = SystemClock().monotonic_s()
    prompt_bytes(b'base64"' + (b"A" * 4095 + b'!"') * 500)  # 2 MB that nearly match
    assert SystemClock().monotonic_s() - began_s < 5.0


def read_by_vllm(**stated: Any) -> Any:
    """Return the fields as vLLM reads them; ``None`` where it refuses the request."""
    try:
        return Stated(**stated)
    except ValidationError:
        return None


def at_gateway(**stated: Any) -> Any:
    body = json.dumps({"model": "m", "prompt": "a", **stated}).encode()
    return GatewayRequestReader(PluginSettings()).read([], body, Tenant("a"), "id", CHAT)


@pytest.mark.parametrize("stream", [*SWITCHES, "", "x", [], {}, -1], ids=repr)
def test_a_stream_is_what_vllm_takes_for_one(stream: Any) -> None:
    read = read_by_vllm(stream=stream)
    streams = read is not None and bool(read.stream)
    assert at_gateway(stream=stream).streamed is streams
    for more in ({}, {"temperature": float("nan")}):  # Python's JSON, which vLLM reads
        body = json.dumps({"stream": stream, **more}).encode()
        assert stream_of("m", body).streams is streams
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m", "messages": [], "stream": stream}}
    if read is None or read.stream:
        with pytest.raises(_Wrong, match="results of a batch come in a file"):
            _line(1, json.dumps(line).encode(), CHAT, {"m"})
    else:
        assert _line(1, json.dumps(line).encode(), CHAT, {"m"}).model == "m"


@pytest.mark.parametrize("priority", [0, 3, "3", " 3 ", 3.0, True, None, 2.5, "x", [], -1])
def test_a_priority_is_what_vllm_takes_it_for(priority: Any) -> None:
    read = read_by_vllm(priority=priority) if priority is not None else Stated()
    if read is None:
        with pytest.raises(InvalidRequest, match="^priority: .* is not a whole number"):
            at_gateway(priority=priority)
    else:
        headers = dict(at_gateway(priority=priority).headers)
        assert headers.get("x-vllm-priority") == (None if priority is None else str(read.priority))


@pytest.mark.parametrize(
    ("n", "goes_on"), [(1, True), ("1", True), (1.0, True), (None, True), (2, False), ("x", False)]
)
def test_one_reply_goes_on_however_it_is_asked_for(n: Any, goes_on: bool) -> None:
    assert _is_continuable(CHAT, {"model": "m", "messages": [], "n": n}) is goes_on
