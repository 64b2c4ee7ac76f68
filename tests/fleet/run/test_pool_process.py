"""What is said before agents are started on a cluster."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.run.live import Place, check_endpoints
from sloserve.fleet.run.pool_process import name_in_ray, ray_pool, reloading, serve_pool
from tests import bounded

FILE = "models: {a: {model: m, profile: h100-llama3-8b}}\npool: {ray: auto, devices: {h100: {devices: 1}}}\n"
KEY = "a-key-of-the-fleet"


def _fleet(folder: Path, text: str = FILE) -> Fleet:
    (folder / "fleet.yaml").write_text(text)
    return parse_fleet(text, str(folder / "fleet.yaml"), to_run=True)


def test_doors_of_nodes_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fleet.yaml: pool.ray: an agent on a node needs a key; set SLOSERVE_FLEET_"):
        bounded.run(serve_pool(_fleet(tmp_path), Place(tmp_path, "sqlite:x"), print, []))
    check_endpoints(_fleet(tmp_path), Place(tmp_path, "sqlite:x", KEY))


def test_a_file_without_a_cluster_and_an_environment_without_ray_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, "sqlite:x", KEY)
    with pytest.raises(ConfigError, match="pool.ray is missing: the address of a Ray cluster, or auto"):
        ray_pool(_fleet(tmp_path, FILE.replace("ray: auto, ", "")), place, [])
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("sloserve.fleet.pool.on_ray.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"pool.ray needs ray, which is not installed: pip install -e '\.\[ray\]'"):
        ray_pool(_fleet(tmp_path), place, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE.replace(", devices: {h100: {devices: 1}}", ""), "no hosts|pool.ray: needs pool.devices"),
        (
            FILE + "hosts: {n: {device: h100, devices: 1}}",
            "pool.ray: nodes of a cluster and hosts of the file could be",
        ),
    ],
)
def test_a_cluster_brings_all_hosts_and_their_kinds_are_known(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _fleet(tmp_path, text)


def test_a_fleet_has_a_name_of_its_own_on_a_cluster_whatever_its_password_is(tmp_path: Path) -> None:
    fleet = _fleet(tmp_path)
    stores = (
        "postgresql://u:old@db:5432/x",
        "postgresql://u:new@db:5432/x",
        "postgresql://u:new@db:5432/y",
        "sqlite:x",
    )
    names = [name_in_ray(fleet, Place(tmp_path, store)) for store in stores]
    assert names[0] == names[1] and len(set(names)) == 3
    assert all(name.startswith("fleet-") and len(name) == 14 for name in names)


def test_sighup_counts_once_the_file_can_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = Path(_fleet(tmp_path).source)

    async def all_of_it() -> None:
        reloaded = asyncio.create_task(reloading(file))
        for text in ("nonsense: 1\n", FILE.replace("ray: auto, ", "")):
            file.write_text(text)
            before = len(caplog.records)
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGHUP)
            while len(caplog.records) == before:
                await asyncio.sleep(0.01)
            assert "SIGHUP: this process and its agents stay as they are: " in caplog.text and not reloaded.done()
        file.write_text(FILE)
        os.kill(os.getpid(), signal.SIGHUP)
        await reloaded

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
    try:
        bounded.run(all_of_it())
    finally:
        signal.signal(signal.SIGHUP, before)
