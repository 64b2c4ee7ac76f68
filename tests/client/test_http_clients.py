"""Which addresses are asked through a proxy of the environment, and how what cannot be used reads."""

import functools
import os
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from sloserve.client.endpoint import open_endpoint
from sloserve.client.http_clients import async_http_client, http_client, proxy_remark
from sloserve.client.watching import LostServer, watch
from sloserve.client.workload_replay import ReplaySettings
from sloserve.core.errors import ConfigError
from tests import bounded

LOOPBACK = (
    "http://localhost:8000",
    "https://LOCALHOST.:8000/v1",
    "http://engine.localhost",
    "http://127.0.0.1:8000",
    "http://127.8.9.10",
    "http://127.1:8000",
    "http://0.0.0.0:8000",
    "http://[::1]:8000",
    "http://[::]:8000",
    "http://[::ffff:127.0.0.1]:8000",
)
ELSEWHERE = ("http://example.com", "http://10.0.0.7:8000", "http://[::ffff:10.0.0.7]", "http://localhost.example.com")


CERTIFICATES = functools.cache(ssl.create_default_context)
"""Reading those of all authorities takes 30 ms."""


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", CERTIFICATES)
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def remark(url: str) -> str:
    with http_client(url) as client:
        return proxy_remark(client)


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names a proxy in the environment; holds the lines of the requests that it got."""
    got: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            got.append(self.path)
            self.send_response(502)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        yield got
        with bounded.within("the end of the proxy"):
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("url", LOOPBACK)
def test_no_proxy_is_used_for_this_machine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    with http_client(url) as client:
        assert not client._mounts and proxy_remark(client) == ""
    assert not async_http_client(url)._mounts


@pytest.mark.parametrize("url", ELSEWHERE)
def test_the_proxy_of_the_environment_is_used_for_other_machines(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert remark(url) == ""
    monkeypatch.setenv("ALL_PROXY", "http://user:secret@proxy.example:3128")
    with http_client(url) as client:
        assert client._mounts
    said = remark(url)
    assert "ALL_PROXY" in said and "NO_PROXY=" in said and "secret" not in said
    monkeypatch.setenv("NO_PROXY", httpx.URL(url).host)
    assert remark(url) == ""


@pytest.mark.parametrize(
    ("url", "environment", "named"),
    [
        ("https://server.invalid", {"HTTP_PROXY": "http://p"}, None),
        ("http://server.invalid", {"HTTPS_PROXY": "http://p"}, None),
        ("https://server.invalid", {"HTTP_PROXY": "http://p", "ALL_PROXY": "http://q"}, "ALL_PROXY"),
        ("https://server.invalid", {"HTTPS_PROXY": "http://p", "ALL_PROXY": "http://q"}, "HTTPS_PROXY"),
        ("http://server.invalid", {"https_proxy": "http://p", "http_proxy": "http://q"}, "HTTP_PROXY"),
        ("http://server.invalid", {"HTTP_PROXY": "http://p", "http_proxy": ""}, None),
        ("http://server.invalid:8000", {"ALL_PROXY": "http://p", "NO_PROXY": "server.invalid:8000"}, None),
        ("http://server.invalid:9000", {"ALL_PROXY": "http://p", "NO_PROXY": "server.invalid:8000"}, "ALL_PROXY"),
        ("http://server.invalid", {"ALL_PROXY": "http://p", "NO_PROXY": "https://server.invalid"}, "ALL_PROXY"),
        ("https://server.invalid", {"ALL_PROXY": "http://p", "NO_PROXY": "*"}, None),
    ],
)
def test_the_remark_names_the_variable_that_httpx_follows(
    url: str, environment: dict[str, str], named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = f" through the proxy that {named} names (NO_PROXY=server.invalid goes past it)"
    assert remark(url) == proxy_remark(async_http_client(url)) == (told if named else "")


@pytest.mark.parametrize("proxy", [None, "http://proxy.example:3128"])
def test_an_entry_of_no_proxy_that_httpx_cannot_read_is_named(
    proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "[::1]")
    if proxy is not None:
        monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(
        ConfigError, match=r"NO_PROXY has an entry that cannot be read .*set NO_PROXY=10\.0\.0\.7$"
    ) as caught:
        http_client("http://10.0.0.7:8000")
    assert "\n" not in str(caught.value) and ("HTTP_PROXY" in str(caught.value)) == (proxy is not None)
    monkeypatch.setenv("NO_PROXY", "10.0.0.7")
    assert remark("http://10.0.0.7:8000") == "", "the remedy helps"


def test_the_admin_key_of_a_local_server_reaches_no_proxy(proxied: list[str]) -> None:
    with pytest.raises(LostServer, match="refused"):
        next(watch("http://127.0.0.1:9", "secret"))
    assert not proxied


def test_an_error_through_a_proxy_names_it_and_the_remedy(proxied: list[str]) -> None:
    with pytest.raises(LostServer, match=r"through the proxy that HTTP_PROXY names \(NO_PROXY=server.invalid .*502"):
        next(watch("http://server.invalid", "key"))
    assert proxied == ["http://server.invalid/sloserve/events"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://server.invalid"])
@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "gopher://127.0.0.1:9", "http://["])
def test_a_proxy_that_cannot_be_used_is_one_line(url: str, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)

    async def opened() -> None:
        async with open_endpoint(url, model=None, api_key=None, settings=ReplaySettings()):
            raise AssertionError("nobody answers there")

    for ask in (lambda: next(watch(url, "key")), lambda: bounded.run(opened())):
        with pytest.raises((ConfigError, LostServer)) as caught:
            ask()
        said = str(caught.value)
        assert "\n" not in said
        if url == "http://server.invalid":
            assert "ALL_PROXY names" in said and "NO_PROXY=server.invalid" in said
        else:
            assert "ALL_PROXY" not in said, "it is not used for this machine"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "unix:/run/x", "http://", "http://[::1", "http://a:b", "ftp://a"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url: .* is not an http:// or https:// address") as caught:
        http_client(url)
    assert "\n" not in str(caught.value)


def test_a_key_that_no_header_carries_is_refused_and_not_repeated() -> None:
    for key in ("secret\n", "сecret"):
        with pytest.raises(ConfigError, match="characters that no HTTP header may carry") as caught:
            http_client("http://127.0.0.1:9", key=key)
        assert "ecret" not in str(caught.value)


def test_certificates_that_cannot_be_read_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/certificates.pem")
    with pytest.raises(ConfigError, match="SSL_CERT_FILE and SSL_CERT_DIR must name"):
        http_client("https://127.0.0.1:9")


def test_cookies_are_not_kept() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert "cookie" not in request.headers
        return httpx.Response(200, headers={"set-cookie": "engine=3; path=/"})

    with http_client("http://test", transport=httpx.MockTransport(answer)) as client:
        client.get("/")
        client.get("/")
