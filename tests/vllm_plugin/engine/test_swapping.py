"""Which copies of KV the scheduler lets go on beside steps."""

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize(
    ("ends", "alone", "expected"), [(True, True, ["beside"]), (True, False, [3]), (False, True, [3])]
)
def test_only_copies_of_ended_requests_go_on_beside_steps_and_only_without_other_connectors(
    ends: bool, alone: bool, expected: list[Any]
) -> None:
    """Other connectors write blocks without waiting for the engine's stream, which is what a step waits with."""
    from sloserve.vllm_plugin.engine.swapping import Swapping

    noted: list[Any] = []

    def ordered(*args: Any, beside: Any, **kwargs: Any) -> int:
        if beside is not None:
            beside([1, 2, 3])
        return 3

    swapping: Any = Swapping.__new__(Swapping)
    swapping.alone = alone
    swapping._scheduler = SimpleNamespace(
        kv_cache_manager=SimpleNamespace(get_block_ids=lambda request_id: ([1, 2, 3],))
    )
    swapping._connector = SimpleNamespace(update_state_before_preempt=ordered)
    swapping._control = SimpleNamespace(stores=noted.append)
    swapping._beside = lambda block_ids: noted.append("beside")
    assert swapping._store(SimpleNamespace(request_id="r", num_computed_tokens=48), 1.0, ends=ends)
    assert noted == expected
