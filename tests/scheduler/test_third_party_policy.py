"""A policy package that sloserve has never heard of: installed, chosen by name, and obeyed by vLLM's scheduler."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.profile import load_profile
from tests.forked import run_forked

ROOT = Path(__file__).parents[2]

CHOOSE = """
import json
from sloserve.scheduler.registry import make_policy, policy_names
policy = make_policy("last-come", {"short_first_tokens": "64"})
print("found", json.dumps([list(policy_names()), type(policy).__name__, policy.settings.short_first_tokens]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed as a user would, but into a folder of its own and without a network."""
    source = tmp_path_factory.mktemp("source") / "third_party_policy"
    shutil.copytree(ROOT / "examples" / "third_party_policy", source)
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(target), str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return target


def answer(code: str, installed: Path) -> Any:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "ERROR"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("found ")]
    return json.loads(line.removeprefix("found "))


@pytest.mark.slow
def test_is_found_by_name_and_takes_its_options(installed: Path) -> None:
    names, policy, tokens = answer(CHOOSE, installed)
    assert "last-come" in names and "edf" in names
    assert (policy, tokens) == ("LastCome", 64)


def serve(installed: Path) -> None:
    """Where the package can be found, in a process that has not looked for policies yet."""
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    sys.path.insert(0, str(installed))
    settings = EngineSettings(kv_blocks=40, max_num_seqs=1, max_model_len=256)
    engine = VirtualEngine(settings, load_profile("h100-llama3-8b"), {"sloserve": {"policy": "last-come"}})
    slo = DEFAULT_CLASSES.slo(None, Targets())
    log = engine.run([WorkloadRequest(f"r{i}", 0.0, 20, 5, slo) for i in range(4)])
    ended = sorted(log.requests, key=lambda r: r.finish_s)
    assert [r.request.request_id for r in ended] == ["r3", "r2", "r1", "r0"]


@pytest.mark.vllm
def test_vllm_obeys_it(installed: Path) -> None:
    run_forked(partial(serve, installed))


def test_is_as_short_as_promised() -> None:
    assert len((ROOT / "examples" / "third_party_policy" / "last_come.py").read_text().splitlines()) <= 30
