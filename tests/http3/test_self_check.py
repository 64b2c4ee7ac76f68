"""What is looked at before a listener starts: whether aioquic's private parts are what they were."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aioquic.h3.connection import H3Connection
from aioquic.quic.connection import QuicConnection

from sloserve.core.errors import ConfigError
from sloserve.http3 import self_check
from sloserve.http3.bounded_h3 import BoundedH3
from sloserve.http3.scheduled_connection import ScheduledConnection
from sloserve.http3.stream_order import StreamOrder
from tests.shell import with_proxies


def overrides(ours: type, theirs: type) -> list[tuple[type, str]]:
    """Private parts that we replace. Were one renamed, nothing would call ours."""
    return [(ours, name) for name in vars(ours) if name.startswith("_") and name[:2] != "__" and hasattr(theirs, name)]


REPLACED = overrides(BoundedH3, H3Connection) + overrides(ScheduledConnection, QuicConnection)


@pytest.fixture
def untried() -> None:
    for tried in (self_check._tried, self_check._failing):
        tried.cache_clear()


@pytest.mark.slow
def test_all_schedulers_and_bounds_work_with_what_is_installed() -> None:
    for name in self_check.ORDERS:
        self_check.check(name)


@pytest.mark.slow
@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(("ours", "name"), REPLACED, ids=[f"{ours.__name__}.{name}" for ours, name in REPLACED])
def test_each_part_that_is_replaced_is_missed(monkeypatch: pytest.MonkeyPatch, ours: type, name: str) -> None:
    monkeypatch.delattr(ours, name)
    with pytest.raises(ConfigError, match="^aioquic .* reinstall aioquic"):
        self_check.check("edf")
    for tried in (self_check._tried, self_check._failing):
        tried.cache_clear()


@pytest.mark.usefixtures("untried")
def test_the_check_at_start_refuses_an_order_without_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamOrder, "key", lambda *_: (0,))
    with pytest.raises(ConfigError, match=r"aioquic .* in the order of edf: \d+ instead of 3102"):
        self_check.check("edf")
    self_check._tried.cache_clear()


@pytest.mark.slow
def test_what_fails_is_named_and_an_exception_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"one holds": lambda: True, "another does": lambda: False, "a third": lambda: bool(1 / 0)}
    monkeypatch.setattr(self_check, "PROBES", broken)
    monkeypatch.setattr(self_check, "_failing", self_check.failing)
    with pytest.raises(ConfigError, match="aioquic .*: these checks failed: another does, a third; reinstall"):
        self_check.check("edf")


@pytest.mark.slow
def test_the_check_at_start_refuses_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "AIOQUIC", (1, 6))
    with pytest.raises(ConfigError, match="aioquic 1.7.* is installed, and HTTP/3 needs 1.6: pip install"):
        self_check.check("edf")
    self_check.check("edf", any_version=True)


@pytest.mark.slow
def test_the_newest_aioquic(tmp_path: Path) -> None:
    """A canary: of a release that the extra does not allow yet it says whether it may, of others that they work."""
    quiet = ["--quiet", "--disable-pip-version-check"]
    fetch = [sys.executable, "-m", "pip", "install", *quiet, "--no-deps", "--target", str(tmp_path), "aioquic"]
    if subprocess.run(fetch, env=with_proxies(), capture_output=True, timeout=120).returncode:
        pytest.skip("NOT TESTED: the newest aioquic cannot be had")
    code = """if True:
        import importlib.metadata, json
        from sloserve.core.errors import ConfigError
        from sloserve.http3 import self_check
        said = ""
        try:
            for name in self_check.ORDERS:
                self_check.check(name, any_version=True)
        except ConfigError as error:
            said = str(error)
        print(json.dumps([importlib.metadata.version("aioquic"), said]))"""
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "PYTHONPATH": path}
    tried = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environ,
    )
    assert tried.returncode == 0, tried.stderr
    version, said = json.loads(tried.stdout)
    if tuple(map(int, version.split(".")[:2])) == self_check.AIOQUIC:
        assert said == ""
    else:
        pytest.skip(f"aioquic {version} is out, and the extra http3 does not allow it; {said or 'all probes pass'}")
