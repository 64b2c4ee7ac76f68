"""The repository holds what belongs to it, and nothing that a command has left in the checkout."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {".ci", "benchmarks", "clients", "configs", "csrc", "deploy", "docs", "examples", "sloserve", "tests"}


def test_no_command_has_left_its_folder_in_the_repository() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    command = ["git", "ls-files", "-z"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    folders = {name.partition("/")[0] for name in tracked.split("\0") if "/" in name}
    assert folders <= FOLDERS, f"remove {sorted(folders - FOLDERS)}, or name what it is for here"
