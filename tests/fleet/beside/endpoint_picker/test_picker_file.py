"""The file of a picker, its list of servers, and its command."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError
from sloserve.fleet.beside.endpoint_picker.picker_file import MOST_SERVERS, ServersSection, read_picker
from sloserve.fleet.beside.endpoint_picker.server_list import ServerList
from tests import bounded

EXAMPLE = Path(__file__).parents[4] / "configs" / "picker.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "picker.yaml"
    path.write_text(text)
    return path


def test_the_example_is_read() -> None:
    file = read_picker(EXAMPLE)
    assert file.servers.dns is not None and file.models and file.listen.port == 9002


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("choice: {}", "no servers; a picker needs addresses, file or dns under servers"),
        ("servers: {}", "servers: nothing of it is given; give one of addresses, file and dns"),
        ("servers: {dns: a, file: b}", "servers: file and dns are given; give one of addresses, file and dns"),
        ("servers: {addresses: [nowhere]}", "servers.addresses: "),
        ("servers: {dns: a}\nmodels: {m: {profile: none-such}}", "models.m.profile: "),
        ("servers: {dns: a}\nchoice: {shed: [none-such]}", "choice.shed.0: class 'none-such' "),
        ("servers: {dns: a}\nsettings: {policy: none-such}", "settings.policy: "),
        ("servers: {dns: a}\nlisten: {certfile: a.pem}", "listen.certfile: certfile and keyfile belong together"),
        ("servers: {dns: a}\nserver: {}", "server"),
    ],
)
def test_faults_say_where_they_are(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_picker(written(tmp_path, text))
    assert expected in str(caught.value) and "picker.yaml:" in str(caught.value)


def test_a_profile_may_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text("{}")
    with pytest.raises(ConfigError, match="own.json"):
        read_picker(written(tmp_path, "servers: {dns: a}\nmodels: {m: {profile: own.json}}"))


def listed(servers: ServerList) -> list[str]:
    return bounded.run(servers.look())


def test_a_file_of_servers_is_read_again_and_a_faulty_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "servers.txt"
    servers = ServerList(ServersSection(file="servers.txt"), tmp_path)
    assert listed(servers) == []
    path.write_text("# the first\n10.0.0.1:8000\n\n[fd00::1]:8000\n10.0.0.1:8000\n")
    assert listed(servers) == ["10.0.0.1:8000", "[fd00::1]:8000"]
    path.write_text("10.0.0.1:8000\nno address\n")
    assert len(listed(servers)) == len(listed(servers)) == 2
    assert [record.getMessage().count("'no address' is not an address") for record in caplog.records] == [0, 1]
    path.write_text("\n".join(f"10.0.{i // 250}.{i % 250}:8000" for i in range(MOST_SERVERS + 9)))
    assert len(listed(servers)) == MOST_SERVERS


def test_a_name_in_dns_stands_for_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers: list[list[str] | Exception] = [["10.0.0.2", "10.0.0.1", "fd00::1"], OSError("no such name"), ["10.0.0.3"]]

    async def getaddrinfo(self: object, host: str, port: int, **given: object) -> list[tuple[object, ...]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [(0, 0, 0, "", (address, port)) for address in answer]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    servers = ServerList(ServersSection(dns="servers.default.svc", port=8000), tmp_path)
    first = ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]
    assert [listed(servers) for _ in range(3)] == [first, first, ["10.0.0.3:8000"]]


def test_the_command_says_which_file_it_reads(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["fleet", "picker", str(written(tmp_path, "servers: {}"))])
    assert shown.exit_code != 0 and "give one of addresses, file and dns" in str(shown.exception or shown.output)
