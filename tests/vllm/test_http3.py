"""OpenAI's SDK over HTTP/3, on the real server."""

import re
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.httpx_transport import H3Transport
from tests import bounded
from tests.vllm.server import MODEL, USER_KEY, Server

pytestmark = pytest.mark.vllm


def client(server: Server, key: str = USER_KEY) -> AsyncOpenAI:
    assert server.has_said("HTTP/3 on UDP port")
    (line,) = [line for line in server.log if "HTTP/3 on UDP port" in line]
    found = re.search(r"with the certificate (\S+)", line)
    assert found and f"port {server.port}, streams served by edf" in line
    http = httpx.AsyncClient(transport=H3Transport(ClientSettings(ca_file=found[1])), timeout=120)
    return AsyncOpenAI(base_url=f"https://localhost:{server.port}/v1", api_key=key, http_client=http, max_retries=0)


def test_the_stock_sdk_plain_and_streaming(server: Server, http: httpx.Client) -> None:
    assert http.get("/health").headers["alt-svc"] == f'h3=":{server.port}"; ma=3600'

    async def test() -> None:
        async with client(server) as openai:
            asked: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
            asked |= {"extra_headers": {"x-slo-ttft-ms": "60000", "x-slo-report": "1", "priority": "u=2"}}
            plain = await openai.chat.completions.with_raw_response.create(**asked)
            assert plain.http_response.http_version == "HTTP/3"
            assert "alt-svc" not in plain.headers and plain.headers["x-request-id"]
            assert plain.parse().model_extra["slo"]["met"] == {"ttft": True}
            in_body = {**asked, "extra_headers": {}, "extra_body": {"slo": {"class": "batch", "e2e_ms": 60_000}}}
            await openai.chat.completions.create(**in_body)  # nothing but the body knows of a deadline
            assert 'sloserve:http3_deadlines_total{class="batch",outcome="met"} 1.0' in server.metrics()
            streams = [await openai.chat.completions.create(**asked, stream=True) for _ in range(3)]
            outcomes = [[c.model_extra["slo"] async for c in s if "slo" in c.model_extra] for s in streams]
            assert [told["outcome"] for (told,) in outcomes] == ["completed"] * 3

            long = await openai.completions.create(model=MODEL, prompt="Hi", max_tokens=1500, stream=True)
            await anext(aiter(long))
            await long.close()  # the engine is told, else the request would run to its end
        async with client(server, "wrong") as openai:
            with pytest.raises(AuthenticationError):
                await openai.models.list()

    bounded.run(test(), 120.0)
