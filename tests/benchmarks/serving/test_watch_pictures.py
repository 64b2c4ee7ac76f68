"""The pictures of the live page: a server and a bench take what they are made with."""

from pathlib import Path

import pytest
import yaml

from benchmarks.serving.watch_pictures import SETTINGS, SLO
from sloserve.scheduler.settings import KEY, plugin_settings
from sloserve.sim.workloads.slo_file import read_slo_file

pytestmark = pytest.mark.vllm


def test_requests_are_of_the_classes_of_the_server_with_their_targets(tmp_path: Path) -> None:
    served = plugin_settings({KEY: SETTINGS}).classes
    file = tmp_path / "slo.yaml"
    file.write_text(yaml.safe_dump(SLO), encoding="utf-8")
    sent = read_slo_file(file).table
    assert set(sent.names) == set(served.names) == {"priority", "interactive", "batch"}
    assert {one.name: one.targets for one in served} == {rule.name: rule.targets for rule in sent}
