"""Use by tenant and hour: requests, tokens of prompts and of outputs, of all gateways together.

A gateway adds what it has counted since it last did so. The rows of the current hours also tell each gateway what the
others have counted, for limits per minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sloserve.fleet.store.database import Database

HOUR_S: Final = 3600
KEPT_HOURS: Final = 92 * 24
"""Hours for which rows are kept: 2,208 rows for a tenant at most."""


@dataclass(frozen=True, slots=True)
class UsedInHour:
    """What one tenant has used in one hour, or what is to be added to it.

    Args:
        tenant: Name of the tenant.
        hour_s: Beginning of the hour, in epoch seconds of the store's clock.
        requests: Number of requests.
        prompt_tokens: Tokens of their prompts.
        output_tokens: Tokens of their outputs.
    """

    tenant: str
    hour_s: int
    requests: int
    prompt_tokens: int
    output_tokens: int


class Usage:
    """Use in one store. Every method is one transaction; many threads may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, used: Mapping[str, tuple[int, int, int]]) -> int:
        """Add to the current hour, and remove rows that are too old; return the beginning of the hour.

        Args:
            used: Requests, tokens of prompts and tokens of outputs to add, by tenant.
        """
        with self._database.transaction() as session:
            hour_s = _hour(session.rows("SELECT store_now()")[0][0])
            rows = [
                {"tenant": tenant, "hour": hour_s, "requests": added[0], "prompts": added[1], "outputs": added[2]}
                for tenant, added in sorted(used.items())
            ]
            session.given(_ADD, rows)
            session.change("DELETE FROM tenant_usage WHERE hour_s < :oldest", oldest=hour_s - KEPT_HOURS * HOUR_S)
        return hour_s

    def since(self, hours: int) -> list[UsedInHour]:
        """Return the rows of the last ``hours`` hours, the current one counted, by hour and tenant."""
        with self._database.reading() as session:
            first_s = _hour(session.rows("SELECT store_now()")[0][0]) - (hours - 1) * HOUR_S
            found = session.rows(_SINCE, first=first_s)
        return [UsedInHour(str(tenant), *(int(value) for value in values)) for tenant, *values in found]


def _hour(now_s: float) -> int:
    return int(now_s // HOUR_S) * HOUR_S


_ADD: Final = """
    INSERT INTO tenant_usage (tenant, hour_s, requests, prompt_tokens, output_tokens)
    SELECT given.tenant, given.hour, given.requests, given.prompts, given.outputs
    FROM GIVEN(tenant text, hour bigint, requests bigint, prompts bigint, outputs bigint) WHERE true
    ON CONFLICT (tenant, hour_s) DO UPDATE SET
        requests = tenant_usage.requests + excluded.requests,
        prompt_tokens = tenant_usage.prompt_tokens + excluded.prompt_tokens,
        output_tokens = tenant_usage.output_tokens + excluded.output_tokens"""
_SINCE: Final = """
    SELECT tenant, hour_s, requests, prompt_tokens, output_tokens FROM tenant_usage
    WHERE hour_s >= :first ORDER BY hour_s, tenant"""
