"""What stands in the shell's environment changes no test."""

import os
from unittest import mock

import pytest

from tests import shell

SETTINGS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HOME": "/no/such",
    "OPENAI_API_KEY": "key",
    "SLOSERVE_ADMIN_KEY": "key",
    "SLOSERVE_LOG_FORMAT": "json",
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
