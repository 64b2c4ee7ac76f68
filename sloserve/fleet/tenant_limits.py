"""Limits of the tenants of a fleet: what each may have."""

from typing import Annotated, Final

from pydantic import Field

from sloserve.core.files.model import Allowed
from sloserve.wire.rate_limits import RateQuota

_COUNT: Final = Allowed("a whole number >= 0")
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]


class Quota(RateQuota):
    """Limits of one tenant.

    Args:
        requests: The most requests in the gateway, held and streaming.
        lines: The most lines of its batches that are accepted and have not ended.
        tokens: The most tokens of these lines, of prompts and expected output.
        bytes: The most bytes of its files, and of results that are in no file yet.
        batches: The most batches that have not ended.
    """

    requests: Annotated[Count, _COUNT] = 256
    lines: Annotated[Count, _COUNT] = 400_000
    tokens: Annotated[Count, _COUNT] = 1_000_000_000
    bytes: Annotated[Count, _COUNT] = 10_000_000_000
    batches: Annotated[Count, _COUNT] = 100
