"""Stream schedulers, which decide the stream from which the next packet is filled.

A scheduler is a pure function of what is known of a stream; streams are served in ascending order of its result. The
names and orders come from "QoS-aware LLM serving over QUIC" (Sec. 4); what the paper leaves open is stated below.

- ``fcfs``: the stream that was opened first, to its end.
- ``rr``: in rotation, a packet each.
- ``edf``: the nearest deadline. Late streams go on (soft); streams without a deadline come last, in rotation.
- ``abs``: absolute priority by urgency. Within one urgency as RFC 9218 has it: one after the other, and behind them, in
  rotation, streams with a response of which parts are of use (``i``).
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
    """The streams of one tenant, which share its turns.

    Args:
        served_bytes: Bytes that the tenant was served on this connection; a tenant that comes back starts level with
            the others.
    """

    served_bytes: int = 0


@dataclass(slots=True)
class StreamState:
    """What a scheduler may know of a stream.

    Args:
        stream_id: Number of the stream, which grows in the order of opening.
        deadline_s: When what the stream has to send next is due, on the clock of the connection; infinite for none.
        urgency: Urgency 0..7, lower first.
        incremental: Whether the bytes are of use before the last one.
        turn: The count of services of any stream at this stream's last service, at first at its opening.
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
    """Return the scheduler with this name.

    Raises: ConfigError for an unknown name.
    """
    if name not in SCHEDULERS:
        raise ConfigError(f"{name!r} is not one of the stream schedulers {', '.join(SCHEDULERS)}")
    return SCHEDULERS[name]
