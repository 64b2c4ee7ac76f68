"""Why a request was late, in sentences for a terminal."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from sloserve.cli.output_flags import columns

if TYPE_CHECKING:
    from sloserve.sim.replay.explain import Explanation, Fate
    from sloserve.sim.replay.explain_course import Course

_TARGETS: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e", "tds": "seconds a token (TDS)"}


def explain_text(name: str, found: "Explanation") -> Iterator[str]:
    """Yield lines on why a request was late.

    Args:
        name: The name by which it was asked for.
        found: The explanation.
    """
    course = found.course
    yield (
        f"request {name}: class {course.slo_class}, {course.request.prompt_tokens:,} prompt tokens, "
        f"{course.output_tokens:,} output, arrived {_utc(course.request.at_s)} UTC, policy {found.policy}"
    )
    yield f"late: {_missed(course)}"
    yield f"course: {'; '.join(_events(course))}"
    beside = [
        f"{count['requests']} {slo_class} with {count['tokens']:,} tokens"
        for slo_class, count in found.ahead.by_class().items()
    ]
    yield f"served while it was held up: {', '.join(beside) or 'no other request'}"
    steps, lost_s = found.long_steps
    if steps:
        yield f"steps of twice their usual time or longer while it was there: {steps}, which lost {_s(lost_s)}"
    base, late_first = found.base, "ttft" in course.late
    yield f"replay of what ran: {_outcome(base, None, late_first)}"
    if found.mistrust is not None:
        yield f"No cause is named, since {found.mistrust}."
        return
    yield from _alone(found, late_first)
    yield "It would have been in time:"
    rank = sorted(found.tried, key=lambda one: -one[1].in_time)
    rows = [[f"  {_verdict(fate)}", f"{change.says}: {_outcome(fate, base, late_first)}"] for change, fate in rank]
    yield columns(rows) if rows else "  with no change that was tried"
    if not found.causes:
        yield "No single change saves it in every replay."


def late_text(rank: str, late: Sequence["Course"]) -> Iterator[str]:
    """Yield a table of requests that missed a target.

    Args:
        rank: Rank of the engine, by which the request is named in the live view.
        late: The requests that missed a target.
    """
    rows = [["request", "class", "arrived, UTC", "late by", "missed"]]
    for one in late:
        number = f"{rank}-{one.request.number}"
        rows.append([number, one.slo_class, _utc(one.request.at_s), _s(one.late_by_s), _missed(one)])
    yield columns(rows) if late else "no request was late"


def _alone(found: "Explanation", late_first: bool) -> Iterator[str]:
    alone = found.alone
    if alone is not None and not alone.in_time:
        yield (
            f"Even with the engine to itself it would have been late ({_outcome(alone, None, late_first)}): no order "
            "of the requests meets its targets on this engine."
        )
    elif alone is not None:
        yield f"with the engine to itself: {_outcome(alone, None, late_first)}"


def _missed(course: "Course") -> str:
    parts = [f"{_TARGETS[name]} {_s(had)}, target {_s(limit)}" for name, (limit, had) in course.late.items()]
    return "; ".join(parts)


def _events(course: "Course") -> Iterator[str]:
    began_s = course.request.at_s
    if course.admitted_s is not None:
        yield f"admitted after {_s(course.admitted_s - began_s)}"
    if course.first_s is not None:
        yield f"first token after {_s(course.first_s - began_s)}"
    for gap in course.gaps:
        yield f"{gap.kind} from {_s(gap.from_s - began_s)} to {_s(gap.to_s - began_s)}"
    left = "ended" if course.output_tokens else "its client left"
    yield f"{left} after {_s(course.ended_s - began_s)}"


def _outcome(fate: "Fate", base: "Fate | None", late_first: bool) -> str:
    had_s = fate.ttft_s if late_first else fate.e2e_s
    what = "first token" if late_first else "end"
    if had_s is None:
        return f"no {what}"
    before_s = None if base is None else base.ttft_s if late_first else base.e2e_s
    return f"{what} after {_s(had_s)}" + ("" if before_s is None else f" in place of {_s(before_s)}")


def _verdict(fate: "Fate") -> str:
    return "yes" if fate.always else "no" if fate.never else f"{fate.in_time} of {fate.of}"


def _s(value_s: float) -> str:
    return f"{1e3 * value_s:.1f} ms" if value_s < 0.1 else f"{value_s:.2f} s"


def _utc(at_s: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(at_s))}.{int(at_s * 1e3) % 1000:03d}"
