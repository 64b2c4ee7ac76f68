"""Doors on other hosts are reached by TLS, with certificates of the fleet's own authority."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.clock import Clock, ManualClock, SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.file_lock import close_lock, has_locked, open_to_lock
from sloserve.fleet import certificates
from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.certificates import RENEWED_DAYS, VALID_DAYS, Certificates
from sloserve.fleet.contract.endpoint import Refused
from sloserve.fleet.gateway.agent_connections import AgentConnections
from sloserve.fleet.launcher.own import OwnProcesses
from tests import bounded
from tests.fleet.agent.test_instance import MODELS
from tests.fleet.stand_in.engine import reply
from tests.fleet.stand_in.launcher import InLoopLauncher

DAY_S = 86_400.0
KEY = "key-of-the-fleet"


def test_keys_are_their_owners_alone_and_nothing_is_made_twice(tmp_path: Path) -> None:
    made = Certificates(tmp_path / "tls")
    names = ["authority.pem", "gateway.pem", "host-10.0.0.7.pem", "host-a_b.pem"]
    assert sorted(path.name for path in made.issue(["a_b", "10.0.0.7"])) == names
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert modes == dict.fromkeys([*names, ".lock"], 0o600) | {"authority.crt": 0o644}
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    assert made.issue(["a_b"]) == []


def test_an_authority_whose_maker_died_before_all_was_written_is_made_whole(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    made.issue(["node"])
    before = (tmp_path / "authority.crt").read_bytes()
    (tmp_path / "authority.crt").unlink()
    assert made.issue(["node"]) == []
    assert (tmp_path / "authority.crt").read_bytes() == before


def test_one_process_at_a_time_makes_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_MAKING_S", 0.0)
    other = open_to_lock(tmp_path / ".lock")
    assert has_locked(other)
    with pytest.raises(ConfigError, match=r"\.lock: another process has held the lock for 0 s; stop that process"):
        Certificates(tmp_path).issue(["node"])
    close_lock(other)
    assert Certificates(tmp_path).issue(["node"])


def test_a_certificate_is_renewed_before_it_ends_and_new_connections_use_it(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now_s())
    made = Certificates(tmp_path, clock)
    made.issue(["node"])
    made.of_endpoint("node")
    before = (tmp_path / "host-node.pem").read_bytes()
    clock.advance_to(clock.now_s() + (VALID_DAYS - RENEWED_DAYS - 1.0) * DAY_S)
    made.refresh()
    assert (tmp_path / "host-node.pem").read_bytes() == before
    clock.advance_to(clock.now_s() + 2.0 * DAY_S)
    read = made._read[tmp_path / "host-node.pem"]
    made.refresh()
    assert (tmp_path / "host-node.pem").read_bytes() != before
    assert made._read[tmp_path / "host-node.pem"] != read


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "host-node.pem").unlink(), "there is no such certificate"),
        (lambda folder: (folder / "gateway.pem").replace(folder / "host-node.pem"), "of gateway, not of node"),
        (lambda folder: (folder / "host-node.pem").write_text("x"), "is not a key and certificate"),
        (lambda folder: (folder / "authority.crt").unlink(), "authority.crt: there is no such"),
    ],
    ids=["missing", "another's", "broken", "no authority"],
)
def test_an_agent_does_not_start_with_a_wrong_certificate(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    made = Certificates(tmp_path)
    made.issue(["node"])
    (tmp_path / "authority.pem").unlink()  # of a host that has copies
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=message):
        made.of_endpoint("node")


def test_copies_make_no_certificates(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    made.issue(["node"])
    (tmp_path / "authority.pem").unlink()
    with pytest.raises(ConfigError, match="where the fleet's authority was made"):
        made.issue(["other"])


@pytest.mark.parametrize("name", ["a:b", "x" * 65, "caf\u00e9", "a..b", "*", "*.com", "a/b", "a\nb"])
def test_a_name_that_no_certificate_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a certificate"):
        Certificates(tmp_path).issue([name])
    assert not (tmp_path / "authority.pem").exists()


def test_the_command_makes_what_the_file_names(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "models: {a: {model: m, profile: h100-llama3-8b}}\ncertificates: {folder: tls}\n"
        "hosts: {n: {device: h100, devices: 1, door: 'https://10.0.0.7:7000'}, here: {device: h100, devices: 1}}\n"
    )
    first, second = (
        CliRunner().invoke(app, ["fleet", "certificates", str(file), "--host", "joins"], catch_exceptions=False)
        for _ in range(2)
    )
    made = [Path(line.removeprefix("made ")).name for line in first.stdout.splitlines()]
    assert made == ["authority.pem", "gateway.pem", "host-joins.pem", "host-n.pem"]
    assert second.stdout == "nothing to do: no certificate ends within 30 days\n"


def served(
    folder: Path,
    of_endpoint: Certificates,
    gateway: AgentConnections,
    host: str = "node",
    shown: Callable[[str], str] = str,
) -> str | None:
    """What a gateway gets of a stream through a door; ``None`` where it refuses the door. shown: its address."""

    async def within() -> str | None:
        tls = of_endpoint.of_endpoint(host)
        settings = AgentSettings(
            host,
            "cpu",
            {f"{host}/0": MODELS},
            folder,
            endpoint="https://127.0.0.1:0",
            endpoint_key=KEY,
            endpoint_tls=tls,
        )
        async with Agent(settings, OwnProcesses(InLoopLauncher())) as agent:
            assert await agent.instances[f"{host}/0"].switch("chat")
            body = json.dumps({"model": "chat", "prompt": "a", "max_tokens": 4, "stream": True}).encode()
            door, headers = shown(agent.endpoint), [("content-type", "application/json")]
            try:
                state = await gateway.state(door)
                answer = await gateway.send(door, f"{host}/0", "/v1/completions", headers, body, "chat")
                assert state is not None and state.report is not None and answer.is_stream
                assert state.report.door == agent.endpoint
                text = b""
                while part := await answer.read():
                    text += part
                return text.decode()
            except Refused:
                assert state is None
                return None
            finally:
                await gateway.close()

    return bounded.run(within())


def issued(folder: Path, hosts: tuple[str, ...] = ("node",), clock: Clock | None = None, **given: bool) -> Certificates:
    made = Certificates(folder, clock, **given)
    made.issue(hosts)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("of_gateways", [False, True])
@pytest.mark.parametrize("host", ["node", "10.0.0.7", "a_b"])
def test_a_stream_comes_through_a_door_with_its_own_certificate(tmp_path: Path, host: str, of_gateways: bool) -> None:
    made = issued(tmp_path, (host,), of_gateways=of_gateways)
    text = served(tmp_path / "state", made, AgentConnections(60.0, KEY, made.of_gateway()), host)
    assert text is not None and "data: [DONE]" in text
    streamed = [json.loads(one[6:])["choices"] for one in text.split("\n\n") if one.startswith("data: {")]
    assert "".join(one[0]["text"] for one in streamed if one) == reply("chat", "a", 4)


@pytest.mark.slow
def test_another_authoritys_door_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other, made = issued(tmp_path / "other"), issued(tmp_path / "made")
    assert served(tmp_path, other, AgentConnections(60.0, KEY, made.of_gateway())) is None
    assert "certificate verify failed" in caplog.text and "sloserve fleet certificates" in caplog.text


@pytest.mark.slow
def test_another_hosts_door_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = issued(tmp_path)
    gateway = AgentConnections(60.0, KEY, made.of_gateway())
    assert served(tmp_path, made, gateway, shown=lambda door: door.replace("#node", "#other")) is None
    assert "Hostname mismatch" in caplog.text


@pytest.mark.slow
def test_a_certificate_that_has_ended_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    past = ManualClock(SystemClock().now_s() - (VALID_DAYS + 1.0) * DAY_S)
    made = issued(tmp_path, clock=past)
    assert served(tmp_path, made, AgentConnections(60.0, KEY, made.of_gateway())) is None
    assert "certificate has expired" in caplog.text
    with pytest.raises(ConfigError, match="expired on"):
        (tmp_path / "authority.pem").unlink()
        Certificates(tmp_path).of_endpoint("node")


@pytest.mark.slow
def test_a_gateway_without_a_certificate_is_refused_where_doors_ask_for_one(
    tmp_path: Path,
) -> None:
    made, none = issued(tmp_path / "tls", of_gateways=True), tmp_path / "none"
    none.mkdir()
    (none / "authority.crt").write_bytes((tmp_path / "tls" / "authority.crt").read_bytes())
    assert served(tmp_path, made, AgentConnections(60.0, KEY, Certificates(none).of_gateway())) is None
    with pytest.raises(ConfigError, match="gateway.pem: there is no such certificate"):
        Certificates(none, of_gateways=True).of_gateway()


@pytest.mark.parametrize(
    ("door", "has_tls"),
    [
        ("http://10.0.0.7:1", True),
        ("HTTP://10.0.0.7:1", True),
        ("ws://10.0.0.7:1", True),
        ("https://10.0.0.7:1#node", False),
    ],
)
def test_a_door_is_not_asked_with_less_or_more_than_the_gateway_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, door: str, has_tls: bool
) -> None:
    tls = issued(tmp_path).of_gateway() if has_tls else None

    async def asked() -> None:
        gateway = AgentConnections(60.0, KEY, tls)
        assert await gateway.state(door) is None
        with pytest.raises(Refused):
            await gateway.send(door, "node/0", "/v1/completions", [], b"", "chat")
        await gateway.close()

    with caplog.at_level(logging.ERROR):
        bounded.run(asked())
    assert caplog.text.count(door) == 1
