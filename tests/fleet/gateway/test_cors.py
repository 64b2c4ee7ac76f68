"""Pages of other origins that browsers let use a gateway."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from sloserve.core.errors import ConfigError
from sloserve.fleet.file import parse_fleet, read_fleet
from sloserve.fleet.gateway.gateway import Gateway, check_origins
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.gateway_settings import CorsSettings, GatewaySettings
from tests.fleet.gateway.played_agents import FLEET, fleet
from tests.fleet.gateway.test_gateway import KEYS

PAGE, OTHER = "https://app.example.org", "https://other.example.org"
CHAT = "/v1/chat/completions"


def preflight(origin: str, method: str = "POST") -> dict[str, str]:
    wanted = "authorization,content-type,x-stainless-lang,x-slo-class"
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": wanted,
    }


def client(tmp_path: Path, *origins: str) -> TestClient:
    (tmp_path / "keys.yaml").write_text(KEYS)
    limits = GatewaySettings(hold_max_s=0.001, cors=CorsSettings(origins=origins, max_age_s=60))
    around = GatewayDependencies(keys=tmp_path / "keys.yaml", limits=limits, admin_key="admin")
    return TestClient(Gateway(fleet(), around).app, base_url="http://testserver")


@pytest.mark.parametrize("origins", [(PAGE,), ("*",)])
def test_a_preflight_is_answered_before_key_and_body(tmp_path: Path, origins: tuple[str, ...]) -> None:
    http = client(tmp_path, *origins)
    for path, method in ((CHAT, "POST"), ("/v1/messages", "POST"), ("/v1/models", "GET"), ("/v1/files/f", "DELETE")):
        answer = http.options(path, headers=preflight(PAGE, method))
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] == origins[0]
        assert method in answer.headers["access-control-allow-methods"].split(", ")
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert answer.headers["access-control-max-age"] == "60"
        assert "access-control-allow-credentials" not in answer.headers, "keys are no cookies"


def test_every_response_may_be_read_by_a_page_of_a_named_origin(tmp_path: Path) -> None:
    http = client(tmp_path, PAGE)
    key = {"authorization": "Bearer key-b"}
    for status, path, given in (
        (401, CHAT, {}),
        (404, CHAT, {**key, "body": "gpt"}),
        (429, CHAT, {**key, "body": "chat"}),
        (404, "/v1/nothing", key),
    ):
        headers = {name: value for name, value in given.items() if name != "body"}
        body = {"model": given.get("body"), "messages": []}
        answer = http.post(path, json=body, headers={**headers, "origin": PAGE})
        assert answer.status_code == status, answer.text
        assert answer.headers["access-control-allow-origin"] == PAGE
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"retry-after", "x-request-id", "x-sloserve-model", "x-ratelimit-remaining-tokens"} <= set(exposed)
        elsewhere = http.post(path, json=body, headers={**headers, "origin": OTHER})
        assert elsewhere.status_code == status and "access-control-allow-origin" not in elsewhere.headers
    assert http.options(CHAT, headers=preflight(OTHER)).status_code == 400
    watched = http.get("/sloserve/events", headers={"origin": PAGE})
    assert watched.status_code == 401 and "access-control-allow-origin" not in watched.headers


def test_no_page_of_another_origin_may_use_a_gateway_that_names_none(tmp_path: Path) -> None:
    http = client(tmp_path)
    answer = http.options(CHAT, headers=preflight(PAGE))
    assert answer.status_code == 401 and "access-control-allow-origin" not in answer.headers


def test_origins_are_named_in_the_fleets_file(tmp_path: Path) -> None:
    text = f"{FLEET}gateway: {{cors: {{origins: ['{PAGE}', 'http://localhost:3000'], max_age_s: 5}}}}\n"
    assert parse_fleet(text).gateway.cors == CorsSettings(origins=(PAGE, "http://localhost:3000"), max_age_s=5)
    for wrong in ("app.example.org", f"{PAGE}/path", "https://*.example.org", "null"):
        with pytest.raises(ConfigError, match=r"gateway\.cors\.origins: .* is not a list of origins"):
            parse_fleet(f"{FLEET}gateway: {{cors: {{origins: ['{wrong}']}}}}\n")
    with pytest.raises(ConfigError, match="every page that a browser of this machine opens could use"):
        check_origins(("*",), None)
    check_origins(("*",), tmp_path)
    check_origins((PAGE,), None)
    example = read_fleet(Path(__file__).parents[3] / "configs" / "fleet-clients.yaml", to_run=True)
    assert example.gateway.cors.origins == (PAGE,) and example.storing_models() == {"chat"}
