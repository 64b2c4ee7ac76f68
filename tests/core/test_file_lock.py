"""Locks on files, of which others may ask who holds them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sloserve.core.file_lock import OwnLock, holder_of


@pytest.mark.slow
def test_the_holder_of_a_lock_is_known_while_it_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert holder_of(path) is None, "no file"
    lock = OwnLock(path, "a test")
    ask = (
        "import sys, pathlib; from sloserve.core.file_lock import holder_of as of; print(of(pathlib.Path(sys.argv[1])))"
    )
    asked = subprocess.run([sys.executable, "-c", ask, str(path)], capture_output=True, text=True, timeout=60)
    assert asked.stdout.strip() == str(os.getpid()) == str(holder_of(path))
    lock.close()
    assert holder_of(path) is None, "nobody holds it"
    OwnLock(path, "a test").close()


def test_a_lock_that_is_closed_twice_leaves_another_file_open(tmp_path: Path) -> None:
    """The system gives the descriptor of a file that is closed to the next one that is opened."""
    lock = OwnLock(tmp_path / "a.lock", "a test")
    lock.close()
    others = [(tmp_path / str(number)).open("wb") for number in range(4)]
    lock.close()
    for other in others:
        other.write(b"x")
        other.close()
