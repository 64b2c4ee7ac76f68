"""An engine whose settings name a derived profile says so in its log."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("profile", ["h200-gpt-oss-120b", "h100-llama3-8b"])
def test_an_engine_that_starts_from_a_derived_profile_warns_with_its_error(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, profile: str
) -> None:
    monkeypatch.setattr(logging.getLogger("sloserve"), "propagate", True)
    with caplog.at_level(logging.WARNING, logger="sloserve"):
        build("edf", section={"profile": profile})
    assert (f"{profile} (derived, " in caplog.text) == (profile == "h200-gpt-oss-120b")
