"""In which configurations vLLM schedules by itself, and in which plans may not pause."""

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vllm_config.model_config.runner_type": "pooling"}, "pooling models"),
        ({"use_pp": True}, "pipeline parallelism"),
        ({"is_encoder_decoder": True}, "encoder-decoder models"),
        ({"has_mamba_layers": True}, "Mamba layers"),
        ({"connector": SimpleNamespace(), "requires_kv_delivery": True}, "a KV connector that requires delivery"),
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


def test_no_pauses_with_drafts_or_beside_the_connector_of_others(build: Callable[..., Any]) -> None:
    from sloserve.vllm_plugin.engine import compat

    scheduler = build("edf").scheduler
    assert compat.may_pause(scheduler, alone=False)
    scheduler.num_spec_tokens = 2
    assert not compat.may_pause(scheduler, alone=True)
    scheduler.num_spec_tokens, scheduler.connector = 0, SimpleNamespace()
    assert compat.may_pause(scheduler, alone=True) and not compat.may_pause(scheduler, alone=False)
