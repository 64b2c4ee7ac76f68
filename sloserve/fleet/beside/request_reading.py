"""Requests as another gateway shows them: read by the code of a fleet's gateway, and never refused.

What the engine would refuse is for the engine to refuse. A body that cannot be read, or that was not kept, leaves what
the headers say; headers that cannot be read leave the defaults.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from sloserve.core.errors import SloServeError
from sloserve.fleet.client_routes import CHAT
from sloserve.fleet.gateway.gateway_request import GatewayRequest, GatewayRequestReader
from sloserve.fleet.gateway.keys import LOCAL, Tenant
from sloserve.scheduler.settings import PluginSettings
from sloserve.wire.asgi import first
from sloserve.wire.body import BYTES_PER_TOKEN

MODEL_HEADER: Final = b"x-gateway-model-name"
"""Header with the model of a request, which body-based routers of the Gateway API's inference extension set."""
_NO_BODY: Final = b"{}"
_TENANT: Final = Tenant(LOCAL)


class HowRead(StrEnum):
    """How much of a request could be read."""

    WHOLE = "whole"
    WITHOUT_SLO = "without-slo"
    """The headers state no SLO that can be read: the class is the default."""
    WITHOUT_BODY = "without-body"


class RequestReading:
    """Reads requests under the settings of a deployment.

    Args:
        settings: Settings with the classes, and what maps to them.
    """

    def __init__(self, settings: PluginSettings) -> None:
        self._reader = GatewayRequestReader(settings)

    def read(
        self, headers: Iterable[tuple[bytes, bytes]], body: bytes | None, path: str, arrival_s: float, size: int = 0
    ) -> tuple[GatewayRequest, HowRead]:
        """Read a request as far as it can be read.

        Args:
            headers: Headers, with names in lower case.
            body: Body; ``None`` if it was not kept.
            path: Path that it asks for.
            arrival_s: Monotonic time of its arrival in seconds.
            size: Number of bytes of a body that was not kept, as far as it is known.
        """
        headers, route = list(headers), path.partition("?")[0]
        tries: Sequence[tuple[list[tuple[bytes, bytes]], bytes, str, HowRead]] = (
            (headers, body or _NO_BODY, route, HowRead.WHOLE if body is not None else HowRead.WITHOUT_BODY),
            ([], body or _NO_BODY, route, HowRead.WITHOUT_SLO),
            (headers, _NO_BODY, CHAT, HowRead.WITHOUT_BODY),
        )
        for shown, read, at, how in tries:
            try:
                request = self._reader.read(shown, read, _TENANT, "", at, arrival_s)
            except SloServeError:
                continue
            return self._completed(request, headers, body, size, how), how
        request = self._reader.read([], _NO_BODY, _TENANT, "", CHAT, arrival_s)
        return self._completed(request, headers, body, size, HowRead.WITHOUT_BODY), HowRead.WITHOUT_BODY

    def _completed(
        self,
        request: GatewayRequest,
        headers: list[tuple[bytes, bytes]],
        body: bytes | None,
        size: int,
        how: HowRead,
    ) -> GatewayRequest:
        if how is HowRead.WITHOUT_BODY:
            request.prompt_tokens = max(max(size, len(body or b"")) // BYTES_PER_TOKEN, 1)
        if not isinstance(request.model, str):
            request.model = first(headers, MODEL_HEADER).decode("latin-1")
        return request
