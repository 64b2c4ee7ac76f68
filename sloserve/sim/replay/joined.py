"""Recordings of engines that served one model beside each other, joined to the traffic of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import Arrived, RefusedRequest, RequestEnded
from sloserve.engine.recording.reading import Recording, read_recording


def beside(found: Mapping[str, Sequence[Path]], chosen: Recording) -> list[Recording]:
    """Return the recordings of engines of the same model and sizes that ran when the chosen one ended, with that one.

    A recording that holds nothing yet, or cannot be read, is left out.

    Args:
        found: Segments of the recordings of a folder, by name.
        chosen: One of the recordings.

    Raises: ConfigError if the chosen one has no steps.
    """
    end_s = _end_s(chosen)
    others = [one for paths in found.values() if (one := _readable(paths)) is not None]
    same = [one for one in others if one.head.engine == chosen.head.engine and one.steps and one.arrived]
    return [one for one in same if one.steps[0].start_s < end_s and _end_s(one) > chosen.steps[0].start_s]


def _readable(paths: Sequence[Path]) -> Recording | None:
    try:
        return read_recording(paths)
    except ConfigError:
        return None


def _end_s(recording: Recording) -> float:
    if not recording.steps:
        raise ConfigError("the recording has no steps yet; there is nothing to replay")
    return recording.steps[-1].end_s


def joined(recordings: Sequence[Recording]) -> Recording:
    """Return the requests of all recordings as of one engine; its steps are the first one's.

    Numbers of requests change, so that they stay different. A request that a gateway held arrives when the gateway got
    it, with the targets that it had then.
    """
    count = len(recordings)
    arrived: dict[int, Arrived] = {}
    ended: dict[int, RequestEnded] = {}
    first_token_s: dict[int, float] = {}
    for place, one in enumerate(recordings):
        for number, request in one.arrived.items():
            own = number * count + place
            arrived[own] = _as_it_came(msgspec.structs.replace(request, number=own))
            if number in one.ended:
                ended[own] = msgspec.structs.replace(one.ended[number], number=own)
            if number in one.first_token_s:
                first_token_s[own] = one.first_token_s[number]
    in_order = dict(sorted(arrived.items(), key=lambda item: item[1].at_s))
    return replace(
        recordings[0],
        arrived=in_order,
        ended=ended,
        first_token_s=first_token_s,
        preempted=[],
        paused=[],
        refused=_all_refused(recordings),
        lost=sum(one.lost for one in recordings),
    )


def _as_it_came(request: Arrived) -> Arrived:
    """Return a request as it came to the gateway that held it; another engine might have taken it at once."""
    if request.held is None:
        return request
    at_s = request.at_s - request.held.held_s
    return msgspec.structs.replace(
        request, at_s=at_s, reached_s=at_s, ttft_s=request.held.ttft_s, e2e_s=request.held.e2e_s, held=None
    )


def _all_refused(recordings: Sequence[Recording]) -> list[RefusedRequest]:
    """Return what was refused, once each: the engines of one server, and of one gateway, state the same refusals."""
    found = {msgspec.msgpack.encode(one): one for recording in recordings for one in recording.refused}
    return sorted(found.values(), key=lambda one: one.at_s)
