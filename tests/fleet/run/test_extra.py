"""A gateway's host needs `pip install 'sloserve[fleet]'`, and no vLLM."""

import importlib.metadata as metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
GATEWAY = """
import asyncio, json, sys
from importlib.abc import MetaPathFinder
from pathlib import Path

class NotInstalled(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing, folder = set(json.loads(sys.argv[1])), Path(sys.argv[2])
assert not missing & sys.modules.keys()
sys.meta_path.insert(0, NotInstalled())

import httpx
import sloserve.cli
from sloserve.fleet.file import read_fleet
from sloserve.fleet.run import all_in_one, planner_process
from sloserve.fleet.run.gateway_process import GatewayServer
from sloserve.fleet.run.live import place_of
from sloserve.fleet.store import postgres
from sloserve.fleet.store.store import open_store

async def main():
    fleet = read_fleet(folder / "fleet.yaml")
    place = place_of(fleet, environ={})
    store = open_store(place.store)
    server = GatewayServer(fleet, place, store, 1.0)
    await server.start()
    async with httpx.AsyncClient(base_url=server.address) as http:
        assert [one["id"] for one in (await http.get("/v1/models")).json()["data"]] == ["chat"]
        file = await http.post("/v1/files", files={"file": ("f", b"{}")}, data={"purpose": "batch"})
        assert file.status_code == 200, file.text
    await server.stop()
    store.close()

asyncio.run(main())
print("served")
"""


def brought() -> set[str]:
    """Distributions that the extra installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["fleet"])]
    found: set[str] = set()
    while asked:
        wanted = asked.pop()
        name = canonicalize_name(wanted.name)
        found.add(name)
        for requirement in map(Requirement, metadata.requires(name) or ()):
            marker, extras = requirement.marker, {"", *wanted.extras}
            if requirement.name not in found and (marker is None or any(marker.evaluate({"extra": e}) for e in extras)):
                asked.append(requirement)
    return found


@pytest.mark.slow
def test_a_gateway_serves_where_only_the_extra_is_installed(tmp_path: Path) -> None:
    kept = brought() | {"sloserve", "packaging"}
    packages = metadata.packages_distributions()
    missing = [name for name, by in packages.items() if not kept & set(map(canonicalize_name, by))]
    assert {"vllm", "torch", "transformers"} <= set(missing)
    (tmp_path / "fleet.yaml").write_text(
        "models: {chat: {profile: h100-llama3-8b}}\nhosts: {a: {device: h100, devices: 1}}\ngateway: {port: 0}\n"
    )
    missing = [name for name in missing if not name.startswith("_")]  # loaded by site, before anything of ours
    command = [sys.executable, "-c", GATEWAY, json.dumps(missing), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "served\n", done.stderr
