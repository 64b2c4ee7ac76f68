"""What is shipped: wheels that need neither compiler nor checkout, and a source distribution that builds them.

A fleet has stand-ins for engines, whose script is copied from the tests; the server has vLLM's CPU build, installed as
``docs/install.md`` says.

``SLOSERVE_WHEELS`` names a folder of built ones, and ``SLOSERVE_PYTHONS`` further interpreters that they are tried
with, space-separated: ``deploy/release.sh`` sets both.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from sloserve.scheduler.registry import FOR_EXPERIMENTS, GROUP
from tests import bounded
from tests.architecture.test_wheel_and_checkout import PROFILES, WHEEL
from tests.fleet.stand_in.engine import reply
from tests.orphans import kill_with_children
from tests.ports import free_port
from tests.shell import with_proxies

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PYTHONS = [sys.executable, *os.environ.get("SLOSERVE_PYTHONS", "").split()]
FOUND: dict[str, bytes] = {}
"""What the first interpreter's simulation came to."""
MOST_MIB = 130
"""Of what the base installs."""
STAND_IN = ROOT / "tests" / "fleet" / "stand_in"
FLEET = """
models: {anna: {model: m/anna, profile: h100-llama3-8b}, bert: {model: m/bert, profile: h100-llama3-8b}}
hosts: {n: {device: h100, devices: 1}}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all; the wheel is built from the source distribution."""
    if "SLOSERVE_WHEELS" in os.environ:
        return Path(os.environ["SLOSERVE_WHEELS"]).resolve()
    return _built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, which takes no compiler."""
    (found,) = _built(tmp_path_factory.mktemp("source"), "--sdist").glob("*.tar.gz")
    return found


def _built(folder: Path, *which: str) -> Path:
    """Build the checkout's distributions into the folder and return it. which: flags that choose some."""
    build = subprocess.run(
        [sys.executable, "-m", "uv", "build", "--quiet", *which, "--out-dir", str(folder), str(ROOT)],
        env=with_proxies(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    if build.returncode and "error sending request" in build.stderr:
        pytest.skip("NOT TESTED: the wheel, since no package index is reached")
    assert build.returncode == 0, build.stderr
    return folder


def _wheel(built: Path, python: str) -> Path:
    """Return the wheel for an interpreter; by its file, since nobody's index is asked for the name."""
    program = "import sys, platform; print(min(sys.version_info[1], 12), platform.machine())"
    minor, machine = subprocess.run(
        [python, "-c", program], check=True, capture_output=True, text=True, timeout=280
    ).stdout.split()
    (found,) = built.glob(f"sloserve-*-cp3{minor}-*{machine}.whl")
    return found


@pytest.fixture(scope="module", params=PYTHONS)
def bare(request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", request.param, str(folder)], check=True, timeout=280)
    programs = folder / "bin"
    wanted = ["--refresh-package", "sloserve", f"{_wheel(built, request.param)}[sim,fleet]"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(programs / "python"), *wanted]
    subprocess.run(install, env=with_proxies(), check=True, timeout=280)
    return programs


@pytest.fixture(scope="module")
def with_engine(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment as the page on installing makes it. PIP_FIND_LINKS has the build of torch."""
    folder = tmp_path_factory.mktemp("engine")
    page = (ROOT / "docs" / "install.md").read_text()
    (commands,) = re.findall(r"```text\n(cat > overrides.*?)sloserve serve", page, re.DOTALL)
    assert set((ROOT / "overrides.txt").read_text().splitlines()[2:]) <= set(commands.splitlines())
    if links := os.environ.get("PIP_FIND_LINKS"):
        commands = commands.replace("--torch-backend cpu", f"--find-links {links}")
    commands = commands.replace("dist/sloserve-*.whl", str(_wheel(built, sys.executable)))
    commands = commands.replace("uv pip install", "uv pip install --quiet --refresh-package sloserve")
    subprocess.run(
        [sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, ".venv"],
        cwd=folder,
        check=True,
        timeout=280,
    )
    environment = with_proxies() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["VIRTUAL_ENV"] = str(folder / ".venv")
    subprocess.run(["bash", "-ec", commands], cwd=folder, env=environment, check=True, timeout=280)
    return folder / ".venv" / "bin"


@contextmanager
def serving(bare: Path, folder: Path, *arguments: str, others: Path | None = None) -> Iterator[httpx.Client]:
    """A client of what ``sloserve`` serves until SIGTERM. others: a further folder of programs."""
    path = str(bare) if others is None else f"{bare}:{others}"
    environment = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(folder)}
    process = subprocess.Popen(
        [str(bare / "sloserve"), *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = []
        with bounded.within(f"sloserve {arguments[0]} to be ready", 240.0):
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"\bready\b.*(http://127\.0\.0\.1:\d+)", line):
                    break
            else:
                pytest.fail("".join(said))
        with httpx.Client(base_url=found[1], timeout=60) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        with bounded.within(f"the end of sloserve {arguments[0]} after SIGTERM"):
            said.append(process.stdout.read())
            assert process.wait() == 0, "".join(said)
    finally:
        kill_with_children(process)
        process.stdout.close()


def ran(bare: Path, folder: Path, *arguments: str) -> str:
    """What ``sloserve`` prints where PATH has nothing but its own environment."""
    environment = {"PATH": str(bare), "HOME": str(folder)}
    command = [str(bare / "sloserve"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.whole
def test_the_wheel_holds_examples_page_and_kernels_and_no_tests(built: Path) -> None:
    (wheel, *_) = built.glob("*x86_64.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "configs/serve.yaml",
        "configs/grafana/sloserve.json",
        "wire/page/page.js",
        "scheduler/presets/chat.yaml",
    ):
        assert f"sloserve/{name}" in names
    (stub,) = (name for name in names if name.endswith("/_csrc.pyi"))
    assert any(name.startswith(stub.removesuffix("pyi")) and name.endswith(".so") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


@pytest.mark.whole
def test_the_source_distribution_has_what_a_build_needs_and_little_else(source: Path) -> None:
    with tarfile.open(source) as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert folders == {"sloserve", "csrc", "configs"}


@pytest.mark.whole
def test_it_works_without_compiler_and_checkout(bare: Path, tmp_path: Path) -> None:
    assert "simulate" in ran(bare, tmp_path, "--help")
    listed = json.loads(ran(bare, tmp_path, "configs", "--json"))
    policies = json.loads(ran(bare, tmp_path, "policies", "--json"))
    assert set(policies["servers"]) == WHEEL[GROUP] and set(policies["experiments"]) == WHEEL[FOR_EXPERIMENTS]
    workloads = json.loads(ran(bare, tmp_path, "workloads", "--json"))
    assert set(workloads["profile"]) == PROFILES["sloserve"] and workloads["experiment"] == {}
    copied = ran(bare, tmp_path, "configs", "serve.yaml", "slo-10s.yaml", "--to", "mine").split()
    assert copied == ["mine/serve.yaml", "mine/slo-10s.yaml"] and set(listed) >= {"serve.yaml", "slo-10s.yaml"}
    flags = [
        "--workload",
        "sharegpt-poisson",
        "--policy",
        "stock,auto",
        "--load",
        "1.5",
        "--slo",
        "mine/slo-10s.yaml",
        "--max-requests",
        "60",
    ]
    ran(bare, tmp_path, "simulate", "--engine", "model", *flags, "--seeds", "1")
    found = (tmp_path / "out" / "runs.csv").read_bytes()
    assert FOUND.setdefault("runs", found) == found, "another interpreter's wheel decided otherwise"


@pytest.mark.whole
def test_advice_is_given_and_its_settings_pass(bare: Path, tmp_path: Path) -> None:
    small = "--workload chat-batch-mix --profile h100-llama3-8b --load 1.5 --seeds 3 --max-requests 60 --policy edf"
    tried = "--tune max_num_batched_tokens=1024 --admission none --no-confirm --out serve.yaml"
    advised = ran(bare, tmp_path, "advise", *small.split(), *tried.split())
    assert "advice: " in advised and "wrote serve.yaml" in advised
    assert "policy" in ran(bare, tmp_path, "check-config", "serve.yaml")


@pytest.mark.whole
def test_a_fleet_answers_for_each_of_its_models(bare: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(STAND_IN, tmp_path / "tests" / "fleet" / "stand_in")
    (tmp_path / "fleet.yaml").write_text(FLEET)
    module = ".".join(copied.relative_to(tmp_path).parts)
    with serving(bare, tmp_path, "fleet", "fleet.yaml", "--port", "0", "--engine-module", f"{module}.server") as client:
        for model in ("anna", "bert"):
            body = {"model": model, "prompt": "Hello", "max_tokens": 8}
            answer = client.post("/v1/completions", json=body).raise_for_status().json()
            assert answer["choices"][0]["text"] == reply(model, "Hello", 8)


@pytest.mark.whole
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_server_with_vllms_cpu_build_reports_on_a_target(with_engine: Path, tmp_path: Path) -> None:
    """vLLM's start on a CPU runs lscpu, which it looks for on PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "lscpu").symlink_to(shutil.which("lscpu") or pytest.skip("NOT TESTED: a CPU engine needs lscpu"))
    flags = ("serve", "builtin:tiny", "--policy", "auto", "--port", str(free_port()))
    with serving(with_engine, tmp_path, *flags, others=programs) as client:
        body = {"model": "builtin:tiny", "prompt": "Hello", "max_tokens": 8}
        targets = {"x-slo-ttft-ms": "60000", "x-slo-report": "1"}
        answer = client.post("/v1/completions", json=body, headers=targets).raise_for_status().json()
        assert answer["slo"]["met"] == {"ttft": True}


@pytest.mark.whole
def test_the_base_is_small(built: Path, tmp_path: Path) -> None:
    uv = [sys.executable, "-m", "uv"]
    target = tmp_path / "base"
    wanted = ["--target", str(target), str(_wheel(built, sys.executable))]
    subprocess.run([*uv, "pip", "install", "--quiet", *wanted], env=with_proxies(), check=True, timeout=280)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    assert size / 2**20 <= MOST_MIB
