"""Use by tenant and hour: requests, tokens of prompts and outputs, and promises, and the same of lines of batches.

A gateway adds what it has counted since it last did so. The rows of the current hours also tell each gateway what the
others have counted, for limits per minute. Lines of batches are added with their results, by the agents that served
them, in columns of their own: no limit per minute holds for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from sloserve.fleet.store.database import Database, Session

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
        promises_kept: Number of promises that were kept.
        promises_broken: Number of promises that were broken.
        promises_withdrawn: Number of promises to clients that left before the end.
        batch_lines: Number of lines of batches that were sent to an engine and have ended.
        batch_prompt_tokens: Tokens of their prompts.
        batch_output_tokens: Tokens of their outputs.
        batch_engine_ms: Time that these lines were in an engine, in ms.
    """

    tenant: str
    hour_s: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    promises_kept: int = 0
    promises_broken: int = 0
    promises_withdrawn: int = 0
    batch_lines: int = 0
    batch_prompt_tokens: int = 0
    batch_output_tokens: int = 0
    batch_engine_ms: int = 0


COUNTED: Final = tuple(field.name for field in fields(UsedInHour))[2:]
"""Names of the counts, in the order in which they are added."""
OF_GATEWAYS: Final = tuple(name for name in COUNTED if not name.startswith("batch_"))
"""Names of the counts that gateways add, the first of all."""
_NONE: Final = dict.fromkeys(COUNTED, 0)


class Usage:
    """Use in one store. Every method is one transaction; many threads may call them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, used: Mapping[str, Sequence[int]]) -> int:
        """Add to the current hour, and remove rows that are too old; return the beginning of the hour.

        Args:
            used: Counts to add by tenant, in the order of :data:`COUNTED`; the last ones may be left out if they are 0.
        """
        with self._database.transaction() as session:
            return add_use(session, {name: dict(zip(COUNTED, added, strict=False)) for name, added in used.items()})

    def since(self, hours: int) -> list[UsedInHour]:
        """Return the rows of the last ``hours`` hours, the current one counted, by hour and tenant."""
        with self._database.reading() as session:
            first_s = _hour(session.rows("SELECT store_now()")[0][0]) - (hours - 1) * HOUR_S
            found = session.rows(_SINCE, first=first_s)
        return [UsedInHour(str(tenant), *(int(value) for value in values)) for tenant, *values in found]


def add_use(session: Session, used: Mapping[str, Mapping[str, int]]) -> int:
    """Add to the current hour within a transaction, and remove rows that are too old; return the hour's beginning.

    Args:
        session: The transaction.
        used: Counts to add by tenant, and by a name of :data:`COUNTED`; counts that are left out are 0.
    """
    hour_s = _hour(session.rows("SELECT store_now()")[0][0])
    session.given(_ADD, [{"tenant": name, "hour": hour_s, **_NONE, **used[name]} for name in sorted(used)])
    session.change("DELETE FROM tenant_usage WHERE hour_s < :oldest", oldest=hour_s - KEPT_HOURS * HOUR_S)
    return hour_s


def _hour(now_s: float) -> int:
    return int(now_s // HOUR_S) * HOUR_S


_ADD: Final = f"""
    INSERT INTO tenant_usage (tenant, hour_s, {", ".join(COUNTED)})
    SELECT given.tenant, given.hour, {", ".join(f"given.{name}" for name in COUNTED)}
    FROM GIVEN(tenant text, hour bigint, {", ".join(f"{name} bigint" for name in COUNTED)}) WHERE true
    ON CONFLICT (tenant, hour_s) DO UPDATE SET
        {", ".join(f"{name} = tenant_usage.{name} + excluded.{name}" for name in COUNTED)}"""
_SINCE: Final = f"""
    SELECT tenant, hour_s, {", ".join(COUNTED)} FROM tenant_usage
    WHERE hour_s >= :first ORDER BY hour_s, tenant"""
