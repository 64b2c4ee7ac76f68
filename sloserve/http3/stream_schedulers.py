"""Stream schedulers: which stream's bytes go into the next packet.

A scheduler is a pure function of what is known of a stream; streams are served in ascending order of its result. The
names and orders are those of "QoS-aware LLM serving over QUIC" (Sec. 4); what it leaves open is stated below.

- ``fcfs``: the stream that was opened first, to its end.
- ``rr``: in rotation, a packet each.
- ``edf``: the nearest deadline. Late streams go on (soft); streams without a deadline come last, in rotation.
- ``abs``: absolute priority by urgency. Within one urgency as RFC 9218 has it: one after the other, and streams whose
  answer is of use in parts (``i``) in rotation behind them.
- ``ml``: two levels. Urgent streams first, by deadline; all others in rotation.

Rotation is fair among tenants: the tenant that was served the fewest bytes comes first, then its stream that was served
longest ago.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from sloserve.core.errors import ConfigError

DEFAULT_URGENCY, LEAST_URGENT = 3, 7
"""Urgency of a request that states none (RFC 9218, Sec. 4.1); 0 is the most urgent, 7 the least."""

HIGH_URGENCY = 1
"""Streams up to this urgency are the first level of ``ml``."""

Key = tuple[float, ...]


@dataclass(slots=True, weakref_slot=True, eq=False)
class TenantStreams:
    """Streams of one tenant share its turns.

    served_bytes: what it was served on this connection; one that comes back starts level with the others.
    """

    served_bytes: int = 0


@dataclass(slots=True)
class StreamState:
    """What a scheduler may know of a stream.

    stream_id: grows in the order of opening. deadline_s: when what it has to send next is due, on the clock of the
    connection; infinite for none. urgency: 0..7, lower first. incremental: its bytes are of use before the last one.
    turn: grows with each service of any stream; that of this stream's last service, at first of its opening.
    """

    stream_id: int
    tenant: TenantStreams
    turn: int = 0
    deadline_s: float = math.inf
    urgency: int = DEFAULT_URGENCY
    incremental: bool = False


def fcfs(state: StreamState) -> Key:
    return (state.stream_id,)


def rr(state: StreamState) -> Key:
    return (state.tenant.served_bytes, state.turn)


def edf(state: StreamState) -> Key:
    if math.isinf(state.deadline_s):
        return (math.inf, state.urgency, *rr(state))
    return (state.deadline_s, state.stream_id)


def absolute(state: StreamState) -> Key:
    if state.incremental:
        return (state.urgency, 1, *rr(state))
    return (state.urgency, 0, state.tenant.served_bytes, state.stream_id)


def ml(state: StreamState) -> Key:
    if state.urgency <= HIGH_URGENCY:
        return (0, state.deadline_s, state.stream_id)
    return (1, *rr(state))


Scheduler = Callable[[StreamState], Key]

SCHEDULERS: dict[str, Scheduler] = {"edf": edf, "ml": ml, "abs": absolute, "rr": rr, "fcfs": fcfs}


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name. Raises: ConfigError."""
    if name not in SCHEDULERS:
        raise ConfigError(f"{name!r} is not one of the stream schedulers {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name]
