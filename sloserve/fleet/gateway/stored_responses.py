"""Responses that engines store, so that a request may continue one by its id: in the memory of one engine alone."""

import asyncio
from collections.abc import Collection
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.errors import InvalidRequest
from sloserve.fleet.client_routes import RESPONSES
from sloserve.fleet.gateway.gateway_instance import SentRequest
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.held import HeldTooLong
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.instances import Instances
from sloserve.fleet.gateway.salts import FleetSecret

_LOOK_S: Final = 0.05
"""Seconds between two looks for room at the one instance that can serve a request."""
_FIELD: Final = "previous_response_id"
_SEND_ALL: Final = "send the conversation along in input"


class StoredResponses:
    """Knows which instance has which response.

    Args:
        secret: Secret of the fleet, which makes and reads ids.
        keeping: Models of which engines store responses.
        instances: Instances of the fleet.
        clock: Clock of this process.
    """

    def __init__(self, secret: FleetSecret, keeping: Collection[str], instances: Instances, clock: Clock) -> None:
        self._secret, self._keeping, self._instances, self._clock = secret, keeping, instances, clock

    def new_id(self, request: GatewayRequest, instance: str) -> str | None:
        """Make the id of the response to a request at an instance; ``None`` where none is stored."""
        if request.route != RESPONSES or request.model not in self._keeping:
            return None
        return self._secret.response_id(request.tenant.name, instance)

    def instance_of(self, request: GatewayRequest) -> str | None:
        """Return the instance that alone can serve a request; ``None`` for a request that continues no response.

        Raises: InvalidRequest for a response that is not stored.
        """
        if request.previous is None:
            return None
        if request.model not in self._keeping:
            raise InvalidRequest(_FIELD, request.previous, f"left out: this model stores no responses; {_SEND_ALL}")
        found = self._secret.instance_of(request.previous, request.tenant.name, self._instances.by_name)
        if found is None:
            raise _lost(request)
        return found

    async def flight(self, request: GatewayRequest, held: HeldRequest, name: str) -> SentRequest:
        """Book a request with its instance, once that serves its model and has room.

        Raises: HeldTooLong; InvalidRequest if the instance is gone.
        """
        began_s = self._clock.monotonic_s()
        try:
            while True:
                now_s, instance = self._clock.monotonic_s(), self._instances.by_name.get(name)
                if instance is None:
                    raise _lost(request)
                if instance.serves(held.model, now_s) and instance.room > 0:
                    return self._instances.send(instance, held.work, held.prompt, now_s)
                if now_s >= held.refused_s:
                    raise HeldTooLong
                await asyncio.sleep(_LOOK_S)
        finally:
            held.held_s += self._clock.monotonic_s() - began_s


def _lost(request: GatewayRequest) -> InvalidRequest:
    allowed = f"the id of a response that this fleet still has; {_SEND_ALL}"
    return InvalidRequest(_FIELD, request.previous, allowed)
