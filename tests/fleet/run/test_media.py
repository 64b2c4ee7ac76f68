"""Engines of a fleet fetch no URL that a request names, unless the file names its host."""

import base64
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.run.live import NO_HOST, agent_settings, place_of

FLEET = """
models: {m: {profile: h100-llama3-8b, model: a/b}}
hosts: {a: {device: h100, devices: 1, host_memory_gib: 64}}
"""
FLAG, REDIRECTS = "--allowed-media-domains", "VLLM_MEDIA_URL_ALLOW_REDIRECTS"
METADATA = "http://169.254.169.254/latest/meta-data/iam"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def served(tmp_path: Path, text: str) -> EngineModel:
    fleet = parse_fleet(text, str(tmp_path / "fleet.yaml"), to_run=True)
    settings = agent_settings(fleet, fleet.hosts["a"], place_of(fleet, tmp_path / "state"))
    return settings.instances["a/0"]["m"]


@pytest.mark.parametrize(
    ("stated", "hosts"),
    [
        ("", [NO_HOST]),
        ("media_domains: [images.example.org, cdn.example.org]", ["images.example.org", "cdn.example.org"]),
        ("media_domains: ['*']", None),
    ],
)
def test_engines_get_the_hosts_that_the_file_names(tmp_path: Path, stated: str, hosts: list[str] | None) -> None:
    model = served(tmp_path, f"{FLEET}{stated}\n")
    if hosts is None:
        assert FLAG not in model.flags and REDIRECTS not in model.environment
        return
    at = model.flags.index(FLAG)
    assert list(model.flags[at + 1 : at + 1 + len(hosts)]) == hosts
    assert model.flags[at + 1 + len(hosts)].startswith("--"), "the flag takes all words up to the next flag"
    assert model.environment[REDIRECTS] == "0", "an allowed host could send the engine to any other"


def test_a_model_or_host_may_say_otherwise(tmp_path: Path) -> None:
    own = FLEET.replace(
        "model: a/b", f"model: a/b, arguments: [{FLAG}, own.example.org], environment: {{{REDIRECTS}: '1'}}"
    )
    model = served(tmp_path, own)
    assert model.flags.count(FLAG) == 1 and "own.example.org" in model.flags and NO_HOST not in model.flags
    assert model.environment[REDIRECTS] == "1"
    of_host = served(tmp_path, FLEET.replace("devices: 1", f"devices: 1, environment: {{{REDIRECTS}: '1'}}"))
    assert REDIRECTS not in of_host.environment, "the host's environment counts"


@pytest.mark.parametrize("wrong", ["https://a.example.org", "a.example.org/x", "*.example.org", "A b", "a:80"])
def test_a_host_is_a_name_alone(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"media_domains: .* is not a list of hosts"):
        parse_fleet(f"{FLEET}media_domains: ['{wrong}']\n")


@pytest.mark.vllm
@pytest.mark.parametrize(("allowed", "fetched"), [([], True), (None, True), ([NO_HOST], False)])
def test_an_engine_asks_no_host_that_is_not_allowed(
    allowed: list[str] | None, fetched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes an empty list for no limit, so that a host is named that does not exist."""
    from vllm.multimodal.media.connector import MediaConnector

    asked: list[tuple[str, bool]] = []

    class Connection:
        def get_bytes(self, url: str, *, allow_redirects: bool, **_: Any) -> bytes:
            asked.append((url, allow_redirects))
            return PNG

    monkeypatch.setenv(REDIRECTS, "0")
    connector = MediaConnector(connection=Connection(), allowed_media_domains=allowed)  # type: ignore[arg-type]
    if fetched:
        connector.fetch_image(METADATA)
        assert asked == [(METADATA, False)]
    else:
        for url in (METADATA, "http://localhost:8000/v1/models", "HTTP://[::1]/"):
            with pytest.raises(ValueError, match="must be from one of the allowed domains"):
                connector.fetch_image(url)
        assert asked == []
    data = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert connector.fetch_image(data).media.size == (1, 1)
    with pytest.raises(RuntimeError, match="--allowed-local-media-path"):
        connector.fetch_image("file:///etc/passwd")
