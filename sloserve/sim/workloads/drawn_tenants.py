"""Tenants of a workload: names that a header can carry, and which of several tenants sends each request."""

from dataclasses import dataclass, replace
from typing import Final

from sloserve.core import numbers
from sloserve.core.errors import ConfigError, InvalidRequest
from sloserve.core.tenants import LEAST_WEIGHT, MOST_TENANTS, MOST_WEIGHT
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.trace import Trace
from sloserve.wire.headers import MAX_LABEL_CHARS, label

TENANT_ALLOWED: Final = f"a name of at most {MAX_LABEL_CHARS} visible ASCII characters"


def tenant_name(text: str) -> str:
    """Return the name of a tenant as a header would carry it; an empty text is no tenant.

    Raises: ValueError for a name that no header can carry.
    """
    stripped = text.strip()
    try:
        return label("tenant", stripped.encode()) if stripped else ""
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def parse_parts(flag: str, text: str) -> dict[str, float]:
    """Return tenants with a number each: ``acme=3,globex``, where a tenant without a number has 1.

    Args:
        flag: The option that ``text`` was given for, for the message.
        text: The comma-separated tenants.

    Raises: ConfigError.
    """
    found: dict[str, float] = {}
    for one in text.split(","):
        name, equals, number = one.partition("=")
        try:
            name, part = tenant_name(name), numbers.number(number) if equals else 1.0
        except ValueError:
            name, part = "", 0.0
        if not name or name in found or not LEAST_WEIGHT <= part <= MOST_WEIGHT:
            raise ConfigError(
                f"{flag}: {one.strip()!r} is not a tenant that is named once, with a number from {LEAST_WEIGHT:g} to "
                f"{MOST_WEIGHT:g}, such as acme=3; a tenant has {TENANT_ALLOWED}"
            )
        found[name] = part
    if len(found) >= MOST_TENANTS:
        raise ConfigError(f"{flag}: {len(found)} tenants; the most is {MOST_TENANTS - 1}")
    return found


@dataclass(frozen=True, slots=True)
class DrawnTenants:
    """Tenants that send the requests of a workload, drawn at random for each request.

    Args:
        names: Names of the tenants.
        parts: Requests of each tenant in proportion to the others', above 0.
    """

    names: tuple[str, ...]
    parts: tuple[float, ...]

    def drawn(self, trace: Trace, seed: int) -> Trace:
        """Return ``trace`` with a tenant for each request, the same for the same seed, whatever it had before."""
        total = sum(self.parts)
        share = [part / total for part in self.parts]
        places = stream(seed, "tenants").choice(len(self.names), size=len(trace), p=share)
        return replace(trace, tenant=[self.names[place] for place in places.tolist()])
