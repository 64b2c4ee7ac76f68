"""How long a fleet's gateway held a request, and what targets it had when it came to the gateway.

The gateway states to an engine what is left of the targets. A replay with more engines needs what they were, since it
would have held the request for a shorter time.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sloserve.core.slo import MAX_TARGET_S, Targets

HEADER: Final = "x-slo-held-ms"
"""Header of a gateway's requests to engines, with a structured field: ``1250;ttft-ms=500;e2e-ms=30000``."""
KEY: Final = "sloserve_held"
"""Key that our front end sends to our scheduler, never a client: see :func:`with_held`."""
MOST_S: Final = 3600.0
"""Longest time for which a request counts as held."""
_FORM: Final = re.compile(r"(\d{1,9})(?:;ttft-ms=(\d{1,12}))?(?:;e2e-ms=(\d{1,12}))?", re.ASCII)


class Held(NamedTuple):
    """The time before a request came to its engine.

    Args:
        held_s: Seconds for which the gateway held it.
        ttft_s: Target of its first token in seconds from its arrival at the gateway; ``None`` for none.
        e2e_s: Target of its last token in seconds from then; ``None`` for none.
    """

    held_s: float
    ttft_s: float | None
    e2e_s: float | None


def left_ms(total_s: float, late_s: float = 0.0) -> int:
    """Return the rest of a time that counts from the client's request, as a header states it in milliseconds.

    The result is at least 1, which is due now: if no time is left, the next server has to report it.

    Args:
        total_s: The whole time in seconds.
        late_s: Seconds since the client's request.
    """
    return max(round((min(total_s, MAX_TARGET_S) - late_s) * 1e3), 1)


def held_header(held_s: float, targets: Targets) -> str:
    """Return the value of :data:`HEADER`.

    Args:
        held_s: Seconds for which the gateway held the request.
        targets: Targets of the request when it came to the gateway.
    """
    text = f"{held_s * 1e3:.0f}"
    for name, target_s in (("ttft-ms", targets.ttft_s), ("e2e-ms", targets.e2e_s)):
        if target_s is not None:
            text += f";{name}={left_ms(target_s)}"
    return text


def read_held(raw: bytes) -> Held | None:
    """Return what :func:`held_header` states; ``None`` for any other value."""
    found = _FORM.fullmatch(raw.decode("latin-1").strip())
    if found is None:
        return None
    held_s, *targets_s = (None if text is None else int(text) / 1e3 for text in found.groups())
    return _checked(Held(min(held_s or 0.0, MOST_S), *targets_s))


def with_held(extra_args: Mapping[str, Any] | None, held: Held) -> dict[str, Any]:
    """Return ``extra_args`` with what is known of the time before a request came."""
    return {**(extra_args or {}), KEY: list(held)}


def stated_held(extra_args: Mapping[str, Any] | None) -> Held | None:
    """Return what :func:`with_held` wrote; ``None`` for a request that no gateway has held."""
    value = (extra_args or {}).get(KEY)
    if not isinstance(value, list) or len(value) != len(Held._fields) or value[0] is None:
        return None
    return _checked(Held(*value)) if all(one is None or isinstance(one, float) for one in value) else None


def _checked(held: Held) -> Held | None:
    """Return ``held`` if it can be true of a request, else ``None``."""
    targets_s = [target_s for target_s in held[1:] if target_s is not None]
    is_possible = 0.0 <= held.held_s <= MOST_S and all(0.0 < target_s <= MAX_TARGET_S for target_s in targets_s)
    return held if is_possible else None
