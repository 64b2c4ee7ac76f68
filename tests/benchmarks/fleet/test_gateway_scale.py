"""The benchmark of a gateway's size, once and small."""

from collections.abc import Callable

import pytest

from benchmarks.fleet.gateway_scale import World, turns
from sloserve.fleet.gateway.held import HeldRequests


def test_requests_of_the_benchmark_find_an_instance_of_their_model() -> None:
    world = World(20, 40, planned=True)
    held = HeldRequests(world.instances, 10)
    for request in world.requests(30):
        flight = held.arrived(request, 0.0)
        assert flight is not None and flight.instance.active == request.model
        assert (
            flight.instance.name in world.instances.planned(request.model, "interactive")
            or request.model[-1] in "13579"
        )
    first, *_ = turns(0)
    assert first.prefix_ids and first.model == "model0"


@pytest.mark.slow
def test_quick(printed: Callable[..., str]) -> None:
    head, row = printed("fleet.gateway_scale", "--quick").strip().splitlines()
    found = dict(zip(head.split(), row.split(), strict=True))
    assert found["instances"] == "10" and float(found["choice_1_model_us"]) > 0.0
