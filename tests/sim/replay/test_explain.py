"""A cause is named only where replays confirm it, and what no order could meet is called so."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import (
    Event,
    FirstToken,
    Paused,
    PoliciesChanged,
    Preempted,
    RequestAdmitted,
    RequestEnded,
    Stepped,
)
from sloserve.engine.recording.reading import Recording
from sloserve.engine.recording.segments import SegmentWriter
from sloserve.sim.replay.engine_of import FittedSteps, fitted_steps
from sloserve.sim.replay.explain import explain
from sloserve.sim.replay.explain_changes import long_steps, usual
from sloserve.sim.replay.explain_course import BY_PLAN, FOR_BLOCKS, PAUSED, ahead_of, course_of, late_courses
from tests.sim.replay.played import EPOCH_S, played, workload


@pytest.fixture(scope="module")
def ran() -> tuple[Recording, FittedSteps]:
    recording, _ = played(workload(150, rps=18.0))
    return recording, fitted_steps(recording)


@pytest.mark.slow
def test_a_late_request_is_explained_by_what_replays_confirm(ran: tuple[Recording, FittedSteps]) -> None:
    recording, fitted = ran
    late = max(late_courses(recording), key=lambda one: one.late_by_s)
    found = explain(recording, late.request.number, seeds=2, fitted=fitted)
    assert found.mistrust is None and found.base.never and found.alone is not None and found.alone.always
    by_kind = {change.kind: (change, fate) for change, fate in found.tried}
    burst, fate = by_kind["without_burst"]
    assert fate.always and burst in found.causes and late.request.number not in burst.without
    assert by_kind["policy"][0] in found.causes  # fcfs ran, auto and edf know deadlines
    assert not by_kind["without_largest"][1].always
    assert all(change.kind != "not_preempted" for change, _ in found.tried)
    told = found.figures()
    assert told["tried"] and told["late_by_s"] == pytest.approx(late.late_by_s)
    assert sum(one["requests"] for one in told["served_beside_it"].values()) == len(found.ahead.requests)


@pytest.mark.slow
def test_what_no_order_could_meet_is_called_so(ran: tuple[Recording, FittedSteps]) -> None:
    recording, fitted = ran
    number = 40
    hard = msgspec.structs.replace(recording.arrived[number], ttft_s=0.002)
    changed = replace(recording, arrived={**recording.arrived, number: hard})
    found = explain(changed, number, seeds=2, fitted=fitted)
    assert found.mistrust is None and found.alone is not None and found.alone.never
    assert not found.causes and {change.kind for change, _ in found.tried} <= {"usual_steps"}


@pytest.mark.slow
def test_nothing_is_claimed_where_the_replay_has_the_request_in_time(ran: tuple[Recording, FittedSteps]) -> None:
    recording, fitted = ran
    number = next(number for number in recording.arrived if not course_of(recording, number).late)
    arrived = recording.arrived[number]
    assert arrived.ttft_s is None or recording.first_token_s[number] - arrived.at_s < arrived.ttft_s
    end = RequestEnded(number, arrived.at_s + 90.1, True, recording.ended[number].output_tokens, 0, b"")
    hidden = replace(
        recording,
        first_token_s={**recording.first_token_s, number: arrived.at_s + 90.0},
        ended={**recording.ended, number: end},
    )
    found = explain(hidden, number, seeds=1, fitted=fitted)
    assert found.mistrust is not None and not found.tried and not found.causes and found.alone is None


def test_requests_that_cannot_be_explained_are_refused(ran: tuple[Recording, FittedSteps]) -> None:
    recording, fitted = ran
    with pytest.raises(ConfigError, match="is not in the recording, which has 1 to 150"):
        explain(recording, 999, fitted=fitted)
    good = next(number for number in recording.arrived if not course_of(recording, number).late)
    with pytest.raises(ConfigError, match="was in time"):
        explain(recording, good, fitted=fitted)
    open_ = replace(recording, ended={})
    with pytest.raises(ConfigError, match="had not ended"):
        explain(open_, 3, fitted=fitted)
    late = late_courses(recording)[0]
    change = PoliciesChanged(late.request.at_s + 1e-4, "edf", None)
    with pytest.raises(ConfigError, match="the policy changed while it was there"):
        explain(replace(recording, policies=[change]), late.request.number, fitted=fitted)


def test_preemptions_and_pauses_last_until_it_is_served_again(ran: tuple[Recording, FittedSteps]) -> None:
    recording = replace(ran[0], preempted=[], paused=[], admitted_again=[])
    number = 7
    at_s = recording.arrived[number].at_s
    events: list[Event] = [
        Preempted(number, at_s + 1.0, True, False),
        Preempted(8, at_s + 1.0, True, False),
        RequestAdmitted(number, at_s + 2.0, 0, True),
        Paused(number, at_s + 3.0, True),
        Paused(number, at_s + 3.5, False),
        Preempted(number, at_s + 4.0, False, False),
    ]
    for event in events:
        recording.take(event)
    course = course_of(recording, number)
    gaps = [(gap.kind, gap.from_s - at_s, gap.to_s - at_s) for gap in course.gaps]
    assert [kind for kind, _, _ in gaps] == [BY_PLAN, PAUSED, FOR_BLOCKS]
    assert [to_s for _, _, to_s in gaps] == pytest.approx([2.0, 3.5, course.ended_s - at_s])


def test_only_long_steps_beside_a_request_become_usual(ran: tuple[Recording, FittedSteps]) -> None:
    recording, fitted = ran
    late = late_courses(recording)[0]
    ratio = fitted.ratio.copy()
    beside = int((fitted.end_s > late.request.at_s).argmax())
    ratio[beside] = 9.0
    ratio[-1] = 9.0
    stalled = replace(fitted, ratio=ratio)
    other = usual(stalled, late.request.at_s, late.ended_s)
    assert other.ratio[beside] < 2.0 and other.ratio[-1] == 9.0
    count, lost_s = long_steps(stalled, late)
    assert count >= 1 and lost_s > 5.0 * fitted.fitted_s[beside]


def test_what_was_served_beside_it_overlaps_its_wait(ran: tuple[Recording, FittedSteps]) -> None:
    recording, _ = ran
    late = late_courses(recording)[0]
    for one in ahead_of(recording, late).requests:
        assert recording.ended[one.number].at_s > late.request.at_s
        assert recording.admitted[one.number].at_s < late.held_until_s
        assert one.number != late.request.number


def written(recording: Recording, folder: Path, name: str) -> None:
    """Write a recording as a server does."""
    events: list[Event] = [*recording.arrived.values(), *recording.admitted.values(), *recording.ended.values()]
    events += [FirstToken(number, at_s) for number, at_s in recording.first_token_s.items()]
    events += recording.steps
    events.sort(key=lambda one: one.end_s if isinstance(one, Stepped) else getattr(one, "at_s", EPOCH_S))
    writer = SegmentWriter(folder, name, 1 << 26)
    writer.write(events, lambda: recording.head)
    writer.close()
