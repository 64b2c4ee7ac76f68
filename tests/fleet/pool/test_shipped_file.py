"""What agents on other machines are given of a fleet's file."""

from pathlib import Path

from sloserve.fleet.file import read_fleet
from sloserve.fleet.pool.shipped_file import NAME, shipped

FILE = """
models:
  own: {model: m/own, profile: mine.yaml}
  shipped: {model: m/shipped, profile: {h100: h100-llama3-8b, cpu: mine.yaml}, share: 0.5}
pool: {ray: auto, devices: {cpu: {devices: 2, least: 1, most: 3, bundle: {CPU: 2}}, h100: {}}}
switching: {drain_max_s: 7}
gateway: {keys: keys.yaml, max_requests: 77}
store: sqlite:fleet.db
settings: {policy: sjf}
"""


def test_a_file_is_read_elsewhere_as_here_but_for_what_gateways_alone_have(tmp_path: Path) -> None:
    profile = Path(__file__).parents[3] / "configs" / "cpu-tiny.yaml"
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.yaml").write_text(profile.read_text())
    text = FILE.replace("profile: mine.yaml", "profile: {cpu: mine.yaml}")
    (tmp_path / "here" / "fleet.yaml").write_text(text)
    here = read_fleet(tmp_path / "here" / "fleet.yaml", to_run=True)
    (tmp_path / "there").mkdir()
    files = shipped(here)
    assert len(files) == 2, "a profile that two models have is shipped once"
    for name, content in files.items():
        (tmp_path / "there" / name).write_text(content)
    there = read_fleet(tmp_path / "there" / NAME, to_run=True)
    assert {n: m.profiles for n, m in there.models.items()} == {n: m.profiles for n, m in here.models.items()}
    unscaled = {"cpu": here.pool.devices["cpu"].model_copy(update={"least": 0, "most": None, "bundle": None})}
    devices = here.pool.devices | unscaled
    assert (there.switching, there.settings, there.pool.devices) == (here.switching, here.settings, devices)
    assert (there.gateway.max_requests, there.gateway.keys) == (77, None)
    assert there.store is None and there.pool.ray is None and "keys.yaml" not in files[NAME]
