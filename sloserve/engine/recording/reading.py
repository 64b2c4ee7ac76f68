"""Read a recording as a whole: its requests by number, its steps in order."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import (
    Arrived,
    Event,
    FirstToken,
    Paused,
    PoliciesChanged,
    Preempted,
    RequestAdmitted,
    RequestEnded,
    SegmentHead,
    Stepped,
)
from sloserve.engine.recording.segments import SUFFIX, read_segment


@dataclass
class Recording:
    """What one engine was asked and did.

    Args:
        head: Facts with which the first segment begins.
        arrived: Requests by number, in order of arrival. Requests that came before the first segment are not known.
        admitted: First admission of each request, by number.
        first_token_s: Time of the first token of each request in epoch seconds, by number.
        ended: End of each request, by number.
        preempted: Preemptions in order.
        paused: Pauses in order.
        steps: Steps in order.
        policies: Changes of the policies in order.
    """

    head: SegmentHead
    arrived: dict[int, Arrived] = field(default_factory=dict)
    admitted: dict[int, RequestAdmitted] = field(default_factory=dict)
    first_token_s: dict[int, float] = field(default_factory=dict)
    ended: dict[int, RequestEnded] = field(default_factory=dict)
    preempted: list[Preempted] = field(default_factory=list)
    paused: list[Paused] = field(default_factory=list)
    steps: list[Stepped] = field(default_factory=list)
    policies: list[PoliciesChanged] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Add an event; events of one segment come in order."""
        match event:
            case Arrived():
                self.arrived[event.number] = event
            case RequestAdmitted():
                self.admitted.setdefault(event.number, event)
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
    """Return the segments of each recording in a folder, the latest recording last.

    Raises: ConfigError if the folder cannot be read or has no segment.
    """
    found: dict[str, list[Path]] = {}
    try:
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            found.setdefault(path.name.rpartition("-")[0], []).append(path)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error}") from error
    if not found:
        raise ConfigError(f"{folder}: there is no recording; sloserve serve --record-mib 64 makes one")
    return found


def read_recording(paths: Iterable[Path]) -> Recording:
    """Return the recording in its segments, of which damaged ends are left out.

    Args:
        paths: Segments of one recording, the oldest first.

    Raises: ConfigError for files that are no segments, or hold nothing.
    """
    recording: Recording | None = None
    for path in paths:
        try:
            for event in read_segment(path):
                if isinstance(event, SegmentHead):
                    recording = recording or Recording(event)
                elif recording is not None:
                    recording.take(event)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
    if recording is None:
        raise ConfigError("the recording holds nothing yet; a running server writes once a second")
    return recording
