"""Read a recording as a whole: its requests by number, its steps in order."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import (
    ABORTED,
    FRONT_END,
    STOP_STRING,
    UNKNOWN_MODEL,
    Arrived,
    Event,
    FirstToken,
    Lost,
    Paused,
    PoliciesChanged,
    Preempted,
    RefusedRequest,
    RequestAdmitted,
    RequestEnded,
    SegmentHead,
    Stepped,
    StopStringFound,
)
from sloserve.engine.recording.folder import is_of_front_end, is_of_gateway, recordings_folder, run_of, stem_of
from sloserve.engine.recording.segments import SUFFIX, read_segment

logger = logging.getLogger(__name__)


@dataclass
class Recording:
    """What one engine was asked and did, and what the front end of its server refused.

    Args:
        head: Facts with which the first segment begins.
        arrived: Requests by number, in order of arrival. Requests that came before the first segment are not known.
        admitted: First admission of each request, by number.
        admitted_again: Later admissions in order.
        first_token_s: Time of the first token of each request in epoch seconds, by number.
        ended: End of each request, by number.
        preempted: Preemptions in order.
        paused: Pauses in order.
        steps: Steps in order.
        policies: Changes of the policies in order.
        refused: Requests that the server's front end refused, by arrival; all engines of a server have the same. In a
            fleet also requests that gateways refused while the engine made steps, for
            the model or before the model was known.
        lost: Number of events that were lost, of the engine and of the front end.
    """

    head: SegmentHead
    arrived: dict[int, Arrived] = field(default_factory=dict)
    admitted: dict[int, RequestAdmitted] = field(default_factory=dict)
    admitted_again: list[RequestAdmitted] = field(default_factory=list)
    first_token_s: dict[int, float] = field(default_factory=dict)
    ended: dict[int, RequestEnded] = field(default_factory=dict)
    preempted: list[Preempted] = field(default_factory=list)
    paused: list[Paused] = field(default_factory=list)
    steps: list[Stepped] = field(default_factory=list)
    policies: list[PoliciesChanged] = field(default_factory=list)
    refused: list[RefusedRequest] = field(default_factory=list)
    lost: int = 0

    def take(self, event: Event) -> None:
        """Add an event; events of one segment come in order."""
        match event:
            case Arrived():
                self.arrived[event.number] = event
            case RequestAdmitted():
                if event.number in self.admitted:
                    self.admitted_again.append(event)
                else:
                    self.admitted[event.number] = event
            case FirstToken():
                self.first_token_s[event.number] = event.at_s
            case RequestEnded():
                self.ended[event.number] = event
            case Preempted():
                self.preempted.append(event)
            case Paused():
                self.paused.append(event)
            case Stepped():
                self.steps.append(event)
            case PoliciesChanged():
                self.policies.append(event)


def recordings(folder: Path) -> dict[str, list[Path]]:
    """Return the segments of each engine's recording in a folder, the latest recording last.

    Segments of the front end of the same server follow the engine's own, then the segments of all gateways.

    Raises: ConfigError if the folder cannot be read or has no segment of an engine.
    """
    found: dict[str, list[Path]] = {}
    front_ends: dict[str, list[Path]] = {}
    gateways: list[Path] = []
    try:
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            stem = stem_of(path)
            if is_of_gateway(stem):
                gateways.append(path)
            elif is_of_front_end(stem):
                front_ends.setdefault(run_of(stem), []).append(path)
            else:
                found.setdefault(stem, []).append(path)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error}") from error
    if not found:
        raise ConfigError(f"{folder}: there is no recording; sloserve serve --record-mib 64 makes one")
    return {stem: [*paths, *front_ends.get(run_of(stem), ()), *gateways] for stem, paths in found.items()}


LATEST: Final = "latest"
"""Name that stands for the latest recording."""


def chosen(found: dict[str, list[Path]], name: str | None) -> str:
    """Return the name of a recording among those found; ``None`` and :data:`LATEST` stand for the latest.

    Raises: ConfigError if there is none of this name.
    """
    if name in (None, LATEST):
        return list(found)[-1]
    if name not in found:
        raise ConfigError(f"recording {name!r}: is not one of {', '.join(found)}")
    return str(name)


def find_recording(folder: Path | None, name: str | None) -> tuple[str, "Recording"]:
    """Return a recording and its name.

    Args:
        folder: Folder of recordings; ``None`` for the user's own.
        name: Name of the recording; ``None`` or :data:`LATEST` for the latest.

    Raises: ConfigError if it cannot be found or read.
    """
    found = recordings(recordings_folder(None) if folder is None else folder)
    name = chosen(found, name)
    return name, read_recording(found[name])


def read_recording(paths: Iterable[Path]) -> Recording:
    """Return the recording in its segments, of which damaged ends are left out.

    Args:
        paths: Segments of one engine, the oldest first, then segments of its server's front end and of gateways, if
            there are any.

    Raises: ConfigError for files that are no segments, or hold nothing of an engine.
    """
    recording: Recording | None = None
    refused, stopped, has_front_end, lost = list[RefusedRequest](), set[int](), False, _LostEvents()
    for path in paths:
        if is_of_gateway(stem_of(path)):
            refused += _of_gateway(path)
            continue
        has_front_end |= is_of_front_end(stem_of(path))  # also one that had nothing to record
        try:
            for event in read_segment(path):
                lost.take(event, path)
                if isinstance(event, RefusedRequest):
                    refused.append(event)
                elif isinstance(event, StopStringFound):
                    stopped.add(event.key)
                elif isinstance(event, SegmentHead):
                    recording = recording or (None if event.process == FRONT_END else Recording(event))
                elif recording is not None:
                    recording.take(event)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
    if recording is None:
        raise ConfigError("the recording holds nothing yet; a running server writes once a second")
    recording.refused = sorted(filter(partial(_concerns, recording), refused), key=lambda one: one.at_s)
    recording.lost = lost.sum
    _tell_aborts(recording.ended, stopped, has_front_end)
    return recording


def _of_gateway(path: Path) -> list[RefusedRequest]:
    """Return the refusals in a segment of a gateway; none if it cannot be read, since it is no part of an engine."""
    try:
        return [event for event in read_segment(path) if isinstance(event, RefusedRequest)]
    except (ConfigError, OSError) as error:
        logger.warning("refusals of a gateway are left out: %s: %s", path, error)
        return []


def _concerns(recording: Recording, refused: RefusedRequest) -> bool:
    """Return whether a refused request might have come to an engine: to its server, or through a gateway."""
    if not refused.model:
        return True
    steps = recording.steps
    return refused.model in (UNKNOWN_MODEL, recording.head.engine.get("model")) and bool(
        steps and steps[0].start_s <= refused.at_s <= steps[-1].end_s
    )


def _tell_aborts(ended: dict[int, RequestEnded], stopped: set[int], has_front_end: bool) -> None:
    """Replace the ends of which only the API process knows the reason.

    Args:
        ended: Ends by number.
        stopped: Keys of the requests of which it found a stop string.
        has_front_end: Whether the API process recorded; otherwise the other reasons stay unknown.
    """
    for number, end in ended.items():
        if end.key and end.key in stopped:
            ended[number] = msgspec.structs.replace(end, reason=STOP_STRING, completed=True)
        elif end.key and has_front_end:
            ended[number] = msgspec.structs.replace(end, reason=ABORTED)


class _LostEvents:
    """Counts lost events: each process states its number so far at the beginning of a segment, then what is added."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def take(self, event: Event, path: Path) -> None:
        """Take in an event of a segment."""
        stem = stem_of(path)
        if isinstance(event, SegmentHead):
            self._of[stem] = max(event.lost, self._of.get(stem, 0))
        elif isinstance(event, Lost):
            self._of[stem] = self._of.get(stem, 0) + event.events

    @property
    def sum(self) -> int:
        """Number of lost events of all processes."""
        return sum(self._of.values())
