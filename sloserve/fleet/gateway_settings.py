"""Settings of a gateway, in the section ``gateway`` of a fleet's file."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sloserve.core.files.model import NOT_TINY, Allowed

_COUNT: Final = Allowed("a whole number >= 1")
_SECONDS: Final = Allowed("a number of seconds above 0, up to 86400")
SHARED: Final = "fleet"
"""Value of ``prefix_sharing`` with which tenants share computed prefixes."""
Count = Annotated[int, Field(strict=True, ge=1)]
_SESSIONS: Final = Allowed("a whole number from 0 to 1048576")
Sessions = Annotated[int, Field(strict=True, ge=0, le=2**20)]
Seconds = Annotated[float, Field(strict=True, gt=0.0, le=86_400.0), NOT_TINY]


_ORIGIN: Final = re.compile(r"\*|https?://[^/\s*]+")


def _origins(values: tuple[str, ...]) -> tuple[str, ...]:
    if not all(_ORIGIN.fullmatch(value) for value in values):
        raise ValueError
    return values


class CorsSettings(BaseModel):
    """Pages of other origins that browsers let use the gateway.

    Args:
        origins: Origins of these pages, or ``*`` for all; none by default.
        max_age_s: Seconds for which a browser need not ask again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    origins: Annotated[
        tuple[str, ...], AfterValidator(_origins), Allowed("a list of origins, as https://app.example.org, or of '*'")
    ] = ()
    max_age_s: Annotated[int, Field(strict=True, ge=0, le=86_400), Allowed("a whole number from 0 to 86400")] = 600


class GatewaySettings(BaseModel):
    """Limits of one gateway.

    Args:
        max_requests: The most concurrent requests, held and streaming.
        max_held: The most of them that may wait for an instance.
        max_body_mib: The most MiB in memory for bodies of all requests that have no first byte yet.
        hold_max_s: Longest wait for an instance, in seconds.
        silent_max_s: Seconds of inactivity of its engine or client after which a stream is ended.
        affinity: Whether a prompt goes where the gateway sent its prefix before, as far as that pays.
        max_sessions: The most sessions of which the gateway remembers the instance that served them; 0 for none.
        cors: Pages of other origins that may use the gateway.
        prefix_sharing: Range in which requests share computed prefixes: each tenant, or the whole fleet.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_requests: Annotated[Count, _COUNT] = 4096
    max_held: Annotated[Count, _COUNT] = 1024
    max_body_mib: Annotated[Count, _COUNT] = 512
    hold_max_s: Annotated[Seconds, _SECONDS] = 60.0
    silent_max_s: Annotated[Seconds, _SECONDS] = 600.0
    affinity: Annotated[bool, Field(strict=True), Allowed("true or false")] = True
    max_sessions: Annotated[Sessions, _SESSIONS] = 16_384
    prefix_sharing: Annotated[Literal["tenant", "fleet"], Allowed("tenant or fleet")] = "tenant"
    cors: Annotated[CorsSettings, Allowed("a mapping with origins, max_age_s")] = CorsSettings()
