"""What stands in the shell's environment changes no test."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests import shell
from tests.shell import TEMPORARY

SETTINGS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HOME": "/no/such",
    "OPENAI_API_KEY": "key",
    "SLOSERVE_ADMIN_KEY": "key",
    "SLOSERVE_LOG_FORMAT": "json",
    "SLOSERVE_ALLOW_UNTESTED_VLLM": "1",
    "FORCE_COLOR": "1",
    "COLUMNS": "40",
}
PROXIES = {"HTTP_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_PROXY": "localhost"}
KEPT = {"SLOSERVE_DATA": "/data", "SLOSERVE_TESTS": "whole", "PIP_INDEX_URL": "https://index.example"}


def test_settings_and_proxies_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_proxies", {})
    with mock.patch.dict(os.environ, {**SETTINGS, **PROXIES, **KEPT}, clear=True):
        shell.leave_out_settings()
        assert dict(os.environ) == KEPT
        assert shell.with_proxies() == KEPT | PROXIES


@pytest.mark.parametrize("name", [*SETTINGS, *PROXIES])
def test_this_run_has_left_them_out(name: str) -> None:
    assert name not in os.environ


@pytest.mark.slow
def test_a_run_from_a_shell_with_settings_leaves_them_out_of_what_it_starts(tmp_path: Path) -> None:
    """Each test below asks its own process; what these start inherits from them."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "test_this_run_has_left", __file__]
    environment = os.environ | SETTINGS | PROXIES | {"HF_HOME": str(tmp_path), TEMPORARY: str(tmp_path)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert f"{len(SETTINGS) + len(PROXIES)} passed" in done.stdout, done.stdout + done.stderr
