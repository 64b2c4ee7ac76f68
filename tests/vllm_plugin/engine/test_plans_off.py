"""In which configurations vLLM schedules by itself, and in which plans may not pause."""

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.errors import ConfigError
from sloserve.kernels.kv_layout import KVGroups

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vllm_config.model_config.runner_type": "pooling"}, "pooling models"),
        ({"use_pp": True}, "pipeline parallelism"),
        ({"is_encoder_decoder": True}, "encoder-decoder models"),
    ],
)
def test_plans_are_off_by_name(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    from sloserve.vllm_plugin.engine import compat

    scheduler = build("edf").scheduler
    assert compat.identity_reason(scheduler) is None
    for path, value in changes.items():
        owner, _, name = path.rpartition(".")
        monkeypatch.setattr(attrgetter(owner)(scheduler) if owner else scheduler, name, value)
    assert compat.identity_reason(scheduler) == reason


def test_no_pauses_with_drafts_on_the_v2_runner_or_beside_the_connector_of_others(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sloserve.vllm_plugin.engine import compat

    scheduler = build("edf").scheduler
    assert compat.may_pause(scheduler, alone=False)
    scheduler.num_spec_tokens = 2
    for is_v2 in (True, False):
        monkeypatch.setattr(type(scheduler.vllm_config), "use_v2_model_runner", is_v2)
        assert compat.may_pause(scheduler, alone=True) == (not is_v2)
    scheduler.num_spec_tokens, scheduler.connector = 0, SimpleNamespace()
    assert compat.may_pause(scheduler, alone=True) and not compat.may_pause(scheduler, alone=False)


def test_a_shadow_policy_that_counts_one_block_size_does_not_end_the_plans_of_another(
    build: Callable[..., Any],
) -> None:
    groups = (KVGroups(1, 16), KVGroups(1, 16, window_tokens=64))
    scheduler = build("edf", kv_groups=groups).scheduler
    with pytest.raises(ConfigError, match="the shadow policy cannot plan with a KV cache of several groups"):
        scheduler.set_policies(shadow_policy="fastserve")
    assert scheduler.status()["plans_off"] is None and scheduler._planner is not None
    scheduler.set_policies("fastserve")
    assert "several groups" in scheduler.status()["plans_off"] and scheduler._planner is None
    scheduler.set_policies("edf", "sjf")
    assert scheduler.status()["plans_off"] is None and scheduler._planner.shadow is not None
