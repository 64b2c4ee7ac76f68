"""The page of ports says what the code's defaults are."""

import importlib.util
import inspect
import re
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.fleet.beside.endpoint_picker.picker_file import ListenSection
from sloserve.fleet.file_sections import GatewaySection
from sloserve.fleet.store import postgres
from sloserve.vllm_plugin.server.early import read_flags
from sloserve.wire.edge_command import edge
from tests.docs.pages import ROOT

SERVERS = ("vllm_plugin/server/serve.py", "scheduler/config.py", "wire/optional_http3.py")
PAGE = (ROOT / "docs" / "ports.md").read_text()


def listed(process: str) -> list[str]:
    """The cells of the row of who listens, of the process whose cell begins so."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")
    ]
    (found,) = [row for row in rows if row[0] == process]
    return found


def test_the_gateway_listens_where_the_page_says() -> None:
    section, row = GatewaySection(), listed("`sloserve fleet FILE`, `sloserve fleet gateway FILE`")
    assert row[1] == f"{section.host}:{section.port}" and section.http3.port is None and not section.http3.enabled


def test_the_picker_listens_where_the_page_says() -> None:
    section = ListenSection()
    assert listed("`sloserve fleet picker FILE`")[1] == f"{section.host}:{section.port}"


def test_the_edge_listens_where_the_page_says() -> None:
    defaults = {name: one.default for name, one in inspect.signature(edge).parameters.items()}
    assert listed("`sloserve edge`")[1] == f"{defaults['host']}:{defaults['port']}"


def test_the_server_listens_where_the_page_says() -> None:
    flags = read_flags(["m"])
    for process in ("`sloserve serve`", "`sloserve serve --http3`"):
        assert listed(process)[1] == f"{flags.host}:{flags.port}"


def test_a_store_on_another_host_is_verified_on_the_port_that_the_page_says() -> None:
    (port,) = [one.compiled for one in psycopg.pq.Conninfo.get_defaults() if one.keyword == b"port"]
    assert port is not None and listed("PostgreSQL")[1] == f"server's own, {port.decode()}"
    assert "verify-full" in inspect.getsource(postgres) and "`sslmode=verify-full`" in PAGE


def test_ray_listens_where_the_page_says() -> None:
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        pytest.skip("ray is not installed")
    folder = Path(found.origin).parent
    constants, flags = ((folder / name).read_text() for name in ("_private/ray_constants.py", "scripts/scripts.py"))

    def constant(name: str) -> str:
        return str(re.findall(rf"^{name} = (\d+)", constants, re.M)[0])

    def flag(name: str) -> str:
        return str(re.findall(rf'"--{name}",.*?default=(\d+)', flags, re.S)[0])

    assert listed("Ray's head (GCS)")[1].endswith(f":{constant('DEFAULT_PORT')}")
    assert listed("Ray's dashboard and jobs")[1].endswith(f":{constant('DEFAULT_DASHBOARD_PORT')}")
    assert listed("a Ray node's other parts")[1].endswith(constant("DEFAULT_DASHBOARD_AGENT_LISTEN_PORT"))
    workers = f":{flag('min-worker-port')} to {flag('max-worker-port')}"
    assert listed("Ray's workers and drivers")[1].endswith(workers)


OWN = [row.strip("| ").split(" | ") for row in PAGE.splitlines() if row.startswith("| `sloserve ")]


@pytest.mark.parametrize(
    ("process", "flag"), [(row[0], flag) for row in OWN for flag in re.findall("--[a-z0-9-]+", " ".join(row))]
)
def test_the_flags_that_change_an_address_exist(process: str, flag: str) -> None:
    if process.startswith("`sloserve serve"):
        flags = "".join((ROOT / "sloserve" / name).read_text() for name in SERVERS)
        flags = flags.replace("_", "-") + "ssl-certfile"  # vLLM's
    else:
        parts = {"fleet picker": ["fleet", "picker"], "fleet": ["fleet", "gateway"], "edge": ["edge"]}
        command = next(words for name, words in parts.items() if name in process)
        flags = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout
    assert flag.removeprefix("--") in flags
