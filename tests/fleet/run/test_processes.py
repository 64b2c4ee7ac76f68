"""``sloserve fleet`` as its operator meets it: real processes, with stand-ins for engines."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STAND_IN = ("--engine-module", "tests.fleet.stand_in.server")


@pytest.mark.slow
def test_the_demonstration_keeps_its_promises_and_leaves_nothing_behind() -> None:
    """Streams of three models on one device, a batch, one engine killed: each line has one result."""
    command = [sys.executable, str(ROOT / "examples" / "demo_fleet.py"), *STAND_IN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept    every accepted line has one result: 90 of 90, 0 twice" in done.stdout
    assert "processes left: 0" in done.stdout and "kill -9 of the engine" in done.stdout


@pytest.mark.slow
def test_a_fault_in_the_file_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(
        "models: {a: {profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1}}"
    )
    command = [sys.executable, "-m", "sloserve.cli", "fleet", str(tmp_path / "fleet.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2 and "fleet.yaml:1:10: models.a.model: is missing" in done.stderr
    assert not (tmp_path / "fleet.state").exists()
