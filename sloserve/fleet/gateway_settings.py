"""Settings of a gateway, in the section ``gateway`` of a fleet's file."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.files.model import NOT_TINY, Allowed

_COUNT: Final = Allowed("a whole number >= 1")
_SECONDS: Final = Allowed("a number of seconds above 0, up to 86400")
Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, gt=0.0, le=86_400.0), NOT_TINY]


class GatewaySettings(BaseModel):
    """Limits of one gateway.

    Args:
        max_requests: The most concurrent requests, held and streaming.
        max_held: The most of them that may wait for an instance.
        max_body_mib: The most MiB in memory for bodies of all requests that have no first byte yet.
        hold_max_s: Longest wait for an instance, in seconds.
        silent_max_s: Seconds of inactivity of its engine or client after which a stream is ended.
        affinity: Whether a prompt goes where the gateway sent its prefix before, as far as that pays.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_requests: Annotated[Count, _COUNT] = 4096
    max_held: Annotated[Count, _COUNT] = 1024
    max_body_mib: Annotated[Count, _COUNT] = 512
    hold_max_s: Annotated[Seconds, _SECONDS] = 60.0
    silent_max_s: Annotated[Seconds, _SECONDS] = 600.0
    affinity: Annotated[bool, Field(strict=True), Allowed("true or false")] = True
