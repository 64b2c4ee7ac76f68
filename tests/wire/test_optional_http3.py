"""What becomes of a server, a fleet and the command line where the package of HTTP/3 has been taken out."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT = """if True:
    import importlib.abc, sys

    class TakenOut(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("aioquic", "pylsqpack") or (name + ".").startswith("sloserve.http3."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, TakenOut())
    {code}
"""
GONE = f"HTTP/3 (--http3, sloserve edge) needs aioquic, which is not installed: pip install -e '.[http3]', in {ROOT}"


def without(code: str, *args: str, ours: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` where aioquic is not installed; ours: and where our modules that need it cannot be loaded."""
    taken = WITHOUT if ours else WITHOUT.replace(' or (name + ".").startswith("sloserve.http3.")', "")
    command = [sys.executable, "-c", taken.replace("{code}", code.strip().replace("\n", "\n    ")), *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_servers_and_the_command_line_load_without_it() -> None:
    """That no other module imports it is held by a contract of pyproject.toml."""
    loads = (
        "import sloserve.api.middleware, sloserve.cli, sloserve.scheduler.config, sloserve.fleet.run.gateway_process"
    )
    tried = without(f"{loads}\nsloserve.cli.main()", "edge", "--help")
    assert tried.returncode == 0 and "--upstream" in tried.stdout, tried.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["edge", "--upstream", "https://engine:8000"],
        ["fleet", "gateway", "configs/fleet-tiny.yaml", "--http3", "--http3-self-signed", "--port", "0"],
    ],
    ids=["edge", "gateway"],
)
def test_a_command_that_needs_it_says_so_in_one_line(command: list[str], tmp_path: Path) -> None:
    state = ["--state", str(tmp_path)] if command[0] == "fleet" else []
    tried = without("from sloserve.cli import main\nmain()", *command, *state, ours=False)
    assert (tried.returncode, tried.stderr.splitlines()[-1:]) == (2, [f"sloserve: {GONE}"]), tried.stderr
    assert "Traceback" not in tried.stderr
